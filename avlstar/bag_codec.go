package avlstar

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/starling-kv/starling/avlstar/record"
)

// The encoding of a bag (docs/spec/bags.md). Like a range proof, it describes each tree by its
// items in key order and the heights of the inner nodes between them (boundaries). Keys are whole,
// since the receiver's nodes need them.
//
//	bag   = version:u8 (1) ‖ tree ...                                                   in key order
//	tree  = uvarint(number of items) ‖ item ...
//	item  = kind:u8 ‖ body
//	stub  = boundary:u8 ‖ uvarint(len key) ‖ its first key ‖ height:u8 ‖ uvarint(bytes) ‖ hash:32   kind 0
//	leaf  = leaf record, with the boundary as its height                                            kind 1
//
// The first item of a tree has boundary 0 and, if it is a stub, no key. A tree is not one stub:
// that opens nothing.
const (
	bagVersion = 1

	bagStub = 0
	bagLeaf = 1

	minBagStub = 1 + 1 + 1 + 1 + 1 + 32 // of the first item; the shortest item is a leaf
	minBagItem = 1 + record.MinBytes
)

func appendTree(b []byte, items int, tree []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(items)), tree...)
}

func appendLeafItem(b []byte, l Leaf) []byte { return record.Append(append(b, bagLeaf), l) }

func appendStubItem(b []byte, boundary uint8, key []byte, s Stub) []byte {
	b = append(b, bagStub, boundary)
	b = binary.AppendUvarint(b, uint64(len(key)))
	b = append(b, key...)
	b = append(b, s.Height)
	b = binary.AppendUvarint(b, s.Bytes)
	return append(b, s.Hash[:]...)
}

// DecodeBag decodes what (*Version).Bag makes, and hashes its trees: their roots are what they
// claim. It refuses every other encoding. What it allocates is proportional to the length of b, to
// which the bag refers, but up to a hundred times that: who takes bags from others limits their
// length. All errors wrap ErrInvalidBag.
func DecodeBag(b []byte) (*Bag, error) {
	bag, err := decodeBag(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidBag, err)
	}
	return bag, nil
}

func decodeBag(b []byte) (*Bag, error) {
	switch {
	case len(b) == 0:
		return nil, record.ErrShort
	case b[0] != bagVersion:
		return nil, fmt.Errorf("version %d, only %d is known", b[0], bagVersion)
	case uint64(len(b)) > math.MaxUint32:
		return nil, fmt.Errorf("it has %d bytes", len(b))
	}
	bag := &Bag{roots: map[Hash]bagNode{}}
	for b = b[1:]; len(b) > 0; {
		t, rest, err := decodeBagTree(b, bag)
		if err != nil {
			return nil, fmt.Errorf("tree %d: %w", len(bag.trees), err)
		}
		bag.trees, b = append(bag.trees, t), rest
		bag.roots[t.root.Hash] = bagNode{t, t.root.n, t.root.Stub}
	}
	return bag, nil
}

// decodeBagTree decodes the first tree of b, which follows those that bag has.
func decodeBagTree(b []byte, bag *Bag) (*bagTree, []byte, error) {
	n, b, err := record.Uvarint(b)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("number of items: %w", err)
	case n < 1 || n > uint64(len(b))/minBagItem:
		return nil, nil, fmt.Errorf("%d items in %d bytes", n, len(b))
	}
	t := &bagTree{items: make([]bagItem, 0, n)}
	for i := range int(n) {
		it, rest, err := decodeBagItem(b, i == 0)
		switch {
		case err != nil:
		case n == 1 && it.value == nil:
			err = fmt.Errorf("a tree of one stub opens nothing")
		case it.key == nil:
		case len(bag.keys) > 0 && bytes.Compare(it.key, bag.keys[len(bag.keys)-1]) <= 0:
			err = fmt.Errorf("key %s does not ascend", abbreviate(it.key))
		default:
			bag.keys = append(bag.keys, it.key)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("item %d: %w", i, err)
		}
		t.items, b = append(t.items, it), rest
	}
	if err := t.build(); err != nil {
		return nil, nil, err
	}
	return t, b, nil
}

func decodeBagItem(b []byte, first bool) (it bagItem, rest []byte, err error) {
	if len(b) == 0 {
		return it, nil, record.ErrShort
	}
	switch kind := b[0]; kind {
	case bagLeaf:
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
	case bagStub:
		return decodeStubItem(b[1:], first)
	default:
		return it, nil, fmt.Errorf("unknown kind %d", kind)
	}
}

func decodeStubItem(b []byte, first bool) (it bagItem, rest []byte, err error) {
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
