package sgc

// ghosts remembers the last evictions of a zone, as a window over the stream of evicted bytes:
//
//	     dropped │ ◄──────────── limit ────────────► │
//	─────────────┼───────┬──────────────┬────────────┤ evicted: bytes evicted so far
//	             │       │              │            │
//	             first   ghost at ──────┴─── depth ──┤
//
// The depth of a ghost is the number of bytes evicted since: the additional list length that would
// still hold the entry.
type ghosts struct {
	limit   int64
	evicted int64
	index   index // of the live ghosts, by the low halves of their numbers
	// The ghosts in the window have the numbers [first, next). chunks[0] begins with number base.
	base, first, next uint64
	chunks            []*[chunk]ghost
}

// ghost is an eviction. If two keys have the same hash, one is mistaken for the other, which moves
// the budget by at most one step.
type ghost struct {
	hash  uint32
	chain uint32
	at    int64 // bytes evicted before it, times four, plus the flags
}

const (
	ghostHit  = 1 << iota // a miss has been counted
	ghostDead             // no longer in the index
	flagBits  = iota
)

func (gh *ghost) place() int64 { return gh.at >> flagBits }

func (g *ghosts) init(limit int64) {
	*g = ghosts{limit: limit}
	g.index.init()
}

// number returns the number of a live ghost from its low half. The window is shorter than 1<<32.
func (g *ghosts) number(i uint32) uint64 { return g.first + uint64(i-uint32(g.first)) }

func (g *ghosts) at(number uint64) *ghost {
	from := number - g.base
	return &g.chunks[from/chunk][from%chunk]
}

func (g *ghosts) hashOf(i uint32) uint32  { return g.at(g.number(i)).hash }
func (g *ghosts) linkOf(i uint32) *uint32 { return &g.at(g.number(i)).chain }

// find returns a live ghost and the low half of its number, or none.
func (g *ghosts) find(hash uint32) (*ghost, uint32) {
	for i := g.index.first(hash); i != none; {
		gh := g.at(g.number(i))
		if gh.hash == hash {
			return gh, i
		}
		i = gh.chain
	}
	return nil, none
}

func (g *ghosts) push(gh ghost) {
	if g.next-g.base == uint64(len(g.chunks))*chunk {
		g.chunks = append(g.chunks, new([chunk]ghost))
	}
	g.next++
	*g.at(g.next - 1) = gh
}

func (g *ghosts) add(hash uint32, size int64) {
	g.remove(hash)
	if uint32(g.next) == none { // skip the number that means none
		g.push(ghost{at: g.evicted<<flagBits | ghostDead})
	}
	i := uint32(g.next)
	g.push(ghost{hash: hash, at: g.evicted << flagBits})
	g.index.add(g, i)
	g.evicted += size
	for g.first < g.next && g.evicted-g.at(g.first).place() > g.limit {
		if g.at(g.first).at&ghostDead == 0 {
			g.index.remove(g, uint32(g.first))
		}
		if g.first++; g.first-g.base == chunk {
			g.chunks[0] = nil
			g.chunks, g.base = g.chunks[1:], g.first
		}
	}
}

// hit returns the depth of a ghost on its first hit.
func (g *ghosts) hit(hash uint32) (depth int64, ok bool) {
	gh, _ := g.find(hash)
	if gh == nil || gh.at&ghostHit != 0 {
		return 0, false
	}
	gh.at |= ghostHit
	return g.evicted - gh.place(), true
}

func (g *ghosts) remove(hash uint32) bool {
	gh, i := g.find(hash)
	if gh == nil {
		return false
	}
	g.index.remove(g, i)
	gh.at |= ghostDead
	return true
}
