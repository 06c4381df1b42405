package rangestore

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
)

// story is a chain of random blocks, with several ranges of its state on one disk that can crash.
type story struct {
	rng    *rand.Rand
	fs     *vfs.MemFS
	memory int64
	keys   int
	height int64
	full   map[int64]*avlstar.Version // by height; never released before the end
	blocks map[int64][]avlstar.Change // the block that made the state of a height
	ranges []*ranged
	trail  int // versions that stay uncommitted
	// Totals of closed stores.
	pages   int64  // read
	evicted uint64 // pages
	listed  int    // states that were loaded from their page lists
}

// ranged is one range: versions from the last committed one on are in memory.
type ranged struct {
	keys      avlstar.KeyRange
	dir       string
	store     *Store
	committed int64
	versions  map[int64]*avlstar.Partial
	changes   map[int64][]avlstar.Change
}

func newStory(t *testing.T, rng *rand.Rand) *story {
	s := &story{rng: rng, fs: vfs.NewCrashableMem(), keys: 500 + rng.IntN(3000), full: map[int64]*avlstar.Version{}, blocks: map[int64][]avlstar.Change{}}
	if rng.IntN(6) == 0 {
		s.keys = 12_000 // pages leave memory with Load, and not only with Replay
	}
	s.memory = []int64{0, 0, 100_000, 1 << 30}[rng.IntN(4)]
	v, err := avlstar.Empty(uint64([]int{300, 4000, 100_000}[rng.IntN(3)]))
	require.NoError(t, err)
	s.full[0] = v
	if rng.IntN(4) > 0 {
		s.height = 1
		s.block(t, s.keys)
	}
	edges := [][]byte{nil}
	for i := range rng.IntN(4) {
		edges = append(edges, key((i+1)*s.keys/4+rng.IntN(20)))
	}
	for i, first := range edges {
		r := &ranged{keys: avlstar.KeyRange{First: first}, dir: fmt.Sprint("range", i)}
		if i+1 < len(edges) {
			r.keys.After = edges[i+1]
		}
		s.ranges = append(s.ranges, r)
	}
	m := NewMemory(s.memory)
	for _, r := range s.ranges {
		r.store = open(t, s.fs, r.dir, r.keys, m)
		_, ok := r.store.Durable()
		require.False(t, ok)
		create(t, r.store, s.height, s.full[s.height])
		r.begin(t, s)
	}
	return s
}

// block makes the state of s.height from the one before.
func (s *story) block(t *testing.T, most int) {
	changes := map[string][]byte{}
	n := s.rng.IntN(1 + most)
	if s.rng.IntN(12) == 0 {
		n = 0
	}
	for range n {
		changes[string(key(s.rng.IntN(s.keys)))] = fmt.Appendf(nil, "%d of %d %s", s.rng.Int(), s.height, strings.Repeat("x", s.rng.IntN(50)))
	}
	if s.rng.IntN(3) == 0 { // neighbors are deleted, at times a whole range
		at := s.rng.IntN(s.keys)
		for i := range []int{3, 40, s.keys}[s.rng.IntN(3)] {
			if s.rng.IntN(20) > 0 && len(changes) < s.keys/2 {
				changes[string(key(at+i))] = nil
			}
		}
	}
	var block []avlstar.Change
	for _, k := range slices.Sorted(maps.Keys(changes)) {
		block = append(block, avlstar.Change{Key: []byte(k), Value: changes[k]})
	}
	v, err := s.full[s.height-1].Apply(block)
	require.NoError(t, err)
	s.full[s.height], s.blocks[s.height] = v, block
}

// begin loads the durable state and replays all blocks since.
func (r *ranged) begin(t *testing.T, s *story) {
	height, p := load(t, r.store)
	durable, ok := r.store.Durable()
	require.True(t, ok)
	require.Equal(t, durable, height)
	if r.store.list.Known() {
		s.listed++
	}
	requireSame(t, s.rng, s.full[height], p, r.keys)
	r.committed, r.versions, r.changes = height, map[int64]*avlstar.Partial{height: p}, map[int64][]avlstar.Change{}
	for h := height + 1; h <= s.height; h++ {
		r.replay(t, s, h)
	}
}

func (r *ranged) replay(t *testing.T, s *story, h int64) {
	r.versions[h], r.changes[h] = replay(t, r.versions[h-1], s.full[h], s.full[h-1], r.keys, s.blocks[h])
}

