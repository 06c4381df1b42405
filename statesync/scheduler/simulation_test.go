package scheduler

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	worldSeed  = flag.Uint64("world.seed", 0, "run only this world of TestWorlds, and log its events")
	worldCount = flag.Int("world.count", worlds, "number of worlds that TestWorlds runs")
	worldFirst = flag.Uint64("world.first", 1, "seed of the first one; the others follow")
)

// TestWorlds runs random worlds with peers of every behaviour. After each step it checks that the
// counters are right, that only verified data is written, that no honest peer is banned, that a new
// peer has one request, and that memory stays within its budget. Every world with an honest peer
// must end. Use -world.count=100000 to run more worlds.
func TestWorlds(t *testing.T) {
	if *worldSeed != 0 {
		w, limit := randomWorld(*worldSeed)
		w.trace = t.Logf
		require.NoError(t, w.run(limit))
		return
	}
	var steps int
	var worst float64
	var worstSeed uint64
	for seed := *worldFirst; seed < *worldFirst+uint64(*worldCount); seed++ {
		w, limit := randomWorld(seed)
		if err := w.run(limit); err != nil {
			t.Fatalf("seed %d: %v\nto repeat: go test ./statesync/scheduler -run 'TestWorlds$' -v -world.seed=%d", seed, err, seed)
		}
		steps += w.steps
		if share := float64(w.now) / float64(limit); share > worst {
			worst, worstSeed = share, seed
		}
	}
	t.Logf("%d worlds, %d steps; seed %d came nearest its limit: %.0f %%", *worldCount, steps, worstSeed, 100*worst)
}

// between returns a random number whose logarithm is uniformly distributed.
func between(rng *rand.Rand, lo, hi float64) uint64 {
	return uint64(lo * math.Exp(rng.Float64()*math.Log(hi/lo)))
}

// randomWorld returns a world in which each item has at least one honest peer that stays, and a
// limit for the time that it takes.
func randomWorld(seed uint64) (w *world, limit time.Duration) {
	rng := rand.New(rand.NewPCG(seed, 1))
	maxItem := float64(between(rng, 100, 1_000_000))
	l := limits{
		memory: int64(between(rng, maxItem/2, maxItem*300)), perPeer: 1 + rng.IntN(20), copies: 1 + rng.IntN(4),
	}
	w = newWorld(seed, l)
	w.segments = 1 + rng.IntN(4)
	w.verify = time.Duration(rng.Int64N(int64(20 * time.Millisecond)))
	w.write = time.Duration(rng.Int64N(int64(20 * time.Millisecond)))
	if rng.IntN(2) == 0 {
		w.downRate = between(rng, 1e5, 1e9)
	}
	size := func(int) (uint64, bool) { return between(rng, 4, maxItem), rng.IntN(10) > 0 }
	prunes := rng.IntN(4) == 0
	items := w.addItems(int(between(rng, 1, 80)), size)

	slowest, farthest := randomPeers(rng, w, prunes)
	w.after(time.Duration(rng.Int64N(int64(time.Second))), func() error { return w.step(Add{items}) })
	if prunes {
		second := w.addItems(len(items), size)
		for _, it := range second {
			w.items[it.ID].dropped = true // not added yet
		}
		w.retargetAfter(15*time.Second, func() { retarget(rng, w, second) })
	}

	// In the worst case, peers take turns at the only memory there is, each time for twice as long,
	// until the slowest honest peer gets through. Peers that trickle get four times as many turns
	// as one that does not report progress.
	work, longest := time.Duration(0), time.Duration(0)
	for _, it := range w.items {
		took := timeFor(it.Bytes, slowest) + farthest + w.verify + w.write
		if w.downRate > 0 {
			took += timeFor(it.Bytes, w.downRate)
		}
		work, longest = work+took, max(longest, took)
	}
	return w, 10*time.Minute + time.Duration(len(w.peers))*(2*time.Minute+16*longest) + 30*work
}

// randomPeers adds peers. At least one of them, or in a sharded world one per shard, is honest and
// stays. It returns the minimum rate and the maximum latency of the honest peers. prunes: they drop
// the first group midway.
func randomPeers(rng *rand.Rand, w *world, prunes bool) (slowest uint64, farthest time.Duration) {
	n := int(between(rng, 1, 101))
	honestOnes := 1 + rng.IntN(n)
	if rng.IntN(3) == 0 {
		honestOnes = 1
	}
	shards := 1
	if rng.IntN(3) == 0 {
		shards = 1 + rng.IntN(5)
		n += shards - 1
		honestOnes += shards - 1
	}
	only := behaviour(1 + rng.IntN(int(behaviours)-1)) // for the others
	mixed := rng.IntN(2) == 0
	slowest = math.MaxUint64
	for i := range n {
		p := &simPeer{
			rate: between(rng, 1e3, 1e8), latency: time.Duration(between(rng, 1e5, 5e8)), loyal: 1 + rng.IntN(10),
			groups: []Group{1, 2},
		}
		switch {
		case i < honestOnes && prunes:
			p.is, p.groups = pruning, []Group{1}
		case i < honestOnes && rng.IntN(5) == 0 && i >= shards:
			p.is = moody
		case i < honestOnes:
			p.is = honest
		case mixed:
			p.is = behaviour(1 + rng.IntN(int(behaviours)-1))
		default:
			p.is = only
		}
		if p.is == pruning {
			p.groups = []Group{1}
		}
		if shards > 1 {
			p.spans = randomParts(rng, len(w.items), shards, i)
		}
		if i < honestOnes {
			slowest, farthest = min(slowest, p.rate), max(farthest, p.latency)
		}
		p.id = PeerID(fmt.Sprintf("%02d-%s", rng.IntN(100), names[p.is]))
		for _, q := range w.peers {
			if q.id == p.id {
				p.id += PeerID(fmt.Sprintf("-%d", i))
			}
		}
		w.peers = append(w.peers, p)
		w.after(time.Duration(rng.Int64N(int64(time.Second))), func() error {
			p.life(w)
			return w.connect(p)
		})
	}
	return slowest, farthest
}

// randomParts returns what peer number i of a sharded world has: the first peers have one shard
// each, the others everything or random spans. An honest peer must not be asked for anything else.
func randomParts(rng *rand.Rand, items, shards, i int) (spans []Span) {
	edge := func(shard int) uint32 { return uint32(items * shard / shards) }
	switch {
	case i < shards && edge(i) < edge(i+1):
		return []Span{{edge(i), edge(i + 1)}}
	case rng.IntN(3) == 0:
		return nil
	}
	for at := uint32(0); at < uint32(items)+10; {
		from := at + rng.Uint32N(uint32(items)/2+1)
		at = from + 1 + rng.Uint32N(uint32(items)/2+1)
		spans = append(spans, Span{from, at})
		at++
	}
	return spans
}

// retarget replaces the first group by the items of the second, in either order.
func retarget(rng *rand.Rand, w *world, second []Item) {
	for _, it := range second {
		w.items[it.ID].dropped = false
	}
	order := []func() error{
		func() error { return w.drop(1) },
		func() error { return w.step(Add{second}) },
	}
	if rng.IntN(2) == 0 {
		order[0], order[1] = order[1], order[0]
	}
	w.after(0, order[0])
	w.after(0, order[1])
}
