package syncbench

import (
	"fmt"
	"github.com/starling-kv/starling/bench/harness"
	"io"
)

// Goal is a figure to reach, as a ratio within one run.
type Goal struct {
	Name    string  `json:"name"`
	Met     bool    `json:"met"`
	Figure  float64 `json:"figure"`
	Measure string  `json:"measure"` // the figure in words

	// Undecided is why the comparison decides nothing yet, or empty: the peer's authors would
	// object. Met counts only without it.
	Undecided string `json:"undecided,omitempty"`
}

// Why the peers' rows cannot be judged yet; docs/benchmarks.md has the details.
const (
	undecidedSDK     = "create, which no joiner waits for, counts too, and goleveldb is not the SDK's own"
	undecidedMemiavl = "it exports into a slice, in the process that holds its tree, and has no network or proofs to pay for"
)

func atLeast(name string, want, figure float64) Goal {
	return Goal{Name: name, Met: figure >= want, Figure: figure, Measure: fmt.Sprintf("%.3g×", figure)}
}

func atMost(name string, want, figure float64) Goal {
	return Goal{Name: name, Met: figure <= want, Figure: figure, Measure: fmt.Sprintf("%.3g×", figure)}
}

func (g Goal) undecided(why string) Goal {
	g.Met, g.Undecided = false, why
	return g
}

// goals judges a result. Goals that were not measured are left out.
func (r *Result) goals() (g []Goal) {
	if r.SDK != nil {
		g = append(g, atLeast("at least 100× faster than the SDK's store", 100, harness.Ratio(r.SDKIAVLS, r.StarlingS)).undecided(undecidedSDK))
	}
	if r.Memiavl != nil {
		g = append(g, atLeast("at least 5× faster than memiavl", 5, harness.Ratio(r.MemiavlS, r.StarlingS)).undecided(undecidedMemiavl))
	}
	return append(g, atMost("within 2× of the floor", 2, harness.Ratio(r.StarlingS, r.FloorS)))
}

// printGoals prints which goals are met, which are not, and which are undecided and why; note is
// the size they are set for.
func printGoals(out io.Writer, note string, goals []Goal) {
	if len(goals) == 0 {
		return
	}
	fmt.Fprintf(out, "\nTargets (they are set for %s)\n", note)
	for _, g := range goals {
		verdict, why := "not met", ""
		switch {
		case g.Undecided != "":
			verdict, why = "undecided", " ("+g.Undecided+")"
		case g.Met:
			verdict = "met"
		}
		fmt.Fprintf(out, "  %-9s %s: %s%s\n", verdict, g.Name, g.Measure, why)
	}
}
