package avlstar

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
)

// ErrInvalidChunk is wrapped by the refusals of VerifyChunk and Assemble.
var ErrInvalidChunk = errors.New("invalid chunk")

// Chunk is a verified chunk. It refers to the bytes that it was verified from until Assemble has put it into a tree.
type Chunk struct {
	run  *run // nil after Assemble
	root Stub
	n    uint64
}

// Leaves yields the leaves of the chunk in key order, with heights as in its encoding: the first has 0. After Assemble it yields
// nothing.
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

// Bytes returns the encoding that the chunk was verified from, which must not be modified; nil after Assemble.
func (c *Chunk) Bytes() []byte {
	if c.run == nil {
		return nil
	}
	return c.run.data
}

// Len returns the number of leaves.
func (c *Chunk) Len() uint64 { return c.n }

// Root returns the chunk's commitment: its entry in the manifest, and its identity across versions.
func (c *Chunk) Root() Stub { return c.root }

// Chunk returns the encoding of chunk k: its leaf records in key order (design, section 3). Its length is the manifest's.
func (v *Version) Chunk(k uint32) ([]byte, error) {
	v.inUse()
	if k >= v.NumChunks() {
		return nil, fmt.Errorf("avlstar: no chunk %d, the version has %d", k, v.NumChunks())
	}
	v.upperTree()
	b, err := v.encode(v.chunks[k])
	if err != nil {
		return nil, fmt.Errorf("avlstar: chunk %d: %w", k, err)
	}
	return b, nil
}

// encode returns the leaf records below c.
func (v *Version) encode(c chunkRoot) ([]byte, error) {
	b := make([]byte, 0, c.Bytes)
	if c.n == 0 {
		b, _ = v.appendPage(b, c.up, c.side)
	} else {
		b, _ = v.appendRecords(b, c.n)
	}
	if uint64(len(b)) != c.Bytes { // a page could not be had
		return nil, v.Err()
	}
	return b, nil
}

// appendRecords appends the leaf records below n, and returns the height of n. A leaf's record begins with the height of the inner node
// that bears its key, which is known when the subtree on the right of that node ends. So no image is read.
func (v *Version) appendRecords(b []byte, n ref) ([]byte, uint8) {
	if n.isLeaf() {
		return append(append(b, 0), v.body(n)...), 0
	}
	l := v.link(n)
	var heights [2]uint8
	at := 0
	for side, c := range l.child {
		at = len(b)
		if c != 0 {
			b, heights[side] = v.appendRecords(b, c)
		} else {
			b, heights[side] = v.appendPage(b, n, side)
		}
	}
	height := 1 + max(heights[left], heights[right])
	if at < len(b) {
		b[at] = height
	}
	return b, height
}

// appendPage is appendRecords of the child of n on one side, of which only a stub is in memory. It appends nothing where that cannot be had.
func (v *Version) appendPage(b []byte, n ref, side int) ([]byte, uint8) {
	if p := v.pageBelow(n, side); p != nil {
		b = append(b, p.data...)
	}
	return b, v.image(n).height(side)
}

// VerifyChunk checks that data is chunk k of m, alone: its length, that it decodes completely into a proper AVL tree of strictly
// ascending keys, the hash of its first key (chunk 0: any), and its root. If m itself was verified, so is then every byte of data.
// The chunk refers to data, which must not be changed until it is part of a tree. Concurrent calls are fine.
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
	r, err := newRun(data, limits{m.ChunkBytes, want.Root.Height, func(i int, l Leaf) error { return want.checkRecord(k, i, l) }})
	if err != nil {
		return nil, err
	}
	if got := r.root.Stub; got != want.Root {
		return nil, fmt.Errorf("root %s of height %d and %d bytes, the manifest says %s of height %d and %d bytes",
			got.Hash, got.Height, got.Bytes, want.Root.Hash, want.Root.Height, want.Root.Bytes)
	}
	return &Chunk{run: r, root: r.root.Stub, n: uint64(r.len())}, nil
}

// checkRecord checks what only the manifest's entry tells about the first record of chunk k.
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

// Assemble joins all chunks of m to the version that m describes. It fails where a chunk is missing (nil) or is not that of m. Its
// memory is the tree's own; as it goes, the chunks let go of what they refer to, so that they can be used once only.
func Assemble(m *Manifest, chunks []*Chunk) (*Version, error) {
	if err := checkChunkBytes(m.ChunkBytes); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidManifest, err)
	}
	if len(chunks) != len(m.Entries) {
		return nil, fmt.Errorf("%w: %d chunks, the manifest has %d", ErrInvalidChunk, len(chunks), len(m.Entries))
	}
	bases := make([]uint64, len(chunks)+1)
	var last []byte
	for k, c := range chunks {
		switch e := &m.Entries[k]; {
		case c == nil:
			return nil, fmt.Errorf("%w %d: it is missing", ErrInvalidChunk, k)
		case c.run == nil:
			return nil, fmt.Errorf("%w %d: it is part of another tree already", ErrInvalidChunk, k)
		case c.root != e.Root || k > 0 && c.run.first != e.FirstKeyHash:
			return nil, fmt.Errorf("%w %d: it was verified against another manifest", ErrInvalidChunk, k)
		case k > 0 && string(c.run.leaf(0).Key) <= string(last):
			return nil, fmt.Errorf("%w: entry %d: key %s does not ascend", ErrInvalidManifest, k, abbreviate(c.run.leaf(0).Key))
		}
		last = c.run.leaf(c.run.len() - 1).Key
		bases[k+1] = bases[k] + c.n
	}
	if _, err := m.Commitment(); err != nil { // before anything is taken from the chunks
		return nil, err
	}
	l := newLoader(m.ChunkBytes)
	l.placed = make([]placed, len(chunks))
	if err := l.reserve(bases[len(chunks)]); err != nil {
		return nil, err
	}
	var (
		next   atomic.Int64
		failed atomic.Pointer[error]
		wg     sync.WaitGroup
	)
	for range min(runtime.GOMAXPROCS(0), len(chunks)) {
		wg.Go(func() {
			for k := int(next.Add(1)) - 1; k < len(chunks); k = int(next.Add(1)) - 1 {
				p, err := l.place(chunks[k].run, uint32(bases[k]), m.Entries[k].BoundaryHeight)
				if err != nil {
					failed.Store(&err)
					return
				}
				l.placed[k], chunks[k].run = p, nil
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	return l.finish(true, bases[len(chunks)], 0)
}
