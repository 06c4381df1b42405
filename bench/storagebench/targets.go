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
	for _, m := range mixes {
		// The best of seven fixed splits is partly the luckiest of seven measurements.
		atLeast(fmt.Sprintf("the game at least the best fixed split (within %.0f %%) at %s", cacheNoise*100, m), 1-cacheNoise, r.gain(m.String()))
	}
	atLeast("the game above the best fixed split when the mix changes midway", 1+cacheNoise, r.Summary.SGCGain)
	if c := r.Recovery; c != nil {
		t = append(t, startTargets(c.Seconds, c.PagedS)...)
	}
	if c := r.Commit; c != nil {
		t = append(t, harness.Target{
			Name: "durable storage adds at most 10 % to a commit, at the median and at the 99th percentile", Met: c.RatioP50 <= 1.1 && c.RatioP99 <= 1.1, Figure: c.RatioP99,
			Measure: fmt.Sprintf("p50 %.3g×, p99 %.3g×", c.RatioP50, c.RatioP99),
		})
	}
	if p := r.Paged; p != nil {
		t = append(t, harness.AtMost("a commit with a quarter of the state's memory at most 4× the CPU time of one with everything in memory", 4, p.Ratio))
		atLeast("blocks with a quarter of the state's memory at least 0.4× as fast as with everything in memory", 0.4, p.TPSX)
	}
	return t
}

// cacheNoise is the difference between two runs of the same cell.
const cacheNoise = 0.03
