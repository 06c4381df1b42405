package harness

import (
	"fmt"
	"io"
)

// Target is a goal for a figure of one run.
type Target struct {
	Name    string  `json:"name"`
	Met     bool    `json:"met"`
	Figure  float64 `json:"figure"`
	Measure string  `json:"measure"` // the figure in words

	// Undecided is the reason why the target is not judged, such as too few rounds for a fair
	// comparison. Met counts only if Undecided is empty.
	Undecided string `json:"undecided,omitempty"`
}

// AtLeast is a target for a ratio that should be want or more. A ratio of 0 is undecided, as with
// AtMost.
func AtLeast(name string, want, ratio float64) Target {
	return Target{Name: name, Met: ratio >= want, Figure: ratio, Measure: fmt.Sprintf("%.3g×", ratio)}.ifMeasured()
}

// MedianAtLeast is a target for the median of ratios that should be want or more. It is undecided
// if the median's interval contains want.
func MedianAtLeast(name string, want float64, ratio Interval) Target {
	t := Target{Name: name, Met: ratio.Low >= want, Figure: ratio.Median, Measure: ratio.Text("%.3g") + " ×"}
	if !t.Met && ratio.High >= want {
		t.Undecided = "the interval contains the target"
	}
	return t.ifMeasured()
}

// AtMost is a target for a ratio that should be want or less. A ratio of 0 is undecided: Ratio
// returns 0 if nothing was measured, and no measured cost is 0.
func AtMost(name string, want, ratio float64) Target {
	return Target{Name: name, Met: ratio <= want, Figure: ratio, Measure: fmt.Sprintf("%.3g×", ratio)}.ifMeasured()
}

// Within is a target for a cost in a unit that should be most or less. A cost of 0 is undecided, as
// with AtMost.
func Within(name string, most, cost float64, unit string) Target {
	return Target{Name: name, Met: cost <= most, Figure: cost, Measure: fmt.Sprintf("%.3g %s", cost, unit)}.ifMeasured()
}

// ifMeasured returns t, undecided if its figure is 0.
func (t Target) ifMeasured() Target {
	if t.Figure == 0 {
		t.Met, t.Undecided = false, NotMeasured
	}
	return t
}

// NotMeasured is the reason why a target without a figure is not judged.
const NotMeasured = "not measured"

// FewBlocks is the number of blocks below which a target for their 99th percentile is not judged.
const FewBlocks = 300

// OfBlocks returns t, which is a target for a 99th percentile over the given number of blocks. It
// is undecided for fewer blocks than least.
func (t Target) OfBlocks(blocks, least int) Target {
	if t.Undecided == "" && blocks < least {
		t.Met, t.Undecided = false, fmt.Sprintf("the p99 of %d blocks is nearly their longest time", blocks)
	}
	return t
}

// PrintTargets prints which targets are met. sizes are the sizes for which the targets are set.
func PrintTargets(out io.Writer, sizes string, targets []Target) {
	if len(targets) == 0 {
		return
	}
	fmt.Fprintf(out, "\nTargets (set for %s)\n", sizes)
	for _, t := range targets {
		verdict, why := "not met", ""
		switch {
		case t.Undecided != "":
			verdict, why = "undecided", " ("+t.Undecided+")"
		case t.Met:
			verdict = "met"
		}
		fmt.Fprintf(out, "  %-9s %s: %s%s\n", verdict, t.Name, t.Measure, why)
	}
}
