package papersbench

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/storage/sgc/sgctest"
)

// cacheOptions configure a replay of queries on caches.
type cacheOptions struct {
	Requests int
	Seed     uint64
}

// Flags adds the options of chainkv/cache.
func (o *cacheOptions) Flags(f *harness.Flags) {
	f.Int(&o.Requests, "requests", 60_000, 3000, 100_000_000, "number of queries; the first third is the warm-up")
	f.Seed(&o.Seed)
}

// The data are about 20 MiB of pages and 20 MiB of transactions, as in the test of package sgc.
const (
	cacheBudget = 4 << 20
	cachePages  = 2000
	cacheTxs    = 6000
	fixedSplits = 7 // n/8 of the budget for the state
)

// query is a read of a page of the state or of a transaction.
type query struct {
	zone sgc.Zone
	key  uint32
}

// cache is what a cache of both zones can do.
type cache interface {
	Get(zone sgc.Zone, key []byte) (any, bool)
	Put(zone sgc.Zone, key []byte, value any, size int)
}

// cacheRow has the hit rates, in percent, of one distribution and mix.
type cacheRow struct {
	Keys   string    `json:"keys"`
	Tx     int       `json:"tx"`      // transaction queries of ten
	Shift  bool      `json:"shifted"` // to 10 - Tx at two thirds
	Game   float64   `json:"game"`
	LRU    float64   `json:"lru"`
	Splits []float64 `json:"fixed_splits"`
}

func runCache(ctx context.Context, commands []string, progress *harness.Progress) (*outcome, error) {
	o, err := parse[cacheOptions](commands[0])
	if err != nil {
		return nil, err
	}
	defer progress.Run()()
	rng := rand.New(rand.NewPCG(o.Seed, 0)) //nolint:gosec // reproducible by its seed
	sizes := map[sgc.Zone][]int{}
	for range cachePages {
		sizes[sgc.State] = append(sizes[sgc.State], 4<<10+rng.IntN(12<<10))
	}
	for range cacheTxs { // the logarithm is normal around 1,000 bytes
		sizes[sgc.Blocks] = append(sizes[sgc.Blocks], int(min(max(1000*math.Exp(1.6*rng.NormFloat64()), 100), 1<<20)))
	}
	distributions := []struct {
		name   string
		choose func(*rand.Rand, int) func() int
	}{{"Zipf 0.9", sgctest.Zipf(0.9)}, {"Zipf 1.2", sgctest.Zipf(1.2)}, {"normal", sgctest.Normal}}
	mixes := []struct {
		tx    int
		shift bool
	}{{0, false}, {3, false}, {5, false}, {7, false}, {10, false}, {9, true}}
	var rows []cacheRow
	progress.Begin("replay", "mixes", len(distributions)*len(mixes))
	for _, d := range distributions {
		progress.Working(d.name)
		for _, m := range mixes {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			all := queries(rng, o.Requests, d.choose, m.tx, m.shift)
			r := cacheRow{Keys: d.name, Tx: m.tx, Shift: m.shift}
			for i := range fixedSplits {
				r.Splits = append(r.Splits, replay(all, sizes, sgc.New(cacheBudget, sgc.WithFixedSplit(float64(i+1)/(fixedSplits+1)))))
			}
			r.LRU = replay(all, sizes, sgctest.NewLRU[sgc.Zone](cacheBudget, lruCharge))
			r.Game = replay(all, sizes, sgc.New(cacheBudget))
			rows = append(rows, r)
			progress.Add(1)
		}
	}
	out := cacheOutcome(rows)
	return out, out.setRaw(rows)
}

func cacheOutcome(rows []cacheRow) *outcome {
	out := &outcome{}
	gain, least, most := 0.0, math.Inf(1), math.Inf(-1)
	for _, r := range rows {
		over := 100 * (harness.Ratio(r.Game, r.LRU) - 1)
		if !r.Shift {
			gain += over / float64(len(rows)-3)
			least, most = min(least, over), max(most, over)
		}
		mix := fmt.Sprintf("%d:%d", r.Tx, 10-r.Tx)
		if r.Shift {
			mix += fmt.Sprintf(", then %d:%d", 10-r.Tx, r.Tx)
		}
		out.add(fmt.Sprintf("hits, %s, Tx:Acc %s", r.Keys, mix), "", "game %.1f %%, one LRU %.1f %%, fixed splits %.1f to %.1f %%", r.Game, r.LRU, slices.Min(r.Splits), slices.Max(r.Splits))
		if r.Shift {
			continue
		}
		name := strings.ReplaceAll(strings.ToLower(r.Keys), " ", "-")
		if r.Keys == rows[0].Keys {
			name = ""
		}
		if n := len(out.Charts); n == 0 || out.Charts[n-1].Name != name {
			out.Charts = append(out.Charts, chart{
				Name: name, Title: "ChainKV §8.5: hits of the space-gaming cache, " + r.Keys, X: "transaction queries of ten, the rest are account queries", Y: "hits, %",
			})
		}
		c, x := &out.Charts[len(out.Charts)-1], float64(r.Tx)
		for _, l := range []struct {
			name string
			hits float64
		}{{"game", r.Game}, {"one LRU", r.LRU}, {"best fixed split", slices.Max(r.Splits)}, {"worst fixed split", slices.Min(r.Splits)}} {
			c.Lines = appendTo(c.Lines, l.name, at(x, l.hits))
		}
	}
	first := row{"game over one LRU, all constant mixes", "throughput 2.72 to 6.51 % higher", fmt.Sprintf("%+.1f to %+.1f %% hits, %+.1f %% on average", least, most, gain)}
	out.Rows = append([]row{first}, out.Rows...)
	return out
}

func queries(rng *rand.Rand, n int, choose func(*rand.Rand, int) func() int, tx int, shift bool) []query {
	txs, accounts := choose(rng, cacheTxs), choose(rng, cachePages)
	all := make([]query, n)
	for i := range all {
		if shift && i == n*2/3 {
			tx = 10 - tx
		}
		if rng.IntN(10) < tx {
			all[i] = query{sgc.Blocks, uint32(txs())} //nolint:gosec // an index
		} else {
			all[i] = query{sgc.State, uint32(accounts())} //nolint:gosec // an index
		}
	}
	return all
}

// replay returns the hit rate after the warm-up, in percent.
func replay(all []query, sizes map[sgc.Zone][]int, c cache) float64 {
	hits, warm := 0, len(all)/3
	var key [4]byte
	for i, q := range all {
		binary.BigEndian.PutUint32(key[:], q.key)
		if _, ok := c.Get(q.zone, key[:]); !ok {
			c.Put(q.zone, key[:], nil, sizes[q.zone][q.key])
		} else if i >= warm {
			hits++
		}
	}
	return 100 * float64(hits) / float64(len(all)-warm)
}

// lruCharge adds to the size of an entry what the space-gaming cache adds.
func lruCharge(key, size int) int64 { return int64(key + size + 64) }
