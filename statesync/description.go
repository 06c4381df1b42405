package statesync

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
)

// pinDescription is what a node keeps in memory of a snapshot whose leaves are on disk. It maps
// each chunk to a key range and allows the chunk to be verified.
type pinDescription struct {
	height    int64
	hash      avlstar.Hash
	encoded   []byte // manifest
	decoded   *avlstar.Manifest
	committed avlstar.Commitment
	// firsts[k-1] is the first key of chunk k; chunk 0 begins at the lowest key.
	firsts [][]byte
	bytes  uint64 // of memory
}

// keys returns the key range of chunk k; a nil bound is open.
func (d *pinDescription) keys(k uint32) (first, after []byte) {
	if k > 0 {
		first = d.firsts[k-1]
	}
	if int64(k) < int64(len(d.firsts)) {
		after = d.firsts[k]
	}
	return first, after
}

// EncodePin describes the state v for storage. It reads only the upper tree.
//
//	description = app hash:32 ‖ uvarint(len manifest) ‖ manifest
//	              ‖ (uvarint(len key) ‖ key) × (m−1), the first keys of the chunks 1 … m−1
//
// The caller that stores a description adds version, height and checksum (package storage). The
// description has none of its own, since the app hash proves the manifest and the manifest proves
// the keys.
func EncodePin(v *avlstar.Version) ([]byte, error) {
	m, err := v.TryManifest()
	if err != nil {
		return nil, err
	}
	manifest, hash := m.Encode(), v.AppHash()
	b := append(make([]byte, 0, 2*len(manifest)+128), hash[:]...)
	b = binary.AppendUvarint(b, uint64(len(manifest)))
	b = append(b, manifest...)
	keys, err := v.ChunkKeys()
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		b = binary.AppendUvarint(b, uint64(len(key)))
		b = append(b, key...)
	}
	return b, nil
}

// decodePin is the inverse of EncodePin, for the state after block height. It checks that the
// manifest leads to the app hash, and that the first keys ascend and match the manifest. The result
// does not refer to b.
func decodePin(height int64, b []byte) (*pinDescription, error) {
	d, err := decodePinBody(bytes.Clone(b))
	if err != nil {
		return nil, fmt.Errorf("%w: its description: %w", ErrDamagedPin, err)
	}
	d.height = height
	d.bytes = uint64(len(b)) + uint64(len(d.decoded.Entries))*decodedEntry
	return d, nil
}

func decodePinBody(b []byte) (*pinDescription, error) {
	if len(b) < hashBytes {
		return nil, record.ErrShort
	}
	d := &pinDescription{}
	b = b[copy(d.hash[:], b):]
	var err error
	if d.encoded, b, err = record.Field(b, math.MaxInt64); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if d.decoded, err = avlstar.VerifyManifest(d.encoded, d.hash); err != nil {
		return nil, err
	}
	if len(d.decoded.Entries) == 0 {
		return nil, errors.New("it has no chunks")
	}
	if d.committed, err = d.decoded.Commitment(); err != nil {
		return nil, err
	}
	for k := 1; k < len(d.decoded.Entries); k++ {
		var key []byte
		if key, b, err = record.Field(b, record.MaxKeyBytes); err != nil {
			return nil, fmt.Errorf("first key of chunk %d: %w", k, err)
		}
		switch {
		case sha256.Sum256(key) != d.decoded.Entries[k].FirstKeyHash:
			return nil, fmt.Errorf("first key of chunk %d: it does not match the manifest", k)
		case k > 1 && bytes.Compare(d.firsts[k-2], key) >= 0:
			return nil, fmt.Errorf("first key of chunk %d: it does not ascend", k)
		}
		d.firsts = append(d.firsts, key)
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%d bytes after the last key", len(b))
	}
	return d, nil
}
