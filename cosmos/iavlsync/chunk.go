package iavlsync

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/internal/wire"
)

// MaxAnswerBytes is the maximum length of a chunk that is sent whole. A longer chunk is sent in
// halves, and a longer leaf in parts.
const MaxAnswerBytes = 16 << 20

// ErrInvalidChunk is wrapped by the errors about a chunk, its halves or its parts.
var ErrInvalidChunk = errors.New("invalid chunk")

// Lengths in a chunk.
const (
	maxLeafChunk = 1 + 3 + 4 + MaxLeafBytes // the longest chunk of one leaf
	minLeafBytes = 1 + 2 + 1                // versions below its root, key, value
	minGapBytes  = 1 + 1                    // height, versions above its children
)

// Chunk is a verified subtree.
type Chunk struct {
	Root   Place
	Leaves []Leaf
	// Inner[i] is the inner node between leaves i−1 and i, whose key is the key of leaf i. Inner[0]
	// is zero.
	Inner []Inner
}

// Leaf is a key with its value. In a Chunk, both alias the bytes that the chunk was decoded from.
type Leaf struct {
	Version    int64
	Key, Value []byte
}

// AppendLeaf appends a leaf to the encoding of a chunk (docs/spec/iavl.md#chunk). version is the
// version of the leaf, and rootVersion the version of the chunk's root.
func AppendLeaf(b []byte, rootVersion, version int64, key, value []byte) []byte {
	b = binary.AppendUvarint(b, uint64(rootVersion-version))
	b = binary.AppendUvarint(b, uint64(len(key)))
	b = append(b, key...)
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}

// AppendInner appends the inner node whose key is the key of the next leaf. It must be called
// before AppendLeaf for each leaf except the first. above is the difference between the node's
// version and the greater version of its two children.
func AppendInner(b []byte, height uint8, above int64) []byte {
	return binary.AppendUvarint(append(b, height), uint64(above))
}

// VerifyChunk decodes a chunk and verifies it against the image of its root. It works for every
// subtree, even one that is not a chunk of any format. Its allocations are proportional to
// len(data). Keys and values in the result alias data.
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
		return nil, fmt.Errorf("%d bytes: chunks of this length are sent in halves", len(data))
	}
	// The number of leaves is bounded by the bytes present and by the size in the root's image.
	most := min(root.Size, 1+int64(len(data))/(minLeafBytes+minGapBytes))
	c := &Chunk{Leaves: make([]Leaf, 0, most)}
	tree := shape{limit: root.Version, relative: true, inner: make([]Inner, 0, most), open: make([]openNode, 0, maxHeight)}
	r := wire.NewReader(data)
	var last subtree
	var image []byte
	for i := 0; r.Len() > 0; i++ {
		if int64(i) == root.Size {
			return nil, fmt.Errorf("%d bytes after the last of %d leaves", r.Len(), i)
		}
		tree.inner = append(tree.inner, Inner{})
		var err error
		if i > 0 {
			if g := (gap{r.Byte("height"), int64(r.Uvarint("versions above", uint64(root.Version)))}); r.Err() == nil {
				err = tree.next(&last, g, i)
			}
		}
		leaf := Leaf{readVersion(&r, root.Version), r.Bytes("key", MaxKeyBytes), r.Bytes("value", MaxLeafBytes)}
		if err = errors.Join(r.Err(), err); err == nil {
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
		return nil, fmt.Errorf("%d leaves, the root has %d", len(c.Leaves), root.Size)
	}
	if err := tree.finish(&last, root.Height+1); err != nil {
		return nil, err
	}
	// The hash binds height, size and version. If nodes are still open, last does not have all
	// leaves and its hash differs.
	if last.hash != root.Hash() {
		return nil, errors.New("hash of the root does not match")
	}
	c.Root, c.Inner = last.place, tree.inner
	return c, nil
}

// maxChunkBytes returns the maximum length of the encoded subtree.
func maxChunkBytes(root *Image) int {
	if root.Height == 0 {
		return maxLeafChunk
	}
	return MaxAnswerBytes
}

// check returns an error if the leaf is invalid or its key does not follow the leaves before it.
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

// Between returns an error unless all keys of c are greater than before and less than after. before
// is the last key of the previous chunk, after the first key of the next chunk; nil: unknown.
//
// Every state that an honest network has built passes, so VerifyChunk does not need this check. It
// rejects a state that was built wrongly before that state is installed.
func (c *Chunk) Between(before, after []byte) error {
	if n := len(c.Leaves); n > 0 && (before != nil && bytes.Compare(before, c.Leaves[0].Key) >= 0 ||
		after != nil && bytes.Compare(c.Leaves[n-1].Key, after) >= 0) {
		return fmt.Errorf("%w: keys overlap with a neighbouring chunk", ErrInvalidChunk)
	}
	return nil
}
