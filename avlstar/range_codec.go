package avlstar

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/starling-kv/starling/avlstar/record"
)

// The encoding of RangeProof.Tree (docs/spec/proofs.md#encoding). Like a manifest, it describes a
// tree by its items in key order and the heights of the inner nodes between them (boundaries): a
// Cartesian tree.
//
//	tree      = version:u8 (1) ‖ uvarint(B) ‖ uvarint(m) ‖ item ...
//	item      = kind:u8 ‖ boundary height:u8 (not in the first item) ‖ body
//	stub      = SHA256(its first key):32 (not in the first item) ‖ height:u8 ‖ uvarint(bytes) ‖ hash:32     kind 0
//	neighbour = uvarint(len key) ‖ key ‖ uvarint(len value) ‖ SHA256(value):32                             kind 1
//	result    = (nothing: the next entry of the answer)                                                    kind 2
const (
	rangeVersion = 1

	stubKind      = 0
	neighbourKind = 1
	resultKind    = 2

	// maxRangeStubs is the maximum number of stubs: one at each height on either side.
	maxRangeStubs   = 2 * 255
	maxRangeStub    = 2 + 32 + 1 + binary.MaxVarintLen64 + 32
	maxRangeLeaf    = 2 + 2*binary.MaxVarintLen64 + MaxKeyBytes + 32
	maxRangeFixed   = 1 + 2*binary.MaxVarintLen64 + maxRangeStubs*maxRangeStub + 2*maxRangeLeaf
	resultItemBytes = 2
)

// rangeTree is a decoded RangeProof.Tree.
type rangeTree struct {
	chunkBytes uint64
	chunks     uint32
	items      []rangeItem
}

// rangeItem is a leaf or a stub of the tree.
type rangeItem struct {
	kind byte
	// Height of the inner node whose key is the item's least key; ignored for the first item.
	boundary uint8
	keyHash  Hash // SHA256 of the least key; unused for the first item
	stub     Stub
	// Set only for leaves: the key, and the length and SHA256 of the value.
	key       []byte
	valueLen  int
	valueHash Hash
}

// newRangeLeaf returns a neighbour or a result.
func newRangeLeaf(kind, boundary byte, key []byte, valueLen int, valueHash Hash) rangeItem {
	it := rangeItem{kind: kind, boundary: boundary, keyHash: sha256.Sum256(key), key: key, valueLen: valueLen, valueHash: valueHash}
	it.stub = Stub{Stat{Bytes: RecordBytes(len(key), valueLen)}, hashLeaf(it.keyHash, valueHash)}
	return it
}

func (t *rangeTree) encode() []byte {
	b := []byte{rangeVersion}
	b = binary.AppendUvarint(b, t.chunkBytes)
	b = binary.AppendUvarint(b, uint64(t.chunks))
	for i, it := range t.items {
		b = append(b, it.kind)
		if i > 0 {
			b = append(b, it.boundary)
		}
		switch it.kind {
		case stubKind:
			if i > 0 {
				b = append(b, it.keyHash[:]...)
			}
			b = append(b, it.stub.Height)
			b = binary.AppendUvarint(b, it.stub.Bytes)
			b = append(b, it.stub.Hash[:]...)
		case neighbourKind:
			b = binary.AppendUvarint(b, uint64(len(it.key)))
			b = append(b, it.key...)
			b = binary.AppendUvarint(b, uint64(it.valueLen))
			b = append(b, it.valueHash[:]...)
		}
	}
	return b
}

// decodeRangeTree decodes results of encode, for a response with these entries, whose keys and
// values have valid lengths. It refuses every other encoding. Its allocations are proportional to
// the bytes that it has read and to the number of entries.
func decodeRangeTree(b []byte, entries []KeyEntry) (*rangeTree, error) {
	if len(b) > maxRangeFixed+len(entries)*resultItemBytes {
		return nil, fmt.Errorf("a tree of %d bytes is too long for %d entries", len(b), len(entries))
	}
	r := rangeReader{b: b, entries: entries}
	version, err := r.byte()
	if err != nil {
		return nil, err
	}
	if version != rangeVersion {
		return nil, fmt.Errorf("version %d, only %d is known", version, rangeVersion)
	}
	t := &rangeTree{}
	if t.chunkBytes, err = r.uvarint("chunk limit", 1, MaxChunkBytes); err != nil {
		return nil, err
	}
	m, err := r.uvarint("number of chunks", 1, math.MaxUint32)
	if err != nil {
		return nil, err
	}
	t.chunks = uint32(m)
	for len(r.b) > 0 {
		it, err := r.item(len(t.items) == 0)
		if err != nil {
			return nil, fmt.Errorf("item %d: %w", len(t.items), err)
		}
		t.items = append(t.items, it)
	}
	if len(t.items) == 0 {
		return nil, errors.New("a tree without items")
	}
	if len(r.entries) != 0 {
		return nil, fmt.Errorf("%d entries that are not in the tree", len(r.entries))
	}
	return t, nil
}

