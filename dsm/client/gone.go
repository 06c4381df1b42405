package client

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
)

// Gone reports that a part of a state is no longer available: no node served the request, and all
// replicas of the range claim only later heights. Claims are hints, but they cover all nodes that
// could help, and a replica never regains an older state.
type Gone struct {
	Range  avlstar.KeyRange
	Height int64 // of the state
	Oldest int64 // the least height that a replica answers
	Since  time.Time
}

// maxGone limits how many heights are recorded, since queries of old states are recorded too.
const maxGone = 64

// gone records the states that are no longer available, by range and height.
type gone struct {
	mu   sync.Mutex
	all  map[goneKey]Gone
	last map[goneKey]time.Time // when it was last found to be gone
}

type goneKey struct {
	first  string // key of the range
	height int64
}

// remove records that a node served a part of the state.
func (g *gone) remove(height int64, r avlstar.KeyRange) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := goneKey{string(r.First), height}
	delete(g.all, key)
	delete(g.last, key)
}

// add records that a state is no longer available.
func (g *gone) add(height int64, r avlstar.KeyRange, oldest int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil {
		g.all, g.last = map[goneKey]Gone{}, map[goneKey]time.Time{}
	}
	now, key := time.Now(), goneKey{string(r.First), height}
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

// Gone reports whether a part of the state after block height was unavailable when it was last
// requested. If several ranges were, it returns the first of them.
func (c *Client) Gone(height int64) (found Gone, ok bool) {
	c.gone.mu.Lock()
	defer c.gone.mu.Unlock()
	for _, key := range slices.SortedFunc(maps.Keys(c.gone.all), func(a, b goneKey) int { return cmp.Compare(a.first, b.first) }) {
		if key.height == height {
			return c.gone.all[key], true
		}
	}
	return found, false
}
