package syncbench

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/starling-kv/starling/bench/harness"
)

// ByzantineOptions configure a run with Byzantine peers.
type ByzantineOptions struct {
	Keys   int
	Seed   uint64
	Peers  int
	Lying  []int    // numbers of Byzantine peers, one row each
	Lies   []string // what Byzantine peers do, in turn
	Repeat int      // joins per row
	Limit  float64  // time limit of a join in seconds; later it counts as unended
}

// Flags adds the flags of byzantine. The numbers of Byzantine peers are those in Fig. 7 of the
// paper, and 79.
func (o *ByzantineOptions) Flags(f *harness.Flags) {
	keys(f, &o.Keys)
	f.Int(&o.Peers, "peers", 80, 1, 1000, "number of peers to join from")
	f.Ints(&o.Lying, "lying", []int{0, 1, 5, 10, 20, 26, 79}, 0, 999, "numbers of peers that send invalid chunks, one row each")
	f.Names(&o.Lies, "lies", Lies, Lies, "kinds of invalid responses, assigned in turn")
	f.Int(&o.Repeat, "repeat", 5, 1, 100, "joins per row; the row has the one of median time")
	f.Float(&o.Limit, "limit", 300, 1, 100_000, "time limit of a join in seconds; later it counts as unended")
	f.Seed(&o.Seed)
	f.Also(func() error {
		if most := slices.Max(o.Lying); most >= o.Peers {
			return fmt.Errorf("--lying has %d of %d peers: at least one must be honest", most, o.Peers)
		}
		if len(o.Lies) == 0 {
			return fmt.Errorf("--lies is empty, it takes %s", strings.Join(Lies, ", "))
		}
		return nil
	})
}

// ByzantineResult is the outcome of a run.
type ByzantineResult struct {
	Keys    int              `json:"keys"`
	Peers   int              `json:"peers"`
	Lies    []string         `json:"lies"`
	Rows    []LyingRow       `json:"rows"`
	Seed    uint64           `json:"seed"`
	Repeat  int              `json:"repeat"`
	Limit   float64          `json:"limit_s"`
	Machine harness.Machine  `json:"machine"`
	Targets []harness.Target `json:"targets"`
}

// LyingRow has the join of median time with one number of Byzantine peers.
type LyingRow struct {
	Lying     int       `json:"lying"`
	StarlingS float64   `json:"starling_s"`
	Ratio     float64   `json:"ratio"` // relative to the honest row, or 0 without one
	Chunks    int       `json:"chunks"`
	Refetched int       `json:"refetched"` // chunks re-requested
	Bytes     int64     `json:"bytes"`     // bytes received
	Wasted    int64     `json:"wasted_bytes"`
	Banned    int       `json:"banned"`
	Unended   int       `json:"unended"` // joins that did not end within the limit
	CPUS      float64   `json:"cpu_s"`   // all peers and the joiner
	Seconds   []float64 `json:"seconds"` // for each join
}

