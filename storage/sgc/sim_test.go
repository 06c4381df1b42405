package sgc

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/storage/sgc/sgctest"
)

// The workloads follow ChainKV (paper section 8.2): transaction queries (Tx, the block zone) and
// account queries (Acc, the state zone) in the ratios 10:0 to 0:10. The keys are drawn from two
// Zipf distributions, a normal one, and one that moves like a growing chain.

const (
	simBudget   = 4 << 20
	simPages    = 2000 // of 4 to 16 KiB: about 20 MiB
	simTxs      = 6000
	simRequests = 60_000 // the first third is the warm-up
)

type request struct {
	zone Zone
	key  uint32
}

// world contains the sizes of the values.
type world struct{ sizes [numZones][]int }

func newWorld(rng *rand.Rand) *world {
	w := &world{}
	for range simPages {
		w.sizes[State] = append(w.sizes[State], 4<<10+rng.IntN(12<<10))
	}
	for range simTxs { // 100 bytes to 1 MiB, the logarithm normal around 1,000: about 20 MiB
		size := 1000 * math.Exp(1.6*rng.NormFloat64())
		w.sizes[Blocks] = append(w.sizes[Blocks], int(min(max(size, 100), 1<<20)))
	}
	return w
}

// A chooser draws the index of one of n keys.
type chooser func(rng *rand.Rand, n int) func() int

// moving is a normal distribution around a center that passes over all keys once.
func moving(rng *rand.Rand, n int) func() int {
	draw, asked := sgctest.Normal(rng, n), 0
	return func() int {
		asked++
		return (draw() + asked*n/(simRequests/2)) % n
	}
}

// phase: from this share of the requests on, tx of ten requests are transaction queries.
type phase struct {
	from float64
	tx   int
}

func requests(rng *rand.Rand, choose chooser, phases []phase) []request {
	tx, acc := choose(rng, simTxs), choose(rng, simPages)
	all := make([]request, simRequests)
	for i := range all {
		mix := phases[0].tx
		for _, p := range phases {
			if float64(i) >= p.from*simRequests {
				mix = p.tx
			}
		}
		if rng.IntN(10) < mix {
			all[i] = request{Blocks, uint32(tx())}
		} else {
			all[i] = request{State, uint32(acc())}
		}
	}
	return all
}

type simCache interface {
	Get(Zone, []byte) (any, bool)
	Put(Zone, []byte, any, int)
}

// replay returns the hit rate after the warm-up, in percent.
func replay(w *world, all []request, c simCache) float64 {
	hits := 0
	var key [4]byte
	for i, r := range all {
		binary.BigEndian.PutUint32(key[:], r.key)
		if _, ok := c.Get(r.zone, key[:]); ok {
			if i >= len(all)/3 {
				hits++
			}
		} else {
			c.Put(r.zone, key[:], nil, w.sizes[r.zone][r.key])
		}
	}
	return 100 * float64(hits) / float64(len(all)-len(all)/3)
}

// The required hit rate of the game, in percentage points relative to the best fixed border. For a
// static load, no border is better than the best fixed one, so the game must only not lose (the
// noise of a run is about half a point). If the load changes midway, the game must win.
const (
	simStaticLoss = 1.0
	simShiftGain  = 0.5
)

func TestSimulation(t *testing.T) {
	if raceDetector {
		t.Skip("single-threaded, and takes minutes under the race detector; see TestConcurrent")
	}
	const seed = 1
	type row struct {
		keys, mix string
		changes   bool
		requests  []request
		fixed     [7]float64
		best      float64
		lru, game float64
		share     float64
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(rng)
	var rows []*row
	for _, keys := range []struct {
		name   string
		choose chooser
	}{{"zipf 0.9", sgctest.Zipf(0.9)}, {"zipf 1.2", sgctest.Zipf(1.2)}, {"normal", sgctest.Normal}, {"moving", moving}} {
		for _, mix := range []struct {
			name   string
			phases []phase
		}{
			{"10:0", []phase{{0, 10}}}, {"7:3", []phase{{0, 7}}}, {"5:5", []phase{{0, 5}}}, {"3:7", []phase{{0, 3}}}, {"0:10", []phase{{0, 0}}},
			{"9:1, 1:9", []phase{{0, 9}, {2. / 3, 1}}}, {"10:0, 0:10", []phase{{0, 10}, {2. / 3, 0}}},
		} {
			rows = append(rows, &row{keys: keys.name, mix: mix.name, changes: len(mix.phases) > 1, requests: requests(rng, keys.choose, mix.phases)})
		}
	}
	var all sync.WaitGroup
	for _, r := range rows {
		all.Go(func() {
			for i := range r.fixed {
				r.fixed[i] = replay(w, r.requests, New(simBudget, WithFixedSplit(float64(i+1)/8)))
			}
			r.best = slices.Max(r.fixed[:])
			r.lru = replay(w, r.requests, sgctest.NewLRU[Zone](simBudget, chargeOf))
			c := New(simBudget)
			r.game = replay(w, r.requests, c)
			r.share = 100 * float64(c.Target(State)) / simBudget
		})
	}
	all.Wait()
	var table strings.Builder
	fmt.Fprintf(&table, "hits in percent, seed %d. n/8: fixed borders with that share for the state; LRU: one list for both.\n", seed)
	fmt.Fprintf(&table, "keys      Tx:Acc        1/8   2/8   3/8   4/8   5/8   6/8   7/8    LRU   game  game-best  state at the end")
	for _, r := range rows {
		fmt.Fprintf(&table, "\n%-9s %-10s", r.keys, r.mix)
		for _, rate := range r.fixed {
			fmt.Fprintf(&table, " %5.1f", rate)
		}
		fmt.Fprintf(&table, "  %5.1f  %5.1f  %+9.1f  %15.0f%%", r.lru, r.game, r.game-r.best, r.share)
	}
	t.Log("\n" + table.String())
	for _, r := range rows {
		if r.changes {
			require.Greater(t, r.game, r.best+simShiftGain, "%s %s", r.keys, r.mix)
		} else {
			require.Greater(t, r.game, r.best-simStaticLoss, "%s %s", r.keys, r.mix)
		}
	}
}
