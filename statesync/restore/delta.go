package restore

import (
	"errors"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/starling-kv/starling/avlstar"
)

const (
	// pieceBytes limits the size of a piece. If one leaf of a 1 MiB chunk has changed, its delta
	// costs a sub-manifest of about 6 KB and one piece of at most 16 KiB.
	pieceBytes = 16 << 10
	// minDelta is the minimum size of a chunk for a delta; shorter chunks are fetched whole.
	minDelta = 4 * pieceBytes
	// rangeBytes limits the size of a range.
	rangeBytes = 512 << 10
	// deltaMemory limits the total size of the chunks being assembled.
	deltaMemory = 64 << 20
	// worthwhile is the minimum share of a chunk, in percent, that the node must have for a delta.
	// deltaPatience: once that many more deltas have failed than succeeded, no more are tried.
	// After a long time offline everything has changed.
	worthwhile    = 25
	deltaPatience = 8
)

// locals is the local data that can be reused: chunks that were verified against another manifest,
// and the node's own version.
type locals struct {
	chunks  []*avlstar.Chunk
	version *avlstar.Version
}

// chunksOf reads back the chunks that a round has accepted. It returns none if the state may exceed
// memory, since then the chunks may, too.
func chunksOf(r *round) []*avlstar.Chunk {
	if r.restorer.Paged() {
		return nil
	}
	all := make([]*avlstar.Chunk, len(r.Manifest.Entries))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for k := range all {
		g.Go(func() error {
			all[k] = r.restorer.Stored(uint32(k))
			return nil
		})
	}
	_ = g.Wait() // unreadable chunks are fetched
	return slices.DeleteFunc(all, func(c *avlstar.Chunk) bool { return c == nil })
}

