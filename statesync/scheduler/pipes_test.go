package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPipesStayFull: honest peers of all kinds come close to the sum of their rates, in virtual
// time.
func TestPipesStayFull(t *testing.T) {
	const ms = time.Millisecond
	type pipes struct {
		n       int
		rate    uint64
		latency time.Duration
	}
	for _, tc := range []struct {
		name  string
		opts  limits
		items int
		size  uint64
		peers []pipes
		most  float64 // of the floor
	}{
		{"one near", limits{}, 200, 600_000, []pipes{{1, 100_000_000, ms / 2}}, 1.1},
		{"one far", limits{}, 400, 600_000, []pipes{{1, 50_000_000, 100 * ms}}, 1.25},
		{"far and slow", limits{}, 50, 600_000, []pipes{{1, 100_000, 300 * ms}}, 1.05},
		{"far beyond 16 in flight", limits{perPeer: 64}, 400, 600_000, []pipes{{1, 100_000_000, 200 * ms}}, 1.7},
		{"small items", limits{}, 3000, 40_000, []pipes{{4, 10_000_000, 20 * ms}}, 1.2},
		{"different rates", limits{}, 1000, 600_000, []pipes{{5, 100_000, 50 * ms}, {10, 1_000_000, 20 * ms}, {5, 20_000_000, 5 * ms}}, 1.1},
		{"one fast, many slow", limits{}, 200, 600_000, []pipes{{60, 20_000, 50 * ms}, {1, 50_000_000, 5 * ms}}, 1.3},
		{"all slow", limits{}, 100, 600_000, []pipes{{20, 50_000, 100 * ms}}, 1.8},
		{"little memory", limits{memory: 10_000_000}, 500, 600_000, []pipes{{10, 1_000_000, 50 * ms}, {2, 20_000_000, 5 * ms}}, 1.3},
		{"few items, many peers", limits{}, 20, 600_000, []pipes{{80, 5_000_000, 20 * ms}}, 5},
	} {
		w := newWorld(1, tc.opts)
		w.check, w.segments, w.verify, w.write = false, 8, ms, ms
		var sum uint64
		for _, p := range tc.peers {
			for range p.n {
				sum += p.rate
				p := &simPeer{id: PeerID(fmt.Sprintf("%02d", len(w.peers))), rate: p.rate, latency: p.latency, groups: []Group{1}}
				w.peers = append(w.peers, p)
				w.after(0, func() error { return w.connect(p) })
			}
		}
		items := w.addItems(tc.items, func(i int) (uint64, bool) { return tc.size - uint64(i%100), true })
		w.after(0, func() error { return w.step(Add{items}) })
		require.NoError(t, w.run(time.Hour), tc.name)
		st := w.s.Stats()
		floor := timeFor(st.Bytes, sum)
		ratio := float64(w.now) / float64(floor)
		t.Logf("%-24s floor %8v, took %8v, %.2f of it; %4d refetched, %4.1f %% wasted", tc.name, floor.Round(ms), w.now.Round(ms), ratio,
			st.Refetched, 100*float64(st.WastedBytes)/float64(st.Bytes))
		require.Less(t, ratio, tc.most, tc.name)
	}
}
