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
	worldSeed  = flag.Uint64("world.seed", 0, "run this world of TestWorlds only, and tell what happens")
	worldCount = flag.Int("world.count", worlds, "how many worlds TestWorlds runs")
	worldFirst = flag.Uint64("world.first", 1, "seed of the first one; the others follow")
)

// TestWorlds runs random worlds with peers of every behaviour, and checks after every step that the
// books are right, that nothing is written but what was verified, that no honest peer is banned,
// that a new peer has one request, that memory is within its budget; and that every world ends
// while one honest peer is there. -world.count=100000 looks longer.
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

// between returns a number whose logarithm is evenly distributed.
func between(rng *rand.Rand, lo, hi float64) uint64 {
	return uint64(lo * math.Exp(rng.Float64()*math.Log(hi/lo)))
}

// randomWorld makes a world in which each item has at least one honest peer that stays, and says
// within what time it must end.
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
			w.items[it.ID].dropped = true // not yet there
		}
		w.retargetAfter(15*time.Second, func() { retarget(rng, w, second) })
	}

	// At worst peers take turns at the only memory there is, each time twice as long, until the
	// slowest honest one gets through; and those that trickle have four times the turns of one that
	// does not tell about progress.
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

// randomPeers adds peers, one of which at least is honest and stays, or in a sharded world one for
// each shard, and returns the least rate and the greatest latency of the honest ones. prunes: these
// drop the first group mid-way.
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
	only := behaviour(1 + rng.IntN(int(behaviours)-1)) // of the others
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

// randomParts returns what peer number i of a sharded world has: the first ones a shard each, the
// others all, or any spans. Of what it does not have, an honest peer must not be asked.
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

// retarget gives up the first group for the items of the second, in either order.
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
