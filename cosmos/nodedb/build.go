package nodedb

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// Finish makes the database. All chunks must be installed. After an error or a crash, call Finish
// again with another Tables.
//
//	chunks in key order ─▶ fast index                                  runs in this order
//	                    └▶ nodes, by version in each chunk ─▶ pieces   sorted by version and nonce ─▶ runs
//
// Nonces ascend with places, and therefore with chunks, so pieces of chunks are sorted instead of
// nodes.
func (s *Spool) Finish(t Tables) error {
	if n := len(s.Missing()); n > 0 {
		return fmt.Errorf("finish: %d chunks are missing", n)
	}
	b := building{Spool: s, t: t, placed: make([]*Placed, s.m.Chunks()), begun: map[int]bool{}}
	from := nodeAt{}
	for _, to := range s.borders() {
		if err := b.pass(from, to); err != nil {
			return fmt.Errorf("finish: %w", err)
		}
		from = to
	}
	if err := t.Commit(s.last()); err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	return nil
}

func (a nodeAt) compare(b nodeAt) int {
	return cmp.Or(cmp.Compare(a.store, b.store), cmp.Compare(a.version, b.version), cmp.Compare(a.nonce, b.nonce))
}

// borders returns the ends of the passes. The last end is after all nodes.
func (s *Spool) borders() (ends []nodeAt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	memory := s.MemoryBytes
	if memory <= 0 {
		memory = DefaultSpoolMemory
	}
	slices.SortFunc(s.some, nodeAt.compare)
	passes := int(s.bytes/memory) + 1
	for i := 1; i < passes && len(s.some) > 0; i++ {
		end := s.some[i*len(s.some)/passes]
		if n := len(ends); n == 0 || ends[n-1].compare(end) < 0 {
			ends = append(ends, end)
		}
	}
	return append(ends, nodeAt{store: math.MaxInt})
}

// building is the state of one Finish.
type building struct {
	*Spool
	t      Tables
	placed []*Placed // by chunk; complete after the first pass

	mu     sync.Mutex
	pieces []piece      // pieces of this pass; guarded by mu
	heads  map[int]bool // indexes of the pieces that are the first of their stores
	begun  map[int]bool // stores with a piece in an earlier pass
}

// piece is a run of nodes of one version with ascending nonces. No other node sorts between them.
type piece struct {
	at nodeAt
	b  []byte // (nonce:4 ‖ len record:4 ‖ record) × n
}

// pass writes the nodes in [from, to). The first pass also writes the fast index.
func (b *building) pass(from, to nodeAt) error {
	first := from == nodeAt{}
	b.pieces = nil
	groups := b.groups()
	err := parallel(len(groups), func(g int) error { return b.group(groups[g], first, from, to) })
	if err == nil {
		err = b.above(from, to)
	}
	if err != nil {
		return err
	}
	slices.SortFunc(b.pieces, func(a, b piece) int { return a.at.compare(b.at) })
	b.heads = map[int]bool{}
	for i := range b.pieces {
		if store := b.pieces[i].at.store; !b.begun[store] {
			b.begun[store], b.heads[i] = true, true
		}
	}
	spans := b.spans()
	return parallel(len(spans), func(i int) error { return b.nodes(spans[i]) })
}

// groups returns ranges of chunks, each within one store, several for each processor.
func (b *building) groups() (groups [][2]int) {
	most := max(1, b.m.Chunks()/(4*runtime.GOMAXPROCS(0)))
	for i := range b.m.Stores {
		start, n := b.start[i], len(b.m.Stores[i].Entries)
		for k := 0; k < n; k += most {
			groups = append(groups, [2]int{start + k, start + min(n, k+most)})
		}
	}
	return groups
}

func (b *building) group(g [2]int, first bool, from, to nodeAt) (err error) {
	var run Run
	one := first && to.store == math.MaxInt // the only pass needs all nodes of a chunk
	if first {
		if run, err = b.t.Run(); err != nil {
			return err
		}
	}
	for k := g[0]; k < g[1]; k++ {
		w := pieceWriter{from: from, to: to}
		p, err := b.chunk(k, func(i int, at int64, c *iavlsync.Chunk) (*Placed, error) {
			if run != nil {
				if err := b.fastIndex(run, i, c); err != nil {
					return nil, err
				}
			}
			w.end()
			if one {
				w.grow(c)
			}
			return b.subtree(&w, i, at, c)
		}, func(i int, image *iavlsync.Image, left, right *Placed) (*Placed, error) {
			n := iavlsync.Inner{Hash: image.Hash(), Size: image.Size, Version: image.Version, Height: image.Height}
			w.end()
			return b.inner(&w, i, &n, left, right)
		})
		if err != nil {
			return fmt.Errorf("chunk %d: %w", k, err)
		}
		w.end()
		b.placed[k] = p
		b.mu.Lock()
		b.pieces = append(b.pieces, w.pieces...)
		b.mu.Unlock()
	}
	if run != nil {
		return run.Finish()
	}
	return nil
}

