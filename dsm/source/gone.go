package source

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/dsm"
)

// Gone says that a range's part of a state is nowhere any more: nothing came of what was asked, and
// all replicas of the range say that they answer later states only. They are hints, but of all who
// could help, and no time makes an older state of what they have.
type Gone struct {
	Range  dsm.Range
	Height int64 // of the state
	Oldest int64 // the least height that a replica answers
	Since  time.Time
}

// maxGone limits how many heights are noted: queries of old states are among them.
const maxGone = 64

// gone are the states that are nowhere, by range and height.
type gone struct {
	mu   sync.Mutex
	all  map[goneKey]Gone
	last map[goneKey]time.Time // when it was found so last
}

type goneKey struct {
	shard  int
	height int64
}

// found notes what came of a fetch: nothing was to be had if is.
func (g *gone) found(key goneKey, r dsm.Range, oldest int64, is bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !is {
		delete(g.all, key)
		delete(g.last, key)
		return
	}
	if g.all == nil {
		g.all, g.last = map[goneKey]Gone{}, map[goneKey]time.Time{}
	}
	now := time.Now()
	entry, noted := g.all[key]
	if !noted {
		entry = Gone{Range: r, Height: key.height, Since: now}
	}
	entry.Oldest = oldest
	g.all[key], g.last[key] = entry, now
	if len(g.all) > maxGone {
		first := slices.MinFunc(slices.Collect(maps.Keys(g.last)), func(a, b goneKey) int { return g.last[a].Compare(g.last[b]) })
		delete(g.all, first)
		delete(g.last, first)
	}
}

// Gone reports whether a part of the state after block height was nowhere when it was asked for
// last: that of the first such range.
func (s *Source) Gone(height int64) (found Gone, ok bool) {
	s.gone.mu.Lock()
	defer s.gone.mu.Unlock()
	for _, shard := range slices.SortedFunc(maps.Keys(s.gone.all), func(a, b goneKey) int { return cmp.Compare(a.shard, b.shard) }) {
		if shard.height == height {
			return s.gone.all[shard], true
		}
	}
	return found, false
}

// beyond reports whether all replicas of a range claim later heights only, and the least of these.
func (k *known) beyond(shard int, height int64) (oldest int64, is bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.ranges.Shard(shard)
	for _, n := range of.Replicas {
		i := slices.IndexFunc(k.mu.claims[n], func(c dsm.Claim) bool { return c.Range.Covers(of.Range) && c.Oldest > height })
		if i < 0 {
			return 0, false
		}
		if o := k.mu.claims[n][i].Oldest; oldest == 0 || o < oldest {
			oldest = o
		}
	}
	return oldest, true
}
