package sgc

// ghosts remembers the last evictions of a zone, a window over the stream of evicted bytes:
//
//	     dropped │ ◄──────────── limit ────────────► │
//	─────────────┼───────┬──────────────┬────────────┤ evicted: bytes evicted so far
//	             │       │              │            │
//	             head    ghost at ──────┴─── depth ──┤
//
// The depth of a ghost is how many bytes were evicted since, so how much longer the list would have
// to be to hold the entry still.
type ghosts struct {
	limit   int64
	evicted int64
	index   map[uint64]uint64 // hash -> sequence number
	first   uint64            // sequence number of ring[head]
	head    int
	ring    []ghost
}

type ghost struct {
	hash uint64
	at   int64 // evicted before it; negative (-1-at) once it was hit
}

func (g *ghosts) init(limit int64) {
	g.limit = limit
	g.index = map[uint64]uint64{}
}

func (g *ghosts) add(hash uint64, size int64) {
	g.index[hash] = g.first + uint64(len(g.ring)-g.head)
	g.ring = append(g.ring, ghost{hash, g.evicted})
	g.evicted += size
	for g.head < len(g.ring) && g.evicted-g.ring[g.head].place() > g.limit {
		if old := g.ring[g.head].hash; g.index[old] == g.first {
			delete(g.index, old)
		}
		g.head++
		g.first++
	}
	if g.head > len(g.ring)/2 { // each ghost is copied less than once on average
		g.ring = g.ring[:copy(g.ring, g.ring[g.head:])]
		g.head = 0
	}
}

// hit returns the depth of a ghost, the first time that it is asked for.
func (g *ghosts) hit(hash uint64) (depth int64, ok bool) {
	seq, ok := g.index[hash]
	if !ok {
		return 0, false
	}
	gh := &g.ring[g.head+int(seq-g.first)]
	if gh.at < 0 {
		return 0, false
	}
	depth = g.evicted - gh.at
	gh.at = -1 - gh.at
	return depth, true
}

func (g *ghosts) remove(hash uint64) bool {
	_, ok := g.index[hash]
	delete(g.index, hash)
	return ok
}

func (gh ghost) place() int64 {
	if gh.at < 0 {
		return -1 - gh.at
	}
	return gh.at
}