func (b *building) fastIndex(run Run, i int, c *iavlsync.Chunk) error {
	prefix := append(slices.Clone(b.stores[i].prefix), kindFast)
	var key, record []byte
	for j := range c.Leaves {
		leaf := &c.Leaves[j]
		key, record = append(append(key[:0], prefix...), leaf.Key...), AppendFast(record[:0], leaf.Version, leaf.Value)
		if err := run.Set(key, record); err != nil {
			return err
		}
	}
	return nil
}

// above adds the nodes above the chunks, and the records at the places of the roots.
func (b *building) above(from, to nodeAt) error {
	w := pieceWriter{from: from, to: to, alone: true}
	for i := range b.m.Stores {
		version, err := b.upperTree(&w, i, b.placed)
		if err != nil {
			return err
		}
		if root := b.reference(i, version); root != nil {
			if err := w.record(i, b.m.Height, rootNonce, func(b []byte) []byte { return append(b, root...) }); err != nil {
				return err
			}
		}
	}
	w.end()
	b.pieces = append(b.pieces, w.pieces...)
	return nil
}

// pieceWriter makes pieces of the nodes in a range. Until end is called, nodes of one version
// arrive in ascending order, except a store's root, which becomes a piece of its own.
type pieceWriter struct {
	from, to nodeAt
	alone    bool // make each node a piece
	pieces   []piece
	open     bool // the last piece may grow
	b        []byte
	start    int
}

func (w *pieceWriter) end() {
	if w.open {
		w.pieces[len(w.pieces)-1].b = w.b[w.start:len(w.b):len(w.b)]
	}
	w.open = false
}

// grow allocates space for the nodes of a subtree.
func (w *pieceWriter) grow(c *iavlsync.Chunk) {
	const heads = 90 // approximate headers of a leaf and an inner node
	size := 0
	for i := range c.Leaves {
		size += 2*len(c.Leaves[i].Key) + len(c.Leaves[i].Value) + heads
	}
	w.b = make([]byte, 0, size)
}

func (w *pieceWriter) record(store int, version int64, nonce uint32, fn func(b []byte) []byte) error {
	at := nodeAt{store, version, nonce}
	if at.compare(w.from) < 0 || at.compare(w.to) >= 0 {
		return nil
	}
	if last := len(w.pieces) - 1; !w.open || w.alone || w.pieces[last].at.version != version || w.pieces[last].at.store != store ||
		nonce == rootNonce || w.pieces[last].at.nonce == rootNonce {
		w.end()
		w.pieces, w.open, w.start = append(w.pieces, piece{at: at}), true, len(w.b)
	}
	const room = 4 // space for the length, which is set afterwards
	w.b = binary.BigEndian.AppendUint32(w.b, nonce)
	at4 := len(w.b)
	w.b = fn(append(w.b, make([]byte, room)...))
	binary.BigEndian.PutUint32(w.b[at4:], uint32(len(w.b)-at4-room))
	return nil
}

// spans returns ranges of pieces, each within one store, several for each processor.
func (b *building) spans() (spans [][2]int) {
	total := 0
	for i := range b.pieces {
		total += len(b.pieces[i].b)
	}
	most := total/(4*runtime.GOMAXPROCS(0)) + 1
	for start, size, i := 0, 0, 0; i < len(b.pieces); i++ {
		size += len(b.pieces[i].b)
		if last := i+1 == len(b.pieces); last || size >= most || b.pieces[i+1].at.store != b.pieces[i].at.store {
			spans = append(spans, [2]int{start, i + 1})
			start, size = i+1, 0
		}
	}
	return spans
}

// nodes writes a span of pieces. The version of a store's fast index precedes the store's nodes.
func (b *building) nodes(span [2]int) error {
	run, err := b.t.Run()
	if err != nil {
		return err
	}
	i := b.pieces[span[0]].at.store
	s := &b.stores[i]
	if b.heads[span[0]] {
		if err := run.Set(s.key(kindMetadata, []byte(storageVersionKey)), encodeStorageVersion(b.m.Height)); err != nil {
			return err
		}
	}
	key := s.key(kindNode, make([]byte, nodeKeyBytes))
	tail := key[len(key)-nodeKeyBytes:]
	for _, p := range b.pieces[span[0]:span[1]] {
		binary.BigEndian.PutUint64(tail, uint64(p.at.version))
		for rest := p.b; len(rest) > 0; {
			copy(tail[8:], rest[:4])
			n := 8 + binary.BigEndian.Uint32(rest[4:])
			if err := run.Set(key, rest[8:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
	}
	return run.Finish()
}
