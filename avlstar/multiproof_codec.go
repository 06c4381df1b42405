package avlstar

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/starling-kv/starling/avlstar/record"
)

// The encoding of a multiproof (docs/spec/multiproofs.md). Like a range proof, it describes each
// tree by its items in key order and the heights of the inner nodes between them (boundaries). Keys
// are complete, since the receiver's nodes need them.
//
//	multiproof = version:u8 (1) ‖ tree ...                                                   in key order
//	tree       = uvarint(number of items) ‖ item ...
//	item       = kind:u8 ‖ body
//	stub       = boundary:u8 ‖ uvarint(len key) ‖ its first key ‖ height:u8 ‖ uvarint(bytes) ‖ hash:32   kind 0
//	leaf       = leaf record, with the boundary as its height                                            kind 1
//
// The first item of a tree has boundary 0 and, if it is a stub, no key. A single stub is not a
// tree: it opens nothing.
const (
	multiproofVersion = 1

	multiproofStub = 0
	multiproofLeaf = 1

	minMultiproofStub = 1 + 1 + 1 + 1 + 1 + 32 // of the first item; the shortest item is a leaf
	minMultiproofItem = 1 + record.MinBytes

	// usualMultiproofItem is the item length from which the capacity of lists is estimated. Lists
	// grow if items are shorter.
	usualMultiproofItem = 48
)

func appendTree(b []byte, items int, tree []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(items)), tree...)
}

func appendLeafItem(b []byte, l Leaf) []byte { return record.Append(append(b, multiproofLeaf), l) }

func appendStubItem(b []byte, boundary uint8, key []byte, s Stub) []byte {
	b = append(b, multiproofStub, boundary)
	b = binary.AppendUvarint(b, uint64(len(key)))
	b = append(b, key...)
	b = append(b, s.Height)
	b = binary.AppendUvarint(b, s.Bytes)
	return append(b, s.Hash[:]...)
}

// DecodeMultiproof decodes a multiproof from (*Version).Multiproof and hashes its trees, so that
// their roots are verified. It refuses every other encoding. It allocates about 150 bytes for each
// item and 64 for each tree; the shortest item has 6 bytes, most have 50 to 150. The multiproof
// refers to b. Callers must limit the length of multiproofs from peers. All errors wrap
// ErrInvalidMultiproof.
func DecodeMultiproof(b []byte) (*Multiproof, error) {
	multiproof := &Multiproof{data: b}
	if err := multiproof.decode(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidMultiproof, err)
	}
	return multiproof, nil
}

// decode finds the items, then makes the nodes.
func (b *Multiproof) decode() error {
	switch {
	case len(b.data) == 0:
		return record.ErrShort
	case b.data[0] != multiproofVersion:
		return fmt.Errorf("version %d, only %d is known", b.data[0], multiproofVersion)
	case uint64(len(b.data)) > math.MaxUint32:
		return fmt.Errorf("it has %d bytes", len(b.data))
	}
	most := len(b.data)/usualMultiproofItem + 1
	b.at, b.keys = make([]uint32, 0, most), make([]uint32, 0, most)
	var last []byte // the greatest key so far
	for rest := b.data[1:]; len(rest) > 0; {
		var err error
		if rest, last, err = b.decodeTree(rest, last); err != nil {
			return fmt.Errorf("tree %d: %w", len(b.trees), err)
		}
	}
	return b.build()
}

// decodeTree finds the items of the first tree in rest, whose keys must be above last. It returns
// the bytes after the tree, and the greatest key.
func (b *Multiproof) decodeTree(rest, last []byte) (after, greatest []byte, err error) {
	n, rest, err := record.Uvarint(rest)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("number of items: %w", err)
	case n < 1 || n > uint64(len(rest))/minMultiproofItem:
		return nil, nil, fmt.Errorf("%d items in %d bytes", n, len(rest))
	}
	t := multiproofTree{from: uint32(len(b.at))}
	for i := range int(n) {
		it, after, err := decodeMultiproofItem(rest, i == 0)
		switch {
		case err != nil:
		case n == 1 && it.value == nil:
			err = fmt.Errorf("a tree of one stub opens nothing")
		case it.key == nil:
		case last != nil && bytes.Compare(it.key, last) <= 0:
			err = fmt.Errorf("key %s does not ascend", abbreviate(it.key))
		default:
			b.keys, last = append(b.keys, uint32(len(b.at))), it.key
		}
		if err != nil {
			return nil, nil, fmt.Errorf("item %d: %w", i, err)
		}
		b.eighths++
		if it.value != nil {
			b.leaves++
			b.eighths += pageEighths(int(it.stub.Bytes)) - 1
		}
		b.at = append(b.at, uint32(len(b.data)-len(rest)))
		rest = after
	}
	t.to = uint32(len(b.at))
	b.trees = append(b.trees, t)
	return rest, last, nil
}

// item returns item k. The item must have been decoded before.
func (b *Multiproof) item(k int) multiproofItem {
	data := b.data[b.at[k]:]
	first := data[0] == multiproofStub && data[2] == 0 // a stub without a key
	it, _, err := decodeMultiproofItem(data, first)
	if err != nil {
		panic("avlstar: the bytes of a multiproof were changed")
	}
	return it
}

// isLeaf reports whether item k is a leaf.
func (b *Multiproof) isLeaf(k int) bool { return b.data[b.at[k]] == multiproofLeaf }

func decodeMultiproofItem(b []byte, first bool) (it multiproofItem, rest []byte, err error) {
	if len(b) == 0 {
		return it, nil, record.ErrShort
	}
	switch kind := b[0]; kind {
	case multiproofLeaf:
		l, rest, err := record.Decode(b[1:])
		if err != nil {
			return it, nil, err
		}
		it.boundary, it.key, it.value = l.Height, l.Key, l.Value
		it.stub.Bytes = RecordBytes(len(l.Key), len(l.Value))
		if first && l.Height != 0 {
			return it, nil, fmt.Errorf("boundary %d before the first item", l.Height)
		}
		return it, rest, nil
	case multiproofStub:
		return decodeStubItem(b[1:], first)
	default:
		return it, nil, fmt.Errorf("unknown kind %d", kind)
	}
}

func decodeStubItem(b []byte, first bool) (it multiproofItem, rest []byte, err error) {
	r := rangeReader{b: b}
	if it.boundary, err = r.byte(); err != nil {
		return it, nil, err
	}
	if first {
		none, err := r.byte()
		if err != nil {
			return it, nil, err
		}
		if it.boundary != 0 || none != 0 {
			return it, nil, fmt.Errorf("a boundary or a key before the first item")
		}
	} else if it.key, r.b, err = record.Field(r.b, MaxKeyBytes); err != nil {
		return it, nil, fmt.Errorf("key: %w", err)
	}
	it.stub, err = r.commitment()
	return it, r.b, err
}
