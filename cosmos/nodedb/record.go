package nodedb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// ErrInvalidRecord is wrapped by the errors about a record.
var ErrInvalidRecord = errors.New("invalid record")

// decoder reads the parts of a record. After the first error, which it keeps, all is zero. It
// accepts the encodings only that IAVL writes: shortest numbers, nothing after the end.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(why string) {
	if d.err == nil {
		d.err, d.b = fmt.Errorf("%w: %s", ErrInvalidRecord, why), nil
	}
}

func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.fail("bytes after its end")
	}
	return d.err
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || n > 1 && d.b[n-1] == 0 {
		d.fail("no number in its shortest form")
		return 0
	}
	d.b = d.b[n:]
	return v
}

// varint reads a zigzag number from least to most.
func (d *decoder) varint(least, most int64) int64 {
	u := d.uvarint()
	v := int64(u>>1) ^ -int64(u&1)
	if d.err == nil && (v < least || v > most) {
		d.fail(fmt.Sprintf("number %d, which is from %d to %d", v, least, most))
	}
	if d.err != nil {
		return 0
	}
	return v
}

// bytes reads uvarint(length) ‖ bytes.
func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.fail("it ends in the middle")
	}
	if d.err != nil {
		return nil
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) hash() (h iavlsync.Hash) {
	b := d.bytes()
	if d.err == nil && len(b) != len(h) {
		d.fail("a hash that has not 32 bytes")
	}
	copy(h[:], b)
	return h
}

