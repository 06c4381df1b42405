package rdma

import "github.com/starling-kv/starling/transport/rdma/internal/verbs"

// A path lends at least four chunks of the default length, and at most what a fast peer's
// requests fill.
const (
	leastUnits = 16
	mostUnits  = 128
)

// unitsFor returns how many units each path lends, so that all peers can have a path in each
// direction. If the memory is too small for leastUnits per peer, only some peers get paths.
func unitsFor(memory int64, peers int) int {
	share := memory / int64(max(peers, 1))
	return int(min(max((share-perPeer(0))/unit, leastUnits), mostUnits))
}

// perPeer returns the memory of a path to a peer with that many units and of one from it, in bytes.
func perPeer(units int) int64 {
	to, from := lendingSizes(units), writerSizes(defaultWindow)
	return int64(to.Lent + to.Own + from.Lent + from.Own)
}

// lendingSizes returns the sizes of a dialer's queue. Each lent unit may be written with one
// immediate, and the greeting needs one receive more.
func lendingSizes(units int) verbs.Sizes {
	return verbs.Sizes{Lent: units * unit, Own: bodies * bodyUnit, Writes: bodies + 1, Receives: units + 1}
}

// writerSizes returns the sizes of a server's queue.
func writerSizes(window int) verbs.Sizes {
	return verbs.Sizes{Lent: bodies * bodyUnit, Own: window * unit, Writes: window + 1, Receives: bodyReceives + 1}
}

// places allocates the units of lent memory. A slot takes the first free run of adjacent units.
type places struct {
	taken []bool
	last  int // last round
}

func newPlaces(units int) *places { return &places{taken: make([]bool, units)} }

// take reserves n adjacent units and returns the first; false: there is no such run.
func (p *places) take(n int) (first, round int, ok bool) {
	run := 0
	for i, taken := range p.taken {
		if run++; taken {
			run = 0
		}
		if run == n {
			first = i + 1 - n
			for j := range n {
				p.taken[first+j] = true
			}
			p.last = (p.last + 1) % rounds
			return first, p.last, true
		}
	}
	return 0, 0, false
}

func (p *places) giveBack(first, n int) {
	for i := range n {
		p.taken[first+i] = false
	}
}
