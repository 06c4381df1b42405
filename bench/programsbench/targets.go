package programsbench

import (
	"fmt"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
)

// targets judges the result.
func (r *Result) targets() (t []harness.Target) {
	add := func(name string, met bool, figure float64, format string, args ...any) {
		t = append(t, harness.Target{Name: name, Met: met, Figure: figure, Measure: fmt.Sprintf(format, args...)})
	}
	if r.ERC20TPS > 0 {
		add("at least 15,000 transfers per second, application alone", r.ERC20TPS >= 15_000, r.ERC20TPS, "%.0f", r.ERC20TPS)
	}
	if r.OverPaged > 0 {
		t = append(t, harness.AtLeast("in memory at least 5 times a paged node with a state of 4 × its memory", 5, r.OverPaged))
	}
	if r.Mispredicted != nil {
		add("at most 2 % of the moves touch a record that they do not name", *r.Mispredicted <= 0.02, *r.Mispredicted, "%.3g %%", 100**r.Mispredicted)
	}
	if r.FreeBlocks != nil {
		add("no wait in at least 99 % of blocks", *r.FreeBlocks >= 0.99, *r.FreeBlocks, "%.4g %%", 100**r.FreeBlocks)
		add("at most 0.05 requests per block", *r.RoundsPerBlock <= 0.05, *r.RoundsPerBlock, "%.3g", *r.RoundsPerBlock)
	}
	if r.TPSOverLocal > 0 {
		t = append(t, r.unlessLoaded(harness.AtLeast("sharded validators, at r 12, at least 0.8 of those with the whole state", 0.8, r.TPSOverLocal), ModeSharded, ModeLocal))
	}
	if r.WANRatio > 0 {
		t = append(t, r.unlessLoaded(harness.AtLeast(
			fmt.Sprintf("with %.0f ms there and back, at least 0.85 of the same network without", 2*r.DelayMS), 0.85, r.WANRatio), ModeWAN, ModeSharded))
	}
	if r.GatewayGetsS > 0 {
		add("at least 25,000 proved gets per second of one gateway", r.GatewayGetsS >= 25_000, r.GatewayGetsS, "%.0f", r.GatewayGetsS)
	}
	return t
}

// unlessLoaded leaves a target undecided if other programs used the machine more during one of the
// networks, which run one after the other.
func (r *Result) unlessLoaded(t harness.Target, modes ...string) harness.Target {
	var loads []float64
	for _, row := range r.Network {
		if slices.Contains(modes, row.Mode) {
			loads = append(loads, row.Load)
		}
	}
	if low, high := slices.Min(loads), slices.Max(loads); high > 1.2*low {
		t.Undecided = fmt.Sprintf("the load of the machine was from %.0f to %.0f", low, high)
	}
	return t
}
