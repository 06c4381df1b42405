package fastsync

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync/scheduler"
)

const (
	// pieceBytes is the limit of a piece: a changed chunk of 1 MiB costs a manifest of some 6 KB, and then 16 KiB or less for each changed leaf.
	pieceBytes = 16 << 10
	// minDelta: chunks below that are fetched whole.
	minDelta = 4 * pieceBytes
	// rangeBytes is how much is asked for at once.
	rangeBytes = 512 << 10
	// deltaMemory bounds the chunks that are being put together.
	deltaMemory = 64 << 20
	// worthwhile is the share of a chunk, in percent, that must be there already; patience is how many chunks in which it is not, more
	// than those in which it is, end the trying: after a long time offline all has changed.
	worthwhile    = 25
	deltaPatience = 8
)

// locals is what a node has of the state: chunks that were verified against another manifest, a version of its own.
type locals struct {
	chunks  []*avlstar.Chunk
	version *avlstar.Version
}

// chunksOf reads back the chunks that a round has accepted, where the state is to be in memory anyway.
func chunksOf(r *round) []*avlstar.Chunk {
	if r.restorer.Paged() {
		return nil
	}
	all := make([]*avlstar.Chunk, len(r.manifest.Entries))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for k := next.Add(1) - 1; k < int64(len(all)); k = next.Add(1) - 1 {
				all[k] = r.restorer.Stored(uint32(k))
			}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(all, func(c *avlstar.Chunk) bool { return c == nil })
}

// copyLocal takes over the chunks that are the same.
func (j *joiner) copyLocal(r *round, local locals) error {
	chunks := map[avlstar.Stub]func() ([]byte, error){}
	if v := local.version; v != nil {
		for k, e := range v.Manifest().Entries {
			chunks[e.Root] = func() ([]byte, error) { return v.Chunk(uint32(k)) }
		}
	}
	for _, c := range local.chunks {
		chunks[c.Root()] = func() ([]byte, error) { return c.Bytes(), nil }
	}
	if len(chunks) == 0 {
		return nil
	}
	var (
		next   atomic.Int64
		failed atomic.Pointer[error]
		wg     sync.WaitGroup
	)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for k := next.Add(1) - 1; k < int64(len(r.manifest.Entries)) && failed.Load() == nil && r.ctx.Err() == nil; k = next.Add(1) - 1 {
				get, has := chunks[r.manifest.Entries[k].Root]
				if _, missing := r.restorer.Want(uint32(k)); !has || !missing {
					continue
				}
				data, err := get()
				if err == nil {
					_, err = r.restorer.Accept(uint32(k), data)
				}
				if err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	j.count.there(r.manifest, r.restorer)
	return r.ctx.Err()
}

// deltas brings changed chunks up to date by the pieces that differ: first the sub-manifest of a chunk, proved by the chunk's root, then
// only the pieces that are nowhere in what the node has.
type deltas struct {
	pieces map[avlstar.Stub]pieceRef

	// owned by the loop:
	waiting []uint32 // chunks whose delta has not begun
	active  uint64   // bytes of the chunks whose delta has
	good    int
	poor    int
}

type pieceRef struct {
	cut *avlstar.Cut
	k   uint32
}

// newDeltas returns nil where there is nothing to gain.
func newDeltas(chunkBytes uint64, local locals) *deltas {
	if chunkBytes < minDelta || local.version == nil && len(local.chunks) == 0 {
		return nil
	}
	d := &deltas{pieces: map[avlstar.Stub]pieceRef{}}
	add := func(cut *avlstar.Cut, err error) {
		if err != nil {
			return // not to be had: as if it were not there
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

// delta is a chunk that is being put together.
type delta struct {
	r   *round
	k   uint32
	sub *avlstar.Manifest
	mu  struct {
		sync.Mutex
		data    []byte       // of the chunk
		missing int          // ranges
		got     map[int]bool // ranges, by the first piece
	}
}

// deltaAnswer tells the loop what came of an answer.
type deltaAnswer struct {
	of     *delta
	ranges []*item // to ask for
	reused uint64  // bytes of the chunk that were there
	poor   bool    // too little of the chunk was there: it is to be fetched whole
	done   bool    // the chunk is written
}

// begin copies what is there of a chunk and finds what is missing. It runs in a worker.
func (d *deltas) begin(it *item, sub *avlstar.Manifest) (*deltaAnswer, error) {
	entry := it.r.manifest.Entries[it.k]
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
			return &deltaAnswer{of: c, poor: true}, nil //nolint:nilerr // our own copy is of no use: the peer's is
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

// accept verifies the pieces of a range and, when they were the last, the chunk. It runs in a worker.
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

// finish hands the whole chunk over. All of it is verified once more, so that a piece of ours that has rotted does no harm: the chunk is
// then fetched whole.
func (c *delta) finish(a *deltaAnswer) (*deltaAnswer, error) {
	data := c.mu.data
	c.mu.data = nil
	switch _, err := c.r.restorer.Accept(c.k, data); {
	case errors.Is(err, avlstar.ErrInvalidChunk):
		return &deltaAnswer{of: c, poor: true}, nil // not the peer's fault
	case err != nil:
		return nil, err
	}
	a.done = true
	return a, nil
}

// plan adds an item for each missing chunk: itself, or its sub-manifest where a delta may help.
func (j *joiner) plan(r *round) {
	var items []*item
	for k := range r.manifest.Entries {
		bytes, missing := r.restorer.Want(uint32(k))
		switch {
		case !missing:
		case r.deltas != nil && bytes >= minDelta:
			r.deltas.waiting = append(r.deltas.waiting, uint32(k))
		default:
			items = append(items, &item{kind: wholeChunk, r: r, k: uint32(k), bytes: bytes})
		}
	}
	j.add(items...)
	j.moreDeltas()
	j.done = r.restorer.Missing() == 0
}

// moreDeltas begins deltas as long as there is memory for the chunks.
func (j *joiner) moreDeltas() {
	r := j.round
	d := r.deltas
	if d == nil {
		return
	}
	var items []*item
	for len(d.waiting) > 0 {
		k := d.waiting[0]
		bytes := r.manifest.Entries[k].Root.Bytes
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
	j.add(items...)
}

// deltaAnswer goes on with a delta.
func (j *joiner) deltaAnswer(it *item, a *deltaAnswer) {
	if it.kind == subManifest && it.answered {
		return // a second answer
	}
	it.answered = true
	d := j.round.deltas
	root := j.round.manifest.Entries[it.k].Root
	if it.kind == subManifest && !a.poor {
		j.count.progress.Reused += a.reused
		j.count.progress.BytesDone += a.reused
	}
	switch {
	case a.poor:
		d.active -= root.Bytes
		d.poor++
		j.add(&item{kind: wholeChunk, r: j.round, k: it.k, bytes: root.Bytes})
	case a.done:
		d.active -= root.Bytes
		d.good++
		j.count.progress.ChunksDone++
	}
	j.add(a.ranges...)
	j.moreDeltas()
}

// add gives items to the scheduler.
func (j *joiner) add(items ...*item) {
	if len(items) == 0 {
		return
	}
	list := make([]scheduler.Item, 0, len(items))
	for _, it := range items {
		j.next++
		j.items[j.next] = it
		list = append(list, scheduler.Item{ID: j.next, Group: it.r.group, Bytes: it.bytes, Exact: it.exact()})
	}
	j.step(scheduler.Add{Items: list})
}
