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

// ErrInvalidRecord reports a record that cannot be decoded.
var ErrInvalidRecord = errors.New("invalid record")

// decoder reads the parts of a record. After the first error, which it keeps, it returns zeros. It
// accepts only what IAVL writes: numbers in their shortest form, and nothing after the end.
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
		d.fail("bytes after the end")
	}
	return d.err
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || n > 1 && d.b[n-1] == 0 {
		d.fail("a number is not in its shortest form")
		return 0
	}
	d.b = d.b[n:]
	return v
}

// varint reads a zigzag number in [least, most].
func (d *decoder) varint(least, most int64) int64 {
	u := d.uvarint()
	v := int64(u>>1) ^ -int64(u&1)
	if d.err == nil && (v < least || v > most) {
		d.fail(fmt.Sprintf("number %d is not between %d and %d", v, least, most))
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
		d.fail("unexpected end")
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
		d.fail("a hash does not have 32 bytes")
	}
	copy(h[:], b)
	return h
}

func appendBytes(b, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// ErrOldLayout reports an inner node with a child written by iavl before v1. iavl v1 references
// such a child by its hash, and keeps it until it changes.
var ErrOldLayout = errors.New("the store has nodes of iavl before v1: serve from a node that has joined by state sync since the chain's upgrade")

// modes are the possible bits of the mode: one for each child written by iavl before v1.
const modes = 0b11

// DecodeNode decodes a node of a version (iavl v1, node.go, MakeNode). Key also has the key of an
// inner node. Byte strings of the result are parts of b, except the children's keys. Errors:
// ErrInvalidRecord, ErrOldLayout.
func DecodeNode(version int64, b []byte) (*iavlsync.Node, error) {
	d := decoder{b: b}
	n := &iavlsync.Node{Version: version}
	d.head(n)
	if n.Height > 0 {
		n.Hash = d.hash()
		d.mode()
		n.Left, n.Right = d.child(), d.child()
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

func (d *decoder) mode() {
	if d.varint(0, modes) != 0 {
		d.err, d.b = ErrOldLayout, nil
	}
}

func (d *decoder) child() []byte {
	version := d.varint(1, math.MaxInt64)
	return nodeKey(version, uint32(d.varint(0, math.MaxUint32)))
}

// AppendNode is the inverse of DecodeNode (iavl v1, node.go, writeBytes):
//
//	leaf  = varint(0) ‖ varint(1) ‖ bytes(key) ‖ bytes(value)
//	inner = varint(height) ‖ varint(size) ‖ bytes(key) ‖ bytes(hash) ‖ varint(mode) ‖ child × 2
//	child = varint(version) ‖ varint(nonce)
//
// with bytes(b) = uvarint(length) ‖ b, and mode 0.
func AppendNode(b []byte, n *iavlsync.Node) []byte {
	b = binary.AppendVarint(b, int64(n.Height))
	b = binary.AppendVarint(b, n.Size)
	b = appendBytes(b, n.Key)
	if n.Height == 0 {
		return appendBytes(b, n.Value)
	}
	b = appendBytes(b, n.Hash[:])
	b = binary.AppendVarint(b, 0)
	return appendChild(appendChild(b, n.Left), n.Right)
}

func appendChild(b, key []byte) []byte {
	version, nonce := splitNodeKey(key)
	return binary.AppendVarint(binary.AppendVarint(b, version), int64(nonce))
}

// DecodeFast decodes a record of the fast index (iavl v1, fastnode/fast_node.go). The version is
// not reliable: see docs/spec/iavl.md#for-servers.
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

// DecodeRoot decodes the record at the node key of a version's root. refers is the key of the root
// if that is elsewhere; otherwise it is nil, and the record is the root itself, or empty.
//
//	root = (nothing): the store is empty | 's' ‖ version:8 ‖ nonce:4: that node | 's' ‖ version:8: that root | node
func DecodeRoot(b []byte) (refers []byte, empty bool, err error) {
	switch {
	case len(b) == 0:
		return nil, true, nil
	// A node begins with its height as a varint, whose first byte is even, unlike 's'.
	case b[0] != kindNode:
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

// Record with the version of the fast index.
const (
	storageVersionKey = "storage_version"
	fastStorage       = "1.1.0"
)

func encodeStorageVersion(version int64) []byte {
	return []byte(fastStorage + "-" + strconv.FormatInt(version, 10))
}

// DecodeStorageVersion returns the version of the fast index, or 0 if there is none.
func DecodeStorageVersion(b []byte) int64 {
	format, text, ok := strings.Cut(string(b), "-")
	version, err := strconv.ParseInt(text, 10, 64)
	if !ok || format != fastStorage || err != nil || version < 1 {
		return 0
	}
	return version
}