// rebuild builds the tree of the items and returns its root. It refuses everything that is not an
// AVL tree.
func (t *rangeTree) rebuild() (Stub, error) {
	b := builder{chunkBytes: t.chunkBytes, join: func(k uint32, _ Stat, l, r *sub) (ref, Hash) {
		return 0, hashInner(l.Stub, r.Stub, t.items[k].keyHash)
	}}
	var last []byte // greatest key so far
	for i := range t.items {
		it := &t.items[i]
		if it.key != nil {
			if last != nil && bytes.Compare(it.key, last) <= 0 {
				return Stub{}, fmt.Errorf("item %d: key %s does not ascend", i, abbreviate(it.key))
			}
			last = it.key
		}
		if err := b.add(it.boundary, &sub{Stub: it.stub}); err != nil {
			return Stub{}, fmt.Errorf("item %d: %w", i, err)
		}
	}
	root, err := b.root()
	if err != nil {
		return Stub{}, err
	}
	return root.Stub, nil
}

// rangeReader reads items; entries are those that no item has claimed yet.
type rangeReader struct {
	b       []byte
	entries []KeyEntry
	stubs   int
}

func (r *rangeReader) item(first bool) (rangeItem, error) {
	kind, err := r.byte()
	if err != nil {
		return rangeItem{}, err
	}
	var boundary byte
	if !first {
		if boundary, err = r.byte(); err != nil {
			return rangeItem{}, err
		}
	}
	switch kind {
	case stubKind:
		return r.stub(boundary, first)
	case neighbourKind:
		return r.neighbour(boundary)
	case resultKind:
		if len(r.entries) == 0 {
			return rangeItem{}, errors.New("a result without an entry")
		}
		e := r.entries[0]
		r.entries = r.entries[1:]
		return newRangeLeaf(resultKind, boundary, e.Key, e.ValueBytes, e.ValueHash), nil
	}
	return rangeItem{}, fmt.Errorf("unknown kind %d", kind)
}

func (r *rangeReader) stub(boundary byte, first bool) (it rangeItem, err error) {
	if r.stubs++; r.stubs > maxRangeStubs {
		return it, fmt.Errorf("more than %d stubs", maxRangeStubs)
	}
	var keyHash Hash
	if !first {
		if keyHash, err = r.hash(); err != nil {
			return it, err
		}
	}
	s, err := r.commitment()
	if err != nil {
		return it, err
	}
	return rangeItem{kind: stubKind, boundary: boundary, keyHash: keyHash, stub: s}, nil
}

// commitment reads a stub's height, bytes and hash. It accepts a height that is impossible for that
// number of bytes.
func (r *rangeReader) commitment() (s Stub, err error) {
	if s.Height, err = r.byte(); err != nil {
		return s, err
	}
	lo, hi := uint64(2*record.MinBytes), uint64(math.MaxUint64)
	if s.Height == 0 {
		lo, hi = record.MinBytes, record.MaxBytes
	}
	if s.Bytes, err = r.uvarint("bytes of a stub", lo, hi); err != nil {
		return s, err
	}
	s.Hash, err = r.hash()
	return s, err
}

func (r *rangeReader) neighbour(boundary byte) (it rangeItem, err error) {
	key, rest, err := record.Field(r.b, MaxKeyBytes)
	if err != nil {
		return it, fmt.Errorf("key: %w", err)
	}
	r.b = rest
	valueLen, err := r.uvarint("length of a value", 1, MaxValueBytes)
	if err != nil {
		return it, err
	}
	valueHash, err := r.hash()
	if err != nil {
		return it, err
	}
	return newRangeLeaf(neighbourKind, boundary, key, int(valueLen), valueHash), nil
}

func (r *rangeReader) take(n int) ([]byte, error) {
	if n > len(r.b) {
		return nil, record.ErrShort
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b, nil
}

func (r *rangeReader) byte() (byte, error) {
	b, err := r.take(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

func (r *rangeReader) hash() (h Hash, err error) {
	b, err := r.take(len(h))
	copy(h[:], b)
	return h, err
}

func (r *rangeReader) uvarint(what string, lo, hi uint64) (uint64, error) {
	n, rest, err := record.Uvarint(r.b)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	if n < lo || n > hi {
		return 0, fmt.Errorf("%s is %d, must be %d to %d", what, n, lo, hi)
	}
	r.b = rest
	return n, nil
}
