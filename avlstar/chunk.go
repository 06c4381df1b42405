package avlstar

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"runtime"
)

// ErrInvalidChunk is wrapped by the errors of VerifyChunk and Assemble about a chunk.
var ErrInvalidChunk = errors.New("invalid chunk")

// Chunk is a verified chunk. It refers to the bytes that were verified, until an Assembler has
// copied it into a tree.
type Chunk struct {
	run  *run // nil when it is part of a tree
	root Stub
	n    uint64
}

// Leaves yields the leaves of the chunk in key order, with the heights of its encoding: the first
// leaf has height 0. It yields nothing when the chunk is part of a tree.
func (c *Chunk) Leaves() iter.Seq[Leaf] {
	return func(yield func(Leaf) bool) {
		if c.run == nil {
			return
		}
		for i := range c.run.len() {
			l := c.run.leaf(i)
			if !yield(Leaf{Key: l.Key[:len(l.Key):len(l.Key)], Value: l.Value[:len(l.Value):len(l.Value)], Height: l.Height}) {
				return
			}
		}
	}
}

// Bytes returns the verified encoding, which must not be modified; nil when the chunk is part of a
// tree.
func (c *Chunk) Bytes() []byte {
	if c.run == nil {
		return nil
	}
	return c.run.data
}

// Len returns the number of leaves.
func (c *Chunk) Len() uint64 { return c.n }

// Root returns the chunk's commitment, as in its manifest entry. Equal chunks of different versions
// have equal roots.
func (c *Chunk) Root() Stub { return c.root }

// Chunk returns the encoding of chunk k: its leaf records in key order
// (docs/spec/chunks.md#leaf-records). The manifest lists its length.
func (v *Version) Chunk(k uint32) ([]byte, error) {
	v.inUse()
	defer runtime.KeepAlive(v)
	if k >= v.NumChunks() {
		return nil, fmt.Errorf("avlstar: no chunk %d, the version has %d", k, v.NumChunks())
	}
	if err := v.upperTree(); err != nil {
		return nil, fmt.Errorf("avlstar: chunk %d: %w", k, err)
	}
	b, err := v.encode(v.chunks[k])
	if err != nil {
		return nil, fmt.Errorf("avlstar: chunk %d: %w", k, err)
	}
	return b, nil
}

// encode returns the leaf records below c.
func (v *Version) encode(c chunkRoot) (b []byte, err error) {
	b = make([]byte, 0, c.Bytes)
	e := v.newEncoder(c.Bytes)
	defer func() { e.end(b) }()
	if c.n == 0 {
		b, _, err = e.appendPage(b, c.up, c.side)
	} else {
		b, _, err = e.appendRecords(b, c.n)
	}
	return b, err
}

// appendRecords appends the leaf records below n and returns the height of n. The record of a leaf
// begins with the height of the inner node that has its key. That height is known when the right
// subtree of that node is complete, so no image is read.
func (e *encoder) appendRecords(b []byte, n ref) ([]byte, uint8, error) {
	if n.isLeaf() {
		return append(append(b, 0), e.body(n)...), 0, nil
	}
	if len(b) >= e.next {
		e.giveWay(b)
	}
	l := e.link(n)
	var heights [2]uint8
	at := 0
	for side, c := range l.child {
		at = len(b)
		var err error
		if c != 0 {
			b, heights[side], err = e.appendRecords(b, c)
		} else {
			b, heights[side], err = e.appendPage(b, n, side)
		}
		if err != nil {
			return nil, 0, err
		}
	}
	height := 1 + max(heights[left], heights[right])
	b[at] = height
	return b, height, nil
}

// appendPage does what appendRecords does for a child of n, given by its side, that is only a stub
// in memory.
func (e *encoder) appendPage(b []byte, n ref, side int) ([]byte, uint8, error) {
	p, err := e.pageBelow(n, side)
	if err != nil {
		return nil, 0, err
	}
	return append(b, p.data...), e.image(n).height(side), nil
}

// VerifyChunk checks data as chunk k of m, without other chunks. It checks the length of data, that
// data decodes completely into a proper AVL tree of strictly ascending keys, the hash of its first
// key (chunk 0 may have any first key), and its root. If m was verified, then so is every byte of
// data. The chunk refers to data, which must not change until the chunk is part of a tree.
// VerifyChunk may be called concurrently.
func (m *Manifest) VerifyChunk(k uint32, data []byte) (*Chunk, error) {
	c, err := m.verifyChunk(k, data)
	if err != nil {
		return nil, fmt.Errorf("%w %d: %w", ErrInvalidChunk, k, err)
	}
	return c, nil
}

func (m *Manifest) verifyChunk(k uint32, data []byte) (*Chunk, error) {
	if uint64(k) >= uint64(len(m.Entries)) {
		return nil, fmt.Errorf("the manifest has %d", len(m.Entries))
	}
	want := &m.Entries[k]
	if uint64(len(data)) != want.Root.Bytes {
		return nil, fmt.Errorf("%d bytes, the manifest says %d", len(data), want.Root.Bytes)
	}
	r, err := newRun(data, limits{m.ChunkBytes, want.Root.Height, func(i int, l Leaf) error { return want.checkRecord(k, i, l) }, true})
	if err != nil {
		return nil, err
	}
	if got := r.root.Stub; got != want.Root {
		return nil, fmt.Errorf("root %s of height %d and %d bytes, the manifest says %s of height %d and %d bytes",
			got.Hash, got.Height, got.Bytes, want.Root.Hash, want.Root.Height, want.Root.Bytes)
	}
	return &Chunk{run: r, root: r.root.Stub, n: uint64(r.len())}, nil
}

// Done frees the chunk's memory for use by other chunks, except its bytes. The chunk must not be
// used afterwards. Calling Done is optional.
func (c *Chunk) Done() {
	if c.run != nil {
		c.run.done()
		c.run = nil
	}
}

// checkRecord checks the first record of chunk k against the manifest's entry.
func (e *Entry) checkRecord(k uint32, i int, l Leaf) error {
	switch {
	case i > 0:
		return nil
	case l.Height != 0:
		return fmt.Errorf("the first record has height %d, not 0", l.Height)
	case k > 0 && sha256.Sum256(l.Key) != e.FirstKeyHash:
		return errors.New("the first key is not the manifest's")
	}
	return nil
}
