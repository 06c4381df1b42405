package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// crowd returns a world of 80 equal peers, some of them faulty, as in Fig. 7 of the paper (AVL*,
// Fynn et al. 2022): the joiner's own line is the bottleneck.
func crowd(t *testing.T, items int, lying int, is behaviour) *world {
	w := newWorld(uint64(1000*lying+int(is)), limits{})
	w.check = false // more expensive than the rest; TestWorlds checks
	w.segments, w.downRate, w.verify, w.write = 4, 125_000_000, 2*time.Millisecond, time.Millisecond
	add := w.addItems(items, func(i int) (uint64, bool) {
		if i%20 == 7 {
			return 40_000 + uint64(i), true
		}
		return 550_000 + uint64(w.rng.IntN(200_000)), true
	})
	for i := range 80 {
		p := &simPeer{id: PeerID(fmt.Sprintf("%02d", (i*37)%80)), rate: 10_000_000, latency: 20 * time.Millisecond, groups: []Group{1}, loyal: 2}
		if i < lying {
			p.is = is
		}
		w.peers = append(w.peers, p)
		w.after(0, func() error { return w.connect(p) })
	}
	w.after(0, func() error { return w.step(Add{add}) })
	require.NoError(t, w.run(time.Hour), "%d of 80 %s", lying, names[is])
	return w
}

// TestQuality checks the joiner's guarantees: with 26 of 80 faulty peers, at most 1.25 times the
// honest time; with 79, the join ends; and a faulty peer wastes at most one item. Time is virtual,
// so the figures are the same on every machine.
func TestQuality(t *testing.T) {
	for _, items := range []int{200, 2000} { // about one million keys, and ten
		honestWorld := crowd(t, items, 0, honest)
		total := honestWorld.s.Stats().Bytes
		floor := timeFor(total, honestWorld.downRate)
		t.Logf("%d items, %d MB, 80 peers; the line alone takes %v", items, total/1e6, floor.Round(time.Millisecond))
		t.Logf("%-10s %5s %10s %6s %8s %9s %7s %6s", "liars", "lying", "time", "ratio", "of floor", "refetched", "wasted", "banned")
		report := func(w *world, lying int, is behaviour) float64 {
			ratio := float64(w.now) / float64(honestWorld.now)
			st := w.s.Stats()
			banned := 0
			for _, p := range st.Peers {
				if p.State == StateBanned {
					banned++
				}
			}
			t.Logf("%-10s %5d %10v %6.2f %8.2f %9d %6.2fM %6d", names[is], lying, w.now.Round(time.Millisecond), ratio,
				float64(w.now)/float64(floor), st.Refetched, float64(st.WastedBytes)/1e6, banned)
			return ratio
		}
		report(honestWorld, 0, honest)
		require.Less(t, honestWorld.now, 2*floor+time.Second)
		kinds, counts := []behaviour{damaged, truncated, swapped, silent, loris, stopper, turncoat, sleeper, lagger, breaker, claimer}, []int{1, 5, 10, 20, 26, 79}
		if items > 200 {
			kinds, counts = []behaviour{damaged, silent, turncoat, sleeper, lagger}, []int{26, 79}
		}
		for _, is := range kinds {
			for _, lying := range counts {
				w := crowd(t, items, lying, is)
				ratio := report(w, lying, is)
				switch {
				case lying > 26:
				case is == turncoat || is == sleeper || is == lagger:
					// They were proven: detecting that they stopped takes a moment.
					require.LessOrEqual(t, w.now, honestWorld.now*5/4+2*time.Second, "%d of 80 %s", lying, names[is])
				default:
					require.LessOrEqual(t, ratio, 1.25, "%d of 80 %s", lying, names[is])
				}
				for _, p := range w.s.Stats().Peers {
					sim := w.peer(p.ID)
					if sim.is != honest && sim.is != turncoat && sim.is != lagger && sim.is != breaker {
						require.LessOrEqual(t, p.WastedBytes, uint64(750_000), "%s %s", names[is], p.ID)
					}
				}
			}
		}
	}
}