// commit commits versions until trail are left.
func (r *ranged) commit(t *testing.T, s *story, trail int) {
	for s.height-r.committed > int64(trail) {
		h := r.committed + 1
		require.NoError(t, r.store.Commit(h, r.versions[h], r.versions[h-1], r.changes[h]))
		r.versions[h-1].Release()
		delete(r.versions, h-1)
		delete(r.changes, h)
		if r.committed = h; s.rng.IntN(2) == 0 {
			r.store.Trim(h, nil)
		}
	}
}

// read reads keys of the newest version, until all readers of the result have ended.
func (r *ranged) read(t *testing.T, s *story) *sync.WaitGroup {
	readers := new(sync.WaitGroup)
	h := s.height - 1
	p, v := r.versions[h], s.full[h]
	for range s.rng.IntN(3) {
		var keys [][]byte
		for range 20 {
			if k := key(s.rng.IntN(s.keys)); r.keys.Contains(k) {
				keys = append(keys, k)
			}
		}
		readers.Go(func() {
			for _, k := range keys {
				value, ok, err := p.Get(k)
				want, there, _ := v.Get(k)
				if err != nil || ok != there || !bytes.Equal(value, want) {
					t.Errorf("%s at height %d: %q, %t, %v; want %q, %t", k, h, value, ok, err, want, there)
				}
			}
		})
	}
	return readers
}

func (r *ranged) close(t *testing.T, s *story) {
	s.pages += r.store.Metrics().PageReads
	if s.rng.IntN(2) == 0 { // versions may outlive the store
		require.NoError(t, r.store.Close())
	}
	s.evicted += r.versions[s.height].Memory().Evicted
	for _, p := range r.versions {
		p.Release()
	}
	require.NoError(t, r.store.Close())
}

// restart opens all ranges again, after a shutdown or a power loss.
func (s *story) restart(t *testing.T) {
	crash := s.rng.IntN(2) == 0
	crashed := s.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: s.rng.IntN(101), RNG: s.rng})
	for _, r := range s.ranges {
		r.close(t, s)
	}
	if crash {
		s.fs = crashed
	}
	m := NewMemory(s.memory)
	for _, r := range s.ranges {
		r.store = open(t, s.fs, r.dir, r.keys, m)
		r.begin(t, s)
	}
}

// TestRangesEqualTheFullTree: several ranges of a tree of random blocks have the reads and proofs
// of the full tree at every height that a node serves, whatever the disk trails by, with almost no
// memory, and after shutdowns and power losses.
func TestRangesEqualTheFullTree(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	rng := seeds.Rand(t)
	pages, evicted, listed := int64(0), uint64(0), 0
	// With much memory, or few keys, no page is read or evicted.
	for n := 0; n < rounds || n < 10*rounds && (pages == 0 || evicted == 0 || listed == 0); n++ {
		s := newStory(t, rng)
		for range 100 {
			s.height++
			s.block(t, []int{3, 30, 300}[rng.IntN(3)])
			if rng.IntN(10) == 0 {
				s.trail = rng.IntN(21)
			}
			for _, r := range s.ranges {
				readers := r.read(t, s)
				r.replay(t, s, s.height)
				readers.Wait()
				r.commit(t, s, s.trail)
				if rng.IntN(5) == 0 {
					require.NoError(t, r.store.Flush(t.Context()))
					durable, _ := r.store.Durable()
					require.Equal(t, r.committed, durable)
				}
				if h := r.committed + rng.Int64N(s.height-r.committed+1); rng.IntN(4) == 0 {
					requireSame(t, rng, s.full[h], r.versions[h], r.keys)
				}
			}
			if rng.IntN(25) == 0 {
				s.restart(t)
			}
		}
		for _, r := range s.ranges {
			requireSame(t, rng, s.full[s.height], r.versions[s.height], r.keys)
			r.close(t, s)
		}
		for h := s.height; s.full[h] != nil; h-- {
			s.full[h].Release()
		}
		pages, evicted, listed = pages+s.pages, evicted+s.evicted, listed+s.listed
	}
	require.Positive(t, pages, "no page was read")
	require.Positive(t, evicted, "no page was evicted")
	require.Positive(t, listed, "no state was loaded from its page list")
	t.Logf("%d pages read, %d evicted, %d page lists", pages, evicted, listed)
}