// RunByzantine measures joins from many peers, some of them Byzantine. The peers share one process
// and one version of the state.
func RunByzantine(ctx context.Context, o ByzantineOptions, progress *harness.Progress) (*ByzantineResult, error) {
	result := &ByzantineResult{Keys: o.Keys, Peers: o.Peers, Lies: o.Lies, Seed: o.Seed, Repeat: o.Repeat, Limit: o.Limit, Machine: harness.ThisMachine()}
	err := harness.InFolder(ctx, progress, func(dir string) error {
		r := &runner{o: Options{Keys: o.Keys, Seed: o.Seed}, dir: dir, progress: progress}
		server, err := r.startLoaded(ctx, roleServer)
		if err != nil {
			return err
		}
		defer server.End()
		progress.Begin("join", "joins", len(o.Lying)*o.Repeat)
		joins := make([][]joined, len(o.Lying))
		for round := range o.Repeat {
			for i := range o.Lying { // rows take turns; each round starts with a different row
				i = (i + round) % len(o.Lying)
				j, err := r.joinLiars(ctx, server, o, o.Lying[i])
				if err != nil {
					return fmt.Errorf("with %d of %d peers Byzantine: %w", o.Lying[i], o.Peers, err)
				}
				joins[i] = append(joins[i], j)
			}
		}
		for i, lying := range o.Lying {
			result.Rows = append(result.Rows, rowOf(lying, joins[i]))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	result.judge()
	return result, nil
}

// joinLiars starts new peers, so that none is banned yet. The seed shuffles honest and Byzantine
// peers in the joiner's list.
func (r *runner) joinLiars(ctx context.Context, server *harness.Process, o ByzantineOptions, lying int) (j joined, err error) {
	r.progress.Working(fmt.Sprintf("%d of %d Byzantine", lying, o.Peers))
	q := request{Op: opServe, Peers: o.Peers}
	for i := range lying {
		q.Lies = append(q.Lies, o.Lies[i%len(o.Lies)])
	}
	var serving answer
	if err := server.Ask(q, &serving); err != nil {
		return j, err
	}
	t := serving.Target
	rng := rand.New(rand.NewPCG(o.Seed, uint64(lying))) //nolint:gosec // reproducible by its seed
	rng.Shuffle(len(t.Peers), func(a, b int) { t.Peers[a], t.Peers[b] = t.Peers[b], t.Peers[a] })
	j, err = r.join(ctx, server, request{Op: opJoin, Target: t, LimitS: o.Limit}, fmt.Sprint(lying))
	r.progress.Add(1)
	return j, err
}

func rowOf(lying int, joins []joined) LyingRow {
	row := LyingRow{Lying: lying}
	for _, j := range joins {
		row.Seconds = append(row.Seconds, j.Seconds)
		if !j.Ended {
			row.Unended++
		}
	}
	row.StarlingS = harness.LowerMedian(row.Seconds)
	m := joins[slices.Index(row.Seconds, row.StarlingS)]
	row.Chunks, row.Refetched, row.Banned = m.Stats.Chunks, m.Stats.Refetched, m.Stats.Banned
	row.Bytes, row.Wasted, row.CPUS = m.Stats.Bytes, m.Stats.Wasted, m.serverCPU+m.CPU
	return row
}

// judge compares the rows with the honest row.
func (r *ByzantineResult) judge() {
	honest := slices.IndexFunc(r.Rows, func(row LyingRow) bool { return row.Lying == 0 })
	for i, row := range r.Rows {
		if honest >= 0 {
			r.Rows[i].Ratio = harness.Ratio(row.StarlingS, r.Rows[honest].StarlingS)
		}
		switch {
		case row.Lying == 26 && honest >= 0:
			r.Targets = append(r.Targets, harness.AtMost("with 26 Byzantine peers at most 1.25× the honest time", 1.25, r.Rows[i].Ratio))
		case row.Lying == 79:
			r.Targets = append(r.Targets, harness.Target{
				Name: "with 79 Byzantine peers the join ends", Met: row.Unended == 0, Figure: row.StarlingS, Measure: fmt.Sprintf("%.3g s", row.StarlingS),
			})
		}
	}
}

// Print writes the table, notes that explain it, and the targets.
func (r *ByzantineResult) Print(out io.Writer) {
	cells := [][]string{{
		fmt.Sprintf("%s keys, Byzantine of %d peers", harness.Group(r.Keys), r.Peers), "join, s", "×", "chunks", "refetched", "bytes, MB", "wasted, MB", "banned", "CPU, s", "unended",
	}}
	for _, row := range r.Rows {
		cells = append(cells, []string{
			fmt.Sprint(row.Lying), fmt.Sprintf("%.3f", row.StarlingS), show("%.3g", row.Ratio), fmt.Sprint(row.Chunks), fmt.Sprint(row.Refetched),
			fmt.Sprintf("%.1f", float64(row.Bytes)/1e6), fmt.Sprintf("%.1f", float64(row.Wasted)/1e6), fmt.Sprint(row.Banned), fmt.Sprintf("%.2f", row.CPUS), show("%.0f", float64(row.Unended)),
		})
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
×        relative to the honest time
join     from connecting to durable, verified state; all peers share one process and one version, the joiner has its own; the median of %d
unended  joins that were aborted after %g s
lies     what Byzantine peers do, in turn: %q
`, r.Repeat, r.Limit, r.Lies)
	harness.PrintTargets(out, "80 peers and 1,000,000 keys", r.Targets)
}
