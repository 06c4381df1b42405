package storagebench

import (
	"fmt"

	"github.com/starling-kv/starling/bench/harness"
)

// targets judges a result. Targets that were not measured are left out.
func (r *Result) targets() (t []harness.Target) {
	atLeast := func(name string, want, figure float64) {
		if figure > 0 {
			t = append(t, harness.AtLeast(name, want, figure))
		}
	}
	atLeast("writes at least 2× mixed", 2, r.Summary.WriteRatio)
	atLeast("reads of the state (0:10, normal-random) at least 4× mixed", 4, r.Summary.ReadRatioAcc)
	atLeast("reads of the state at least 6× mixed without its cache of decoded nodes, as in the paper", 6, r.ReadRatioAccPlain)
	atLeast("reads of block data (10:0, normal-random) not slower than mixed", 1, r.Summary.ReadRatioTx)
	// The game is judged by its hits: all splits get the same queries, and the machine's speed does
	// not affect hits. Cells with equal hits differed by a factor of 1.8 in time.
	hits := func(name, mix string, least float64) {
		if game, best, ok := r.hitRates(mix); ok {
			t = append(t, harness.Target{
				Name: name, Met: game-best >= least, Figure: 100 * (game - best), Measure: fmt.Sprintf("%+.1f points, %.1f and %.1f %%", 100*(game-best), 100*game, 100*best),
			})
		}
	}
	for _, m := range mixes {
		hits(fmt.Sprintf("hits of the game at least those of the best fixed split less %g points, at %s", 100*hitMargin, m), m.String(), -hitMargin)
	}
	hits(fmt.Sprintf("hits of the game above those of the best fixed split by %g points, when the mix changes midway", 100*hitMargin), changing.String(), hitMargin)
	if c := r.Recovery; c != nil && c.Keys >= tenMillion { // fewer keys take less
		t = append(t, startTargets(c.Seconds, c.PagedS)...)
	}
	if c := r.Commit; c != nil {
		durable := harness.AtMost("durable storage adds at most 10 % to a commit, at the median and at the 99th percentile", 1.1, c.RatioP99)
		if durable.Met = durable.Met && c.RatioP50 <= 1.1; c.RatioP50 <= 1.1 {
			durable = durable.OfBlocks(c.Blocks, harness.FewBlocks) // the 99th percentile decides
		}
		durable.Measure = fmt.Sprintf("p50 %.3g×, p99 %.3g×", c.RatioP50, c.RatioP99)
		t = append(t, durable)
	}
	if p := r.Paged; p != nil {
		t = append(t, harness.AtMost("a commit with a quarter of the state's memory at most 4× the CPU time of one with everything in memory", 4, p.Ratio))
		atLeast("blocks with a quarter of the state's memory at least 0.4× as fast as with everything in memory", 0.4, p.TPSX)
	}
	return t
}

// hitMargin is the difference between hit rates that counts: less is no reason to choose a split.
const hitMargin = 0.003
