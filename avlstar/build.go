package avlstar

import (
	"errors"
	"fmt"
)

// builder makes a tree from subtrees in key order: a Cartesian tree on the heights of the inner
// nodes between them, in one linear pass with a stack. The subtrees and these heights determine the
// tree (docs/spec/chunks.md#shape): the inner node between two neighbours has the least key of the
// second one, and a parent is higher than its child.
//
//	subtrees         a    b    c    d         stack after d: (b, 2) (d, 1)
//	boundary         -    2    1    …
//
//	                  (b 2)
//	                 /     \
//	                a    (c 1)
//	                     /   \
//	                    b     c
//
// It checks all of its input: every inner node must be 1 higher than its higher child, the heights
// of its children may differ by at most 1, and its number of bytes must not overflow. Callers check
// that keys ascend. Heights are bytes and descend along the stack, so the stack never holds more
// than 255 frames, whatever the input.
type builder struct {
	chunkBytes uint64 // B, to count the upper nodes
	upperOnly  bool   // refuse a small inner node: its chunks would not be maximal

	// join makes an inner node that passed all checks, and returns its ref and its hash; a caller
	// that needs only one of them may return 0 for the other. k is the number of the subtree whose
	// least key is the node's key.
	join func(k uint32, s Stat, left, right *sub) (ref, Hash)

	added uint32 // number of subtrees
	upper uint64 // inner nodes that are not small; a tree has one chunk more than these

	stack []frame
	tail  sub // the subtree on the right of the last frame
}

// frame is an inner node whose right subtree is still growing.
type frame struct {
	left   sub
	k      uint32
	height uint8
}

// add appends a subtree. boundary is the height of the inner node whose key is the subtree's least
// key; it is ignored for the first subtree. After an error the builder cannot be used.
func (b *builder) add(boundary uint8, s *sub) error {
	if b.added > 0 {
		if err := b.closeBelow(int(boundary)); err != nil {
			return err
		}
		if boundary == 0 || len(b.stack) > 0 && b.stack[len(b.stack)-1].height == boundary {
			return fmt.Errorf("inner node of height %d: a parent is higher than its child", boundary)
		}
		b.stack = append(b.stack, frame{left: b.tail, k: b.added, height: boundary})
	}
	b.tail = *s
	b.added++
	return nil
}

// root completes the tree and returns its root. At least one subtree must have been added.
func (b *builder) root() (*sub, error) {
	if err := b.closeBelow(256); err != nil {
		return nil, err
	}
	return &b.tail, nil
}

// closeBelow completes the frames lower than height.
func (b *builder) closeBelow(height int) error {
	for len(b.stack) > 0 && int(b.stack[len(b.stack)-1].height) < height {
		if err := b.close(&b.stack[len(b.stack)-1]); err != nil {
			return err
		}
		b.stack = b.stack[:len(b.stack)-1]
	}
	return nil
}

// close makes the inner node of a frame and its right subtree, and checks that node.
func (b *builder) close(f *frame) error {
	l, r := int(f.left.Height), int(b.tail.Height)
	if int(f.height) != 1+max(l, r) {
		return fmt.Errorf("inner node of height %d over children of heights %d and %d", f.height, l, r)
	}
	if l-r > 1 || r-l > 1 {
		return fmt.Errorf("inner node out of balance: children of heights %d and %d", l, r)
	}
	in := sub{Stub: Stub{Stat: Stat{Height: f.height, Bytes: f.left.Bytes + b.tail.Bytes}}}
	if in.Bytes < b.tail.Bytes {
		return errors.New("the sum of the bytes overflows")
	}
	if !isSmall(in.Stat, b.chunkBytes) {
		b.upper++
	} else if b.upperOnly {
		return fmt.Errorf("inner node of %d bytes above chunks: chunks of at most %d are not maximal", in.Bytes, b.chunkBytes)
	}
	in.n, in.Hash = b.join(f.k, in.Stat, &f.left, &b.tail)
	b.tail = in
	return nil
}