// copyLocal accepts the chunks of a round that the node already has unchanged. Errors are local
// failures.
func (j *joiner) copyLocal(r *round, local locals) error {
	chunks := map[avlstar.Stub]func() ([]byte, error){}
	if v := local.version; v != nil {
		for k, e := range v.Manifest().Entries {
			chunks[e.Root] = func() ([]byte, error) { return v.Chunk(uint32(k)) }
		}
	}
	for _, c := range local.chunks {
		// Copy: Accept takes ownership of the bytes, and cuts of c refer to c's bytes.
		chunks[c.Root()] = func() ([]byte, error) { return slices.Clone(c.Bytes()), nil }
	}
	if len(chunks) == 0 {
		return nil
	}
	g, ctx := errgroup.WithContext(r.ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for k, e := range r.Manifest.Entries {
		get, has := chunks[e.Root]
		if _, missing := r.restorer.Want(uint32(k)); !has || !missing {
			continue
		}
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			data, err := get()
			if err == nil {
				_, err = r.restorer.Accept(uint32(k), data)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	j.count.there(r.Manifest, r.restorer)
	return nil
}

// deltas are the deltas of a round. For each changed chunk the sub-manifest is fetched, which the
// chunk's root proves, and then only the pieces that the node does not have.
type deltas struct {
	pieces map[avlstar.Stub]pieceRef // local pieces; constant

	// Used by the loop only.
	waiting []uint32 // chunks whose delta has not started
	active  uint64   // total size of the chunks being assembled
	good    int      // successful deltas
	poor    int      // abandoned deltas
}

// pieceRef refers to piece k of a cut.
type pieceRef struct {
	cut *avlstar.Cut
	k   uint32
}

// newDeltas indexes the local pieces. It returns nil if deltas cannot help.
func newDeltas(chunkBytes uint64, local locals) *deltas {
	if chunkBytes < minDelta || local.version == nil && len(local.chunks) == 0 {
		return nil
	}
	d := &deltas{pieces: map[avlstar.Stub]pieceRef{}}
	add := func(cut *avlstar.Cut, err error) {
		if err != nil {
			return // unreadable: ignore it
		}
		for k, e := range cut.Manifest().Entries {
			d.pieces[e.Root] = pieceRef{cut, uint32(k)}
		}
	}
	if local.version != nil {
		add(local.version.Cut(pieceBytes))
	}
	for _, c := range local.chunks {
		add(c.Cut(pieceBytes))
	}
	return d
}

// delta is a chunk being assembled.
type delta struct {
	r   *round
	k   uint32
	sub *avlstar.Manifest
	mu  struct {
		sync.Mutex
		data    []byte       // the chunk with gaps; nil before begin and after finish
		missing int          // number of missing ranges
		got     map[int]bool // received ranges, by their first piece
	}
}

// deltaAnswer is the result of a worker for a delta, which the loop handles.
type deltaAnswer struct {
	of     *delta
	ranges []*item // to fetch
	reused uint64  // bytes of the chunk that the node had
	poor   bool    // fetch the whole chunk: the node has too little of it
	done   bool    // the chunk is written
}

// begin copies the local pieces of a chunk and plans the ranges to fetch. Workers call it.
func (d *deltas) begin(it *item, sub *avlstar.Manifest) (*deltaAnswer, error) {
	entry := it.r.Manifest.Entries[it.k]
	c := &delta{r: it.r, k: it.k, sub: sub}
	a := &deltaAnswer{of: c}
	offset := uint64(0)
	refs := make([]*pieceRef, len(sub.Entries))
	for k := range sub.Entries {
		e := &sub.Entries[k]
		if ref, ok := d.pieces[e.Root]; ok {
			refs[k] = &ref
			a.reused += e.Root.Bytes
		} else if n := len(a.ranges); n > 0 && a.ranges[n-1].to == k && a.ranges[n-1].bytes+e.Root.Bytes <= rangeBytes {
			a.ranges[n-1].to++
			a.ranges[n-1].bytes += e.Root.Bytes
		} else {
			a.ranges = append(a.ranges, &item{kind: pieceRange, r: it.r, k: it.k, delta: c, from: k, to: k + 1, offset: offset, bytes: e.Root.Bytes})
		}
		offset += e.Root.Bytes
	}
	if a.reused*100 < entry.Root.Bytes*worthwhile {
		return &deltaAnswer{of: c, poor: true}, nil
	}
	data := make([]byte, 0, entry.Root.Bytes)
	for k, ref := range refs {
		e := &sub.Entries[k]
		at := len(data)
		if ref == nil {
			data = data[:uint64(at)+e.Root.Bytes]
			continue
		}
		piece, err := ref.cut.Piece(ref.k)
		if err != nil || uint64(len(piece)) != e.Root.Bytes {
			return &deltaAnswer{of: c, poor: true}, nil //nolint:nilerr // the local copy is damaged
		}
		data = append(data, piece...)
		data[at] = e.BoundaryHeight
	}
	c.mu.data, c.mu.missing, c.mu.got = data, len(a.ranges), map[int]bool{}
	if len(a.ranges) == 0 {
		return c.finish(a)
	}
	return a, nil
}

// accept verifies a range and finishes the chunk if it was the last one. It returns nil for a
// second answer. Workers call it.
func (c *delta) accept(it *item, data []byte) (*deltaAnswer, error) {
	if err := verifyPieces(c.sub, it.from, it.to, data); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.data == nil || c.mu.got[it.from] {
		return nil, nil // a second answer
	}
	copy(c.mu.data[it.offset:], data)
	c.mu.got[it.from] = true
	if c.mu.missing--; c.mu.missing > 0 {
		return &deltaAnswer{of: c}, nil
	}
	return c.finish(&deltaAnswer{of: c})
}

// finish passes the assembled chunk to the restorer, which verifies all of it again. So a damaged
// local piece does no harm: the chunk is then fetched whole. The caller holds c.mu, unless no range
// was requested.
func (c *delta) finish(a *deltaAnswer) (*deltaAnswer, error) {
	data := c.mu.data
	c.mu.data = nil
	switch _, err := c.r.restorer.Accept(c.k, data); {
	case errors.Is(err, avlstar.ErrInvalidChunk):
		return &deltaAnswer{of: c, poor: true}, nil // local pieces were damaged; no peer at fault
	case err != nil:
		return nil, err
	}
	a.done = true
	return a, nil
}

// moreDeltas starts deltas while there is memory for their chunks.
func (j *joiner) moreDeltas() {
	r := j.round
	d := r.deltas
	if d == nil {
		return
	}
	var items []*item
	for len(d.waiting) > 0 {
		k := d.waiting[0]
		bytes := r.Manifest.Entries[k].Root.Bytes
		if d.poor > d.good+deltaPatience {
			items = append(items, &item{kind: wholeChunk, r: r, k: k, bytes: bytes})
		} else if d.active == 0 || d.active+bytes <= deltaMemory {
			d.active += bytes
			items = append(items, &item{kind: subManifest, r: r, k: k, bytes: bytes - 1})
		} else {
			break
		}
		d.waiting = d.waiting[1:]
	}
	j.loop.Add(items...)
}

// deltaAnswer continues a delta with the result of a worker.
func (j *joiner) deltaAnswer(it *item, a *deltaAnswer) {
	if it.kind == subManifest && it.answered {
		return // a second answer
	}
	it.answered = true
	d := j.round.deltas
	root := j.round.Manifest.Entries[it.k].Root
	if it.kind == subManifest && !a.poor {
		j.count.progress.Reused += a.reused
		j.count.progress.BytesDone += a.reused
	}
	switch {
	case a.poor:
		d.active -= root.Bytes
		d.poor++
		j.loop.Add(&item{kind: wholeChunk, r: j.round, k: it.k, bytes: root.Bytes})
	case a.done:
		d.active -= root.Bytes
		d.good++
		j.count.progress.ChunksDone++
	}
	j.loop.Add(a.ranges...)
	j.moreDeltas()
}
