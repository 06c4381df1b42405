package avlstar

import (
	"fmt"
	"runtime"
	"sync"
)

// Assembler joins the chunks of a manifest to the version that it describes, while they arrive. A chunk's place in the tree is known when all
// chunks before it are there; then it is copied, by whoever adds chunks or, in the end, by all cores. Add may be called concurrently.
//
//	Add(k) ──► waiting for those before it ──► ready: its place is known ──► placed: copied, let go
//	                                              └── Add places some, Finish the rest
type Assembler struct {
	m *Manifest
	l loader

	mu struct {
		sync.Mutex
		chunks []*Chunk
		next   int    // the first chunk that is not ready
		base   uint64 // leaves before it
		last   []byte // the greatest key before it
		ready  []readyChunk
		err    error
	}
	placing sync.WaitGroup
}

// readyChunk is a chunk whose place is known.
type readyChunk struct {
	k    int
	base uint64
}

// placesPerAdd is how many chunks an Add copies: one for its own, and one to catch up with those that had to wait.
const placesPerAdd = 2

// NewAssembler begins to assemble the version that m describes, which should be a proper one (see Commitment): else Finish fails.
func NewAssembler(m *Manifest) *Assembler {
	a := &Assembler{m: m, l: newLoader(m.ChunkBytes)}
	a.l.placed = make([]placed, len(m.Entries))
	a.mu.chunks = make([]*Chunk, len(m.Entries))
	return a
}

// Add takes chunk k, which must have been verified against this manifest, or one in which it is the same. From then on the chunk has no
// leaves any more for others: it becomes part of the tree.
func (a *Assembler) Add(k uint32, c *Chunk) error {
	if err := a.add(k, c); err != nil {
		return err
	}
	for range placesPerAdd {
		if more, err := a.place(); !more {
			return err
		}
	}
	return nil
}

func (a *Assembler) add(k uint32, c *Chunk) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.err != nil {
		return a.mu.err
	}
	switch {
	case int64(k) >= int64(len(a.mu.chunks)):
		return fmt.Errorf("%w %d: the manifest has %d", ErrInvalidChunk, k, len(a.mu.chunks))
	case c == nil:
		return fmt.Errorf("%w %d: it is missing", ErrInvalidChunk, k)
	case a.mu.chunks[k] != nil:
		return fmt.Errorf("%w %d: it was added before", ErrInvalidChunk, k)
	case c.run == nil:
		return fmt.Errorf("%w %d: it is part of another tree already", ErrInvalidChunk, k)
	}
	if e := &a.m.Entries[k]; c.root != e.Root || k > 0 && c.run.first != e.FirstKeyHash {
		return fmt.Errorf("%w %d: it was verified against another manifest", ErrInvalidChunk, k)
	}
	a.mu.chunks[k] = c
	a.mu.err = a.advance()
	return a.mu.err
}

// advance makes ready what has all before it. The caller holds a.mu.
func (a *Assembler) advance() error {
	for ; a.mu.next < len(a.mu.chunks) && a.mu.chunks[a.mu.next] != nil; a.mu.next++ {
		k, run := a.mu.next, a.mu.chunks[a.mu.next].run
		if k > 0 && string(run.leaf(0).Key) <= string(a.mu.last) {
			return fmt.Errorf("%w: entry %d: key %s does not ascend", ErrInvalidManifest, k, abbreviate(run.leaf(0).Key))
		}
		a.mu.last = append(a.mu.last[:0], run.leaf(run.len()-1).Key...)
		a.mu.ready = append(a.mu.ready, readyChunk{k, a.mu.base})
		a.mu.base += uint64(run.len())
	}
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return a.l.reserve(a.mu.base)
}

// place copies one chunk whose place is known; false if there is none, or it could not.
func (a *Assembler) place() (bool, error) {
	a.mu.Lock()
	if len(a.mu.ready) == 0 || a.mu.err != nil {
		defer a.mu.Unlock()
		return false, a.mu.err
	}
	r := a.mu.ready[0]
	a.mu.ready = a.mu.ready[1:]
	c := a.mu.chunks[r.k]
	a.placing.Add(1)
	a.mu.Unlock()
	defer a.placing.Done()
	p, err := a.l.place(c.run, uint32(r.base), a.m.Entries[r.k].BoundaryHeight)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.mu.err = err
		return false, err
	}
	a.l.placed[r.k], c.run = p, nil
	return true, nil
}

// Finish returns the version, when all chunks were added and no Add is under way. The Assembler is of no use afterwards.
func (a *Assembler) Finish() (*Version, error) {
	a.mu.Lock()
	next, n, err := a.mu.next, len(a.mu.chunks), a.mu.err
	a.mu.Unlock()
	if err == nil && next < n {
		return nil, fmt.Errorf("%w %d: it is missing", ErrInvalidChunk, next)
	}
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for more := true; more; more, _ = a.place() {
			}
		})
	}
	wg.Wait()
	a.placing.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.err != nil {
		return nil, a.mu.err
	}
	return a.l.finish(true, a.mu.base, 0)
}

// Assemble joins all chunks of m to the version that m describes. It fails where a chunk is missing (nil) or is not that of m. Its
// memory is the tree's own; as it goes, the chunks let go of what they refer to, so that they can be used once only.
func Assemble(m *Manifest, chunks []*Chunk) (*Version, error) {
	if len(chunks) != len(m.Entries) {
		return nil, fmt.Errorf("%w: %d chunks, the manifest has %d", ErrInvalidChunk, len(chunks), len(m.Entries))
	}
	if err := checkChunkBytes(m.ChunkBytes); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidManifest, err)
	}
	a := NewAssembler(m)
	for k, c := range chunks {
		if err := a.add(uint32(k), c); err != nil {
			return nil, err
		}
	}
	if _, err := m.Commitment(); err != nil { // before anything is taken from a chunk
		return nil, err
	}
	return a.Finish()
}
