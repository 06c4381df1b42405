package syncbench

import (
	"fmt"
	"github.com/starling-kv/starling/bench/harness"
	"io"
)

// Goal is one of the figures to reach, as a ratio within one run.
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

// goals judges a result. What was not measured is left out.
func (r *Result) goals() (g []Goal) {
	if r.SDK != nil {
		g = append(g, atLeast("at least 100× faster than the SDK's store", 100, harness.Ratio(r.SDKIAVLS, r.StarlingS)))
	}
	if r.Memiavl != nil {
		g = append(g, atLeast("at least 5× faster than memiavl", 5, harness.Ratio(r.MemiavlS, r.StarlingS)))
	}
	return append(g, atMost("within 2× of the floor", 2, harness.Ratio(r.StarlingS, r.FloorS)))
}

// printGoals says which are met; note is for what numbers they are set.
func printGoals(out io.Writer, note string, goals []Goal) {
	if len(goals) == 0 {
		return
	}
	fmt.Fprintf(out, "\nTargets (they are set for %s)\n", note)
	for _, g := range goals {
		met := "not met"
		if g.Met {
			met = "met"
		}
		fmt.Fprintf(out, "  %-8s %s: %s\n", met, g.Name, g.Measure)
	}
}
