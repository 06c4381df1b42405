package storagebench

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
)

// StartOptions configure a run of start.
type StartOptions struct {
	Keys []int
	Seed uint64
}

// Flags adds the flags of start.
func (o *StartOptions) Flags(f *harness.Flags) {
	f.Ints(&o.Keys, "keys", []int{1_000_000, 10_000_000}, 9_000, 100_000_000, "sizes of the state, each measured in turn")
	f.Seed(&o.Seed)
}

// Sizes of the targets of a start.
const (
	million    = 1_000_000
	tenMillion = 10 * million
)

// StartResult is the outcome of start. Figures that were not measured are zero.
type StartResult struct {
	Million         float64 `json:"start_s_1m"` // of a node with its state in memory
	TenMillion      float64 `json:"start_s_10m"`
	MillionPaged    float64 `json:"start_paged_s_1m"`
	TenMillionPaged float64 `json:"start_paged_s_10m"`

	Starts  []*Recovery      `json:"starts"`
	Targets []harness.Target `json:"targets"`
	Machine harness.Machine  `json:"machine"`
}

// RunStart measures starts after a crash with states of several sizes, as the part recovery of
// storage does.
func RunStart(ctx context.Context, o StartOptions, progress *harness.Progress) (*StartResult, error) {
	all := &StartResult{Machine: harness.ThisMachine()}
	for _, keys := range o.Keys {
		r, err := Run(ctx, Options{Keys: keys, TxsPerBlock: min(1_000, keys/2), Only: []string{PartRecovery}, Seed: o.Seed}, progress)
		if err != nil {
			return nil, err
		}
		all.Starts = append(all.Starts, r.Recovery)
		switch keys {
		case million:
			all.Million, all.MillionPaged = r.RecoveryS, r.RecoveryPagedS
		case tenMillion:
			all.TenMillion, all.TenMillionPaged = r.RecoveryS, r.RecoveryPagedS
		}
	}
	if all.TenMillion > 0 {
		all.Targets = startTargets(all.TenMillion, all.TenMillionPaged)
		if all.MillionPaged > 0 {
			all.Targets = append(all.Targets, harness.AtMost("a paged start with ten million keys at most 1.3× one with a million", 1.3, harness.Ratio(all.TenMillionPaged, all.MillionPaged)))
		}
	}
	return all, nil
}

// startTargets judges starts with ten million keys.
func startTargets(memory, paged float64) []harness.Target {
	target := func(name string, want, s float64) harness.Target {
		return harness.Target{Name: name, Met: s <= want, Figure: s, Measure: fmt.Sprintf("%.3g s", s)}
	}
	return []harness.Target{
		target("a start after a crash with the state in memory in at most 1.5 s", 1.5, memory),
		target("a paged start after a crash in at most 0.5 s", 0.5, paged),
	}
}

// Print writes the table and the targets.
func (r *StartResult) Print(out io.Writer) {
	printStarts(out, r.Starts)
	harness.PrintTargets(out, "10,000,000 keys", r.Targets)
}

func printStarts(out io.Writer, starts []*Recovery) {
	cells := [][]string{{"start after SIGKILL", "in memory, s", "from", "to", "CPU", "paged, s", "from", "to", "CPU", "after the load, s", "from leaves, s", "CPU", "lost blocks", "disk, MB"}}
	fill := [][]string{{"then, in memory", "filled after, s", "CPU", "blocks", "p50, ms", "p99", "later p50, ms", "p99"}}
	levels := [][]string{{"start and replay, by crash", "blocks after a flush", "lost", "start, s", "replay, s", "both", "CPU"}}
	number := func(x float64) string { return fmt.Sprintf("%.2f", x) }
	for _, c := range starts {
		keys := harness.Count(c.Keys, "key")
		cells = append(cells, []string{
			keys, number(c.Seconds), number(slices.Min(c.All)), number(slices.Max(c.All)), number(c.CPUS),
			number(c.PagedS), number(slices.Min(c.PagedAll)), number(slices.Max(c.PagedAll)), number(c.PagedCPUS),
			number(c.AfterLoadS), number(c.LeavesS), number(c.LeavesCPUS), fmt.Sprint(c.Lost), fmt.Sprintf("%.0f", mb(c.DiskBytes)),
		})
		fill = append(fill, []string{
			keys, fmt.Sprintf("%.1f", c.FillS), fmt.Sprintf("%.1f", c.FillCPUS), fmt.Sprint(c.FillBlocks), number(c.FillP50), number(c.FillP99),
			number(c.FilledP50), number(c.FilledP99),
		})
		for _, crash := range c.Crashes {
			levels = append(levels, []string{
				keys, fmt.Sprint(crash.Blocks), fmt.Sprint(crash.Lost), number(crash.Seconds), number(crash.ReplayS), number(crash.Seconds + crash.ReplayS), number(crash.CPUS),
			})
		}
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintln(out)
	harness.PrintAligned(out, fill)
	fmt.Fprintln(out)
	harness.PrintAligned(out, levels)
	fmt.Fprintf(out, "\n    a start ends when blocks can be executed; files in the page cache; CometBFT replays the lost blocks, of %d after the state;\n"+
		"    in memory and paged: the medians of %d crashes and starts each, in turn; after the load: the start after the first crash;\n"+
		"    then a block of as many operations every %v, while the state is read into memory, and %d more\n\n", dyingBlocks, startRounds, blockEvery, filledBlocks)
}
