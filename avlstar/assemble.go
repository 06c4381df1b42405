package avlstar

import (
	"fmt"
	"runtime"
	"sync"
)

// Assembler joins the chunks of a manifest, as they arrive, into the version that the manifest
// describes. The position of a chunk in the tree is known when all chunks before it have arrived.
// The chunk is then copied by a goroutine that adds chunks or, at the end, by one of as many
// goroutines as there are cores. Add may be called concurrently.
//
//	Add(k) ──► waiting for those before it ──► ready: position known ──► placed: copied, then freed
//	                                              └── Add places some, Finish the rest
type Assembler struct {
	// Free takes back the bytes of each chunk that was copied. Add and Finish call it concurrently.
	// If it is nil, the bytes are left to the garbage collector.
	Free func(chunk []byte)

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

// readyChunk is a chunk whose position is known.
type readyChunk struct {
	k    int
	base uint64
}

// placesPerAdd is the number of chunks that an Add copies: one to make up for its own, and one of
// those that had to wait.
const placesPerAdd = 2

// NewAssembler begins to assemble the version that m describes. Manifest.Commitment should have
// accepted m; otherwise Finish may fail.
func NewAssembler(m *Manifest) *Assembler {
	a := &Assembler{m: m, l: newLoader(m.ChunkBytes)}
	for range m.Entries {
		a.l.placed.add(placed{})
	}
	a.mu.chunks = make([]*Chunk, len(m.Entries))
	return a
}

// Add takes chunk k, which must have been verified against this manifest, or against another
// manifest with the same chunk. The chunk becomes part of the tree: from then on, c.Leaves yields
// nothing.
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
		return fmt.Errorf("%w %d: already added", ErrInvalidChunk, k)
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

// advance marks chunks as ready when all chunks before them are present. The caller holds a.mu.
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

// place copies one ready chunk. It returns false if none is ready or on an error, which it also
// stores in a.mu.err.
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
	if err == nil {
		data := c.run.data
		c.run.done()
		if a.Free != nil {
			a.Free(data)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.mu.err = err
		return false, err
	}
	*a.l.placed.at(r.k), c.run = p, nil
	return true, nil
}

// Finish returns the version. All chunks must have been added, and no Add may be running. The
// Assembler cannot be used afterwards.
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
			for {
				if more, err := a.place(); !more || err != nil { // the error is in a.mu.err
					return
				}
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

// Assemble joins all chunks of m into the version that m describes. It fails if a chunk is missing
// (nil) or is not the one that m lists. The version has memory of its own. The chunks are emptied
// as they are copied, so they can be used only once.
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
	if _, err := m.Commitment(); err != nil { // check before a chunk is emptied
		return nil, err
	}
	return a.Finish()
}
