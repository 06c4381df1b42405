package statesync

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/starling-kv/starling/avlstar"
)

// pinVersion begins the description of a stored snapshot.
const pinVersion = 1

// pinDescription is what a node knows of a snapshot that it has on disk, beside the leaves there: with it each chunk is a range of keys
// that can be verified.
type pinDescription struct {
	height    int64
	hash      avlstar.Hash
	encoded   []byte // manifest
	decoded   *avlstar.Manifest
	committed avlstar.Commitment
	firsts    [][]byte // firsts[k-1] is the first key of chunk k; that of chunk 0 is the least there is
}

// keys returns the range of chunk k; nil is open.
func (d *pinDescription) keys(k uint32) (first, after []byte) {
	if k > 0 {
		first = d.firsts[k-1]
	}
	if int64(k) < int64(len(d.firsts)) {
		after = d.firsts[k]
	}
	return first, after
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// EncodePin describes the state v after block height, for who stores it. It walks over the upper tree only.
//
//	description = version:u8 (1) ‖ height:u64be ‖ app hash:32 ‖ uvarint(len manifest) ‖ manifest
//	              ‖ (uvarint(len key) ‖ key) × (m−1), the first keys of the chunks 1 … m−1 ‖ CRC-32C of all before:u32be
func EncodePin(height int64, v *avlstar.Version) ([]byte, error) {
	manifest, hash := v.Manifest().Encode(), v.AppHash()
	b := append(make([]byte, 0, 2*len(manifest)+128), pinVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(height))
	b = append(b, hash[:]...)
	b = binary.AppendUvarint(b, uint64(len(manifest)))
	b = append(b, manifest...)
	first := true
	upper, err := v.Prune(func(s avlstar.Subtree) bool { // asks from left to right
		if s.Bytes > v.ChunkBytes() && s.Height > 0 {
			return false
		}
		if !first {
			b = binary.AppendUvarint(b, uint64(len(s.First)))
			b = append(b, s.First...)
		}
		first = false
		return true
	})
	if err != nil {
		return nil, err
	}
	upper.Release()
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

var errShortPin = errors.New("it ends too early")

// decodePin is the inverse of EncodePin. The result is consistent: the manifest leads to the app hash, the first keys ascend and are
// the manifest's. It does not refer to b.
func decodePin(b []byte) (*pinDescription, error) {
	d, err := decodePinBody(bytes.Clone(b))
	if err != nil {
		return nil, fmt.Errorf("%w: its description: %w", ErrDamagedPin, err)
	}
	return d, nil
}

func decodePinBody(b []byte) (*pinDescription, error) {
	if len(b) < 1+8+hashBytes+4 {
		return nil, errShortPin
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, errors.New("wrong checksum")
	}
	if body[0] != pinVersion { // after the checksum, so that a flipped bit does not pass for a newer version
		return nil, fmt.Errorf("version %d, this program knows %d", body[0], pinVersion)
	}
	height := binary.BigEndian.Uint64(body[1:])
	if height == 0 || height > math.MaxInt64 {
		return nil, fmt.Errorf("height %d cannot be", height)
	}
	d := &pinDescription{height: int64(height)}
	body = body[1+8:]
	body = body[copy(d.hash[:], body):]
	var err error
	if d.encoded, body, err = cutField(body); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if d.decoded, err = avlstar.VerifyManifest(d.encoded, d.hash); err != nil {
		return nil, err
	}
	if len(d.decoded.Entries) == 0 {
		return nil, errors.New("it has no chunk")
	}
	if d.committed, err = d.decoded.Commitment(); err != nil {
		return nil, err
	}
	for k := 1; k < len(d.decoded.Entries); k++ {
		var key []byte
		if key, body, err = cutField(body); err != nil {
			return nil, fmt.Errorf("first key of chunk %d: %w", k, err)
		}
		switch {
		case len(key) == 0 || len(key) > avlstar.MaxKeyBytes || sha256.Sum256(key) != d.decoded.Entries[k].FirstKeyHash:
			return nil, fmt.Errorf("first key of chunk %d: it is not the manifest's", k)
		case k > 1 && bytes.Compare(d.firsts[k-2], key) >= 0:
			return nil, fmt.Errorf("first key of chunk %d: it does not ascend", k)
		}
		d.firsts = append(d.firsts, key)
	}
	if len(body) > 0 {
		return nil, fmt.Errorf("%d bytes after the last key", len(body))
	}
	return d, nil
}

// cutField splits a field that its length precedes, in its shortest form, off b.
func cutField(b []byte) (field, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	switch {
	case size <= 0:
		return nil, nil, errShortPin
	case size > 1 && b[size-1] == 0:
		return nil, nil, errors.New("a length is not in its shortest form")
	case n > uint64(len(b)-size):
		return nil, nil, errShortPin
	}
	return b[size : size+int(n) : size+int(n)], b[size+int(n):], nil
}
