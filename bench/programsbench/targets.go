package programsbench

import (
	"fmt"

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
	return t
}
