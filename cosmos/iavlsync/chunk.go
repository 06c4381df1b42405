package iavlsync

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// MaxAnswerBytes is the limit of a chunk that travels whole. A longer one comes in halves, and a
// longer leaf in parts.
const MaxAnswerBytes = 16 << 20

// ErrInvalidChunk is wrapped by the errors about a chunk, its halves or its parts.
var ErrInvalidChunk = errors.New("invalid chunk")

// Lengths in a chunk.
const (
	maxLeafChunk = 1 + 3 + 4 + MaxLeafBytes // the longest chunk of one leaf
	minLeafBytes = 1 + 2 + 1                // versions below its root, key, value
	minGapBytes  = 1 + 1                    // height, versions above its children
)

// Chunk is a subtree that was verified.
type Chunk struct {
	Root   Place
	Leaves []Leaf
	// Inner has at i the inner node between leaves i−1 and i, whose key is that of leaf i. Inner[0]
	// is zero.
	Inner []Inner
}

// Leaf is a key with its value. Both are part of the bytes that the chunk was verified from.
type Leaf struct {
	Version    int64
	Key, Value []byte
}

// AppendLeaf appends a leaf to the encoding of a chunk (docs/spec/iavl.md#chunk). version is that
// of the leaf, rootVersion that of the chunk's root.
func AppendLeaf(b []byte, rootVersion, version int64, key, value []byte) []byte {
	b = binary.AppendUvarint(b, uint64(rootVersion-version))
	b = binary.AppendUvarint(b, uint64(len(key)))
	b = append(b, key...)
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}

// AppendInner appends, before a leaf that is not the first, the inner node whose key is the leaf's:
// its height, and how far its version is above the greater one of its children's.
func AppendInner(b []byte, height uint8, above int64) []byte {
	return binary.AppendUvarint(append(b, height), uint64(above))
}

// VerifyChunk decodes a chunk and proves it against the image of its root. It works for every
// subtree, whether or not that is a chunk of a format. Its allocations are proportional to
// len(data), of which keys and values of the result are parts.
func VerifyChunk(root *Image, data []byte) (*Chunk, error) {
	c, err := verifyChunk(root, data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidChunk, err)
	}
	return c, nil
}

func verifyChunk(root *Image, data []byte) (*Chunk, error) {
	if err := root.check(root.Version); err != nil {
		return nil, err
	}
	if len(data) > maxChunkBytes(root) {
		return nil, fmt.Errorf("%d bytes: longer ones travel in halves", len(data))
	}
	// So much memory is proved by the bytes that are there, and by the size in the root's image.
	most := min(root.Size, 1+int64(len(data))/(minLeafBytes+minGapBytes))
	c := &Chunk{Leaves: make([]Leaf, 0, most)}
	tree := shape{limit: root.Version, relative: true, inner: make([]Inner, 0, most), open: make([]openNode, 0, maxHeight)}
	r := reader{b: data}
	var last subtree
	var image []byte
	for i := 0; len(r.b) > 0; i++ {
		if int64(i) == root.Size {
			return nil, fmt.Errorf("%d bytes after the last of %d leaves", len(r.b), i)
		}
		tree.inner = append(tree.inner, Inner{})
		var err error
		if i > 0 {
			if g := (gap{r.byte(), r.int64(root.Version)}); r.err == nil {
				err = tree.next(&last, g, i)
			}
		}
		leaf := Leaf{root.Version - r.int64(root.Version-1), r.bytes(MaxKeyBytes), r.bytes(MaxLeafBytes)}
		if err = errors.Join(r.err, err); err == nil {
			err = leaf.check(c.Leaves)
		}
		if err != nil {
			return nil, fmt.Errorf("leaf %d: %w", i, err)
		}
		c.Leaves = append(c.Leaves, leaf)
		value := sha256.Sum256(leaf.Value)
		image = append(appendLeafImage(image[:0], leaf.Version, leaf.Key), value[:]...)
		last = subtree{sha256.Sum256(image), 1, leaf.Version, Place(2 * i), 0}
	}
	if int64(len(c.Leaves)) != root.Size {
		return nil, fmt.Errorf("%d leaves, its root has %d", len(c.Leaves), root.Size)
	}
	if err := tree.finish(&last, root.Height+1); err != nil {
		return nil, err
	}
	// The hash binds height, size and version. Nodes that are still open leave out leaves of last.
	if last.hash != root.Hash() {
		return nil, errors.New("its root has another hash")
	}
	c.Root, c.Inner = last.place, tree.inner
	return c, nil
}

// maxChunkBytes is the limit of an encoded subtree.
func maxChunkBytes(root *Image) int {
	if root.Height == 0 {
		return maxLeafChunk
	}
	return MaxAnswerBytes
}

// check refuses a leaf that cannot follow the others.
func (l *Leaf) check(before []Leaf) error {
	if err := checkKey(l.Key); err != nil {
		return err
	}
	if n := len(l.Key) + len(l.Value); n > MaxLeafBytes {
		return fmt.Errorf("key and value of %d bytes, at most %d", n, MaxLeafBytes)
	}
	if n := len(before); n > 0 && bytes.Compare(before[n-1].Key, l.Key) >= 0 {
		return errors.New("keys do not ascend")
	}
	return nil
}

// Between fails unless all keys of c lie after the key before and ahead of the key after it, where
// these are known (not nil): the last key of the chunk before c, and the first of the one after.
//
// Whatever an honest network has built passes. So this is no proof that is missing in VerifyChunk:
// it refuses a state that was built wrongly before it is installed.
func (c *Chunk) Between(before, after []byte) error {
	if n := len(c.Leaves); n > 0 && (before != nil && bytes.Compare(before, c.Leaves[0].Key) >= 0 ||
		after != nil && bytes.Compare(c.Leaves[n-1].Key, after) >= 0) {
		return fmt.Errorf("%w: its keys do not lie between those of its neighbours", ErrInvalidChunk)
	}
	return nil
}