func appendBytes(b, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// Flags of the mode: a child is a node of iavl before v1, whose key is its hash.
const (
	legacyLeft = 1 << iota
	legacyRight
)

// DecodeNode decodes a node of a version (iavl v1, node.go, MakeNode). The key of an inner node is
// in Key. Byte strings of the result are parts of b, but for the children's keys.
func DecodeNode(version int64, b []byte) (*iavlsync.Node, error) {
	d := decoder{b: b}
	n := &iavlsync.Node{Version: version}
	d.head(n)
	if n.Height > 0 {
		n.Hash = d.hash()
		mode := d.varint(0, legacyLeft|legacyRight)
		n.Left = d.child(mode&legacyLeft != 0)
		n.Right = d.child(mode&legacyRight != 0)
	} else {
		n.Value = d.bytes()
	}
	if err := d.end(); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	return n, nil
}

func (d *decoder) head(n *iavlsync.Node) {
	n.Height = uint8(d.varint(0, math.MaxInt8))
	n.Size = d.varint(1, math.MaxInt64)
	n.Key = d.bytes()
}

func (d *decoder) child(legacy bool) []byte {
	if legacy {
		h := d.hash()
		return h[:]
	}
	version := d.varint(1, math.MaxInt64)
	return nodeKey(version, uint32(d.varint(0, math.MaxUint32)))
}

// AppendNode is the inverse of DecodeNode (iavl v1, node.go, writeBytes):
//
//	leaf  = varint(0) ‖ varint(1) ‖ bytes(key) ‖ bytes(value)
//	inner = varint(height) ‖ varint(size) ‖ bytes(key) ‖ bytes(hash) ‖ varint(mode) ‖ child × 2
//	child = varint(version) ‖ varint(nonce) | of iavl before v1: bytes(hash)
//
// with bytes(b) = uvarint(length) ‖ b.
func AppendNode(b []byte, n *iavlsync.Node) []byte {
	b = binary.AppendVarint(b, int64(n.Height))
	b = binary.AppendVarint(b, n.Size)
	b = appendBytes(b, n.Key)
	if n.Height == 0 {
		return appendBytes(b, n.Value)
	}
	b = appendBytes(b, n.Hash[:])
	mode := int64(0)
	if len(n.Left) == legacyKeyBytes {
		mode |= legacyLeft
	}
	if len(n.Right) == legacyKeyBytes {
		mode |= legacyRight
	}
	b = binary.AppendVarint(b, mode)
	return appendChild(appendChild(b, n.Left), n.Right)
}

func appendChild(b, key []byte) []byte {
	if len(key) == legacyKeyBytes {
		return appendBytes(b, key)
	}
	version, nonce := splitNodeKey(key)
	return binary.AppendVarint(binary.AppendVarint(b, version), int64(nonce))
}

// DecodeLegacyNode decodes a node of iavl before v1 (iavl v1, node.go, MakeLegacyNode):
//
//	leaf  = varint(0) ‖ varint(1) ‖ varint(version) ‖ bytes(key) ‖ bytes(value)
//	inner = varint(height) ‖ varint(size) ‖ varint(version) ‖ bytes(key) ‖ bytes(left) ‖ bytes(right)
//
// hash is its key. Byte strings of the result are parts of b.
func DecodeLegacyNode(hash iavlsync.Hash, b []byte) (*iavlsync.Node, error) {
	d := decoder{b: b}
	n := &iavlsync.Node{Height: uint8(d.varint(0, math.MaxInt8)), Size: d.varint(1, math.MaxInt64),
		Version: d.varint(1, math.MaxInt64), Key: d.bytes()}
	if n.Height > 0 {
		left, right := d.hash(), d.hash()
		n.Hash, n.Left, n.Right = hash, left[:], right[:]
	} else {
		n.Value = d.bytes()
	}
	if err := d.end(); err != nil {
		return nil, fmt.Errorf("node of iavl before v1: %w", err)
	}
	return n, nil
}

// DecodeFast decodes a record of the fast index (iavl v1, fastnode/fast_node.go). The version is
// not reliable: docs/spec/iavl.md#for-servers.
func DecodeFast(b []byte) (version int64, value []byte, err error) {
	d := decoder{b: b}
	version, value = d.varint(0, math.MaxInt64), d.bytes()
	if err := d.end(); err != nil {
		return 0, nil, fmt.Errorf("fast index: %w", err)
	}
	return version, value, nil
}

// AppendFast is the inverse of DecodeFast: varint(version) ‖ bytes(value).
func AppendFast(b []byte, version int64, value []byte) []byte {
	return appendBytes(binary.AppendVarint(b, version), value)
}

// DecodeRoot decodes what is at the node key of a version's root. nil: it is the root itself.
//
//	root = (nothing): the store is empty | 's' ‖ version:8 ‖ nonce:4: that node | 's' ‖ version:8: that root | node
func DecodeRoot(b []byte) (refers []byte, empty bool, err error) {
	switch {
	case len(b) == 0:
		return nil, true, nil
	case b[0] != kindNode: // of a node it is the height, which is even as a varint and below 's'/2
		return nil, false, nil
	case len(b) == 1+nodeKeyBytes:
		refers = b[1:]
	case len(b) == 1+8: // iavl v1.0 and v1.1
		refers = appendNodeKey(nil, int64(binary.BigEndian.Uint64(b[1:])), rootNonce)
	}
	if refers == nil || int64(binary.BigEndian.Uint64(refers)) < 1 {
		return nil, false, fmt.Errorf("root: %w: reference %x", ErrInvalidRecord, b)
	}
	return refers, false, nil
}

// storageVersion is the record beside a fast index that is of a version.
const (
	storageVersionKey = "storage_version"
	fastStorage       = "1.1.0"
)

func encodeStorageVersion(version int64) []byte {
	return []byte(fastStorage + "-" + strconv.FormatInt(version, 10))
}

// DecodeStorageVersion returns the version that the fast index is of; 0: there is no fast index.
func DecodeStorageVersion(b []byte) int64 {
	format, text, ok := strings.Cut(string(b), "-")
	version, err := strconv.ParseInt(text, 10, 64)
	if !ok || format != fastStorage || err != nil || version < 1 {
		return 0
	}
	return version
}
