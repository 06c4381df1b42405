package syncbench

import (
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
)

// Goal is a figure to reach, as a ratio within one run.
type Goal struct {
	Name    string  `json:"name"`
	Met     bool    `json:"met"`
	Figure  float64 `json:"figure"`
	Measure string  `json:"measure"` // the figure in words
}

func atLeast(name string, want, figure float64) Goal {
	return Goal{Name: name, Met: figure >= want, Figure: figure, Measure: fmt.Sprintf("%.3g×", figure)}
}

func atMost(name string, want, figure float64) Goal {
	return Goal{Name: name, Met: figure <= want, Figure: figure, Measure: fmt.Sprintf("%.3g×", figure)}
}

// besideTreeMB is the goal for the joiner's memory beside its tree.
const besideTreeMB = 64

// goals judges a result. Goals that were not measured are left out.
func (r *Result) goals() (g []Goal) {
	if r.SDK != nil {
		g = append(g, atLeast("at least 60× faster than the SDK's store restores", 60, harness.Ratio(r.SDKRestoreS, r.StarlingS)))
	}
	if r.Memiavl != nil {
		g = append(g, atLeast("at least 3× faster than memiavl", 3, harness.Ratio(r.MemiavlS, r.StarlingS)))
	}
	if d := r.DefaultChunks; d != nil {
		g = append(g, atMost("within 2× of the same keys in chunks of 1 MiB", 2, harness.Ratio(r.StarlingS, d.StarlingS)))
	}
	g = append(g, atMost("within 6× of the floor", 6, harness.Ratio(r.StarlingS, r.FloorS)))
	if n := r.Starling.BesideTree; n > 0 {
		mb := float64(n) / 1e6
		g = append(g, Goal{
			Name: fmt.Sprintf("the joiner's anonymous memory beside its tree at most %d MB", besideTreeMB), Met: mb <= besideTreeMB,
			Figure: mb, Measure: fmt.Sprintf("%.0f MB", mb),
		})
	}
	if p := r.Paged; p != nil {
		mb := float64(p.BesideBudget) / 1e6
		g = append(g, Goal{
			Name: fmt.Sprintf("a paged joiner's anonymous memory beside its budget at most %d MB", besideTreeMB), Met: mb <= besideTreeMB,
			Figure: mb, Measure: fmt.Sprintf("%.0f MB", mb),
		})
	}
	return g
}

// printGoals prints which goals are met and which are not; note is the size they are set for.
func printGoals(out io.Writer, note string, goals []Goal) {
	if len(goals) == 0 {
		return
	}
	fmt.Fprintf(out, "\nTargets (they are set for %s)\n", note)
	for _, g := range goals {
		verdict := "not met"
		if g.Met {
			verdict = "met"
		}
		fmt.Fprintf(out, "  %-7s %s: %s\n", verdict, g.Name, g.Measure)
	}
}
