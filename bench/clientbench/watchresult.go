package clientbench

import (
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
)

// WatchResult is the outcome of a run with watchers.
type WatchResult struct {
	Alone   Blocks  `json:"alone"`   // without watchers
	Watched Blocks  `json:"watched"` // with watchers
	Events  int     `json:"events"`  // received by watchers; none was missed
	CatchUp CatchUp `json:"catch_up"`

	Watchers        int              `json:"watchers"` // of one key each
	All             int              `json:"all"`      // of all keys
	Shared          bool             `json:"shared"`   // all watchers share one client
	Changes         int              `json:"changes_per_second"`
	TxChanges       int              `json:"changes_of_a_transaction"`
	Seconds         int              `json:"seconds"`
	TimeoutCommitMS float64          `json:"timeout_commit_ms"`
	Machine         harness.Machine  `json:"machine"`
	Targets         []harness.Target `json:"targets"`
}

// Blocks are the times between blocks: medians over the rounds.
type Blocks struct {
	BlockRound
	Rounds []BlockRound `json:"rounds"`
}

// BlockRound has the figures of one round.
type BlockRound struct {
	Blocks     int     `json:"blocks"`
	P50MS      float64 `json:"interval_p50_ms"`
	P99MS      float64 `json:"interval_p99_ms"`
	MaxMS      float64 `json:"interval_max_ms"`
	Changes    float64 `json:"changes_per_second"` // written
	CPUPercent float64 `json:"cpu_percent"`        // of one core, used by the node
}

// CatchUp has the figures of a watch that starts many heights ago.
type CatchUp struct {
	Heights   int       `json:"heights"`
	Events    int       `json:"events"`
	PerSecond []float64 `json:"events_per_second"` // one for each round

	// CPU time per event in each round, in µs. Other load on the machine affects it less than wall
	// time.
	NodeMicros   []float64 `json:"node_cpu_us"`
	ClientMicros []float64 `json:"client_cpu_us"`
}

const (
	wantedRatio   = 1.1    // p99 of the times between blocks, with watchers to without
	wantedCatchUp = 50_000 // events per second
)

func newWatchResult(o WatchOptions) WatchResult {
	return WatchResult{
		Watchers: o.Watchers, All: o.All, Shared: o.Shared, Changes: o.Changes, TxChanges: o.TxChanges, Seconds: o.Seconds,
		TimeoutCommitMS: float64(o.pause().Microseconds()) / 1e3, Machine: harness.ThisMachine(),
	}
}

func (r *WatchResult) judge() {
	r.Alone.medians()
	r.Watched.medians()
	rate := harness.Median(r.CatchUp.PerSecond)
	// The figures are medians of the rounds' percentiles, so the shortest round decides.
	fewest := math.MaxInt
	for _, round := range slices.Concat(r.Alone.Rounds, r.Watched.Rounds) {
		fewest = min(fewest, round.Blocks)
	}
	r.Targets = []harness.Target{
		harness.AtMost("p99 of the time between blocks at most 1.1 times that without watchers", wantedRatio, harness.Ratio(r.Watched.P99MS, r.Alone.P99MS)).
			OfBlocks(fewest, harness.FewBlocks),
		{Name: fmt.Sprintf("at least %s events a second", harness.Group(wantedCatchUp)), Met: rate >= wantedCatchUp, Figure: math.Round(rate), Measure: harness.Group(int(rate))},
	}
}

func (b *Blocks) medians() {
	of := func(figure func(BlockRound) float64) float64 { return harness.MedianOf(b.Rounds, figure) }
	b.P50MS, b.P99MS = of(func(r BlockRound) float64 { return r.P50MS }), of(func(r BlockRound) float64 { return r.P99MS })
	b.MaxMS, b.Changes = of(func(r BlockRound) float64 { return r.MaxMS }), of(func(r BlockRound) float64 { return r.Changes })
	b.CPUPercent = of(func(r BlockRound) float64 { return r.CPUPercent })
	for _, round := range b.Rounds {
		b.Blocks += round.Blocks
	}
}

// Print writes the table, and explains it.
func (r *WatchResult) Print(out io.Writer) {
	cells := [][]string{{"blocks", "no watchers", "watchers", "×"}}
	row := func(name, format string, a, b float64) {
		cells = append(cells, []string{name, fmt.Sprintf(format, a), fmt.Sprintf(format, b), fmt.Sprintf("%.2f", harness.Ratio(b, a))})
	}
	row("number", "%.0f", float64(r.Alone.Blocks), float64(r.Watched.Blocks))
	row("between two p50, ms", "%.0f", r.Alone.P50MS, r.Watched.P50MS)
	row("between two p99, ms", "%.0f", r.Alone.P99MS, r.Watched.P99MS)
	row("between two most, ms", "%.0f", r.Alone.MaxMS, r.Watched.MaxMS)
	row("changes a second", "%.0f", r.Alone.Changes, r.Watched.Changes)
	row("CPU of the node, %", "%.0f", r.Alone.CPUPercent, r.Watched.CPUPercent)
	harness.PrintAligned(out, cells)
	fmt.Fprint(out, "  p99 of the rounds:")
	for i := range r.Alone.Rounds {
		fmt.Fprintf(out, "  %.0f/%.0f", r.Alone.Rounds[i].P99MS, r.Watched.Rounds[i].P99MS)
	}
	clients := "each with a client of its own"
	if r.Shared {
		clients = "all of one client"
	}
	fmt.Fprintf(out, `

%s events came to %s of one key each and %d of everything, %s: none was missed, twice or out of order
one node, a validator, its clients on the same machine; timeout_commit %.0f ms; %s of %d s each way, in turns; medians
changes      %d a second, %d in a transaction, of %s in turn

a watch of everything from %s ago caught up with %s events at%s a second;
CPU time of an event: %.1f µs of the node, %.1f µs of the client
`, harness.Group(r.Events), harness.Count(r.Watchers, "watcher"), r.All, clients, r.TimeoutCommitMS, harness.Count(len(r.Alone.Rounds), "round"), r.Seconds,
		r.Changes, r.TxChanges, harness.Count(r.Watchers, "key"), harness.Count(r.CatchUp.Heights, "height"), harness.Group(r.CatchUp.Events), rates(r.CatchUp.PerSecond),
		harness.Median(r.CatchUp.NodeMicros), harness.Median(r.CatchUp.ClientMicros))
	harness.PrintTargets(out, "1,000 watchers and 10,000 heights", r.Targets)
}

func rates(list []float64) (text string) {
	for i, rate := range list {
		if i > 0 {
			text += ","
		}
		text += " " + harness.Group(int(rate))
	}
	return text
}
