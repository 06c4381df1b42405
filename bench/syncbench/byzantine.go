package syncbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
)

// ByzantineOptions are the options of a run against liars.
type ByzantineOptions struct {
	Keys   int
	Seed   uint64
	Peers  int
	Lying  []int    // numbers of liars, one row each
	Lies   []string // taken in turn by the liars
	Repeat int      // joins of each row
	Limit  float64  // seconds after which a join counts as one that does not end
	Dir    string
}

// DefaultLying is the paper's Fig. 7, and more.
var DefaultLying = []int{0, 1, 5, 10, 20, 26, 79}

const (
	maxPeers = 1000
	maxLimit = 100_000 // seconds
)

// Check returns an error that names the flag that is out of range, and the range.
func (o ByzantineOptions) Check() error {
	if err := checkKeys(o.Keys); err != nil {
		return err
	}
	switch {
	case o.Peers < 1 || o.Peers > maxPeers:
		return fmt.Errorf("--peers is %d, it must be from 1 to %d", o.Peers, maxPeers)
	case o.Repeat < 1 || o.Repeat > maxRepeat:
		return fmt.Errorf("--repeat is %d, it must be from 1 to %d", o.Repeat, maxRepeat)
	case !(o.Limit >= 1 && o.Limit <= maxLimit):
		return fmt.Errorf("--limit is %v s, it must be from 1 to %d", o.Limit, maxLimit)
	case len(o.Lying) == 0:
		return errors.New("--lying names no number of liars")
	case len(o.Lies) == 0:
		return fmt.Errorf("--lies names none, it knows %q", Lies)
	}
	for i, n := range o.Lying {
		switch {
		case n < 0 || n >= o.Peers:
			return fmt.Errorf("--lying names %d of %d peers: at least one must be honest", n, o.Peers)
		case slices.Contains(o.Lying[:i], n):
			return fmt.Errorf("--lying names %d twice, once is enough", n)
		}
	}
	for _, lie := range o.Lies {
		if !slices.Contains(Lies, lie) {
			return fmt.Errorf("--lies names %q, it knows %q", lie, Lies)
		}
	}
	return nil
}

// ByzantineResult is the outcome of a run.
type ByzantineResult struct {
	Keys    int             `json:"keys"`
	Peers   int             `json:"peers"`
	Lies    []string        `json:"lies"`
	Rows    []LyingRow      `json:"rows"`
	Seed    uint64          `json:"seed"`
	Repeat  int             `json:"repeat"`
	Limit   float64         `json:"limit_s"`
	Machine harness.Machine `json:"machine"`
	Goals   []Goal          `json:"targets"`
}

// LyingRow is the join of the median time, with one number of liars.
type LyingRow struct {
	Lying     int       `json:"lying"`
	StarlingS float64   `json:"starling_s"`
	Ratio     float64   `json:"ratio"` // to the honest row, or 0 without one
	Chunks    int       `json:"chunks"`
	Refetched int       `json:"refetched"` // chunks re-requested
	Bytes     int64     `json:"bytes"`     // received
	Wasted    int64     `json:"wasted_bytes"`
	Banned    int       `json:"banned"`
	Unended   int       `json:"unended"` // joins that did not end within the limit
	CPUS      float64   `json:"cpu_s"`   // of all peers and the joiner
	Seconds   []float64 `json:"seconds"` // of each join
}

// RunByzantine measures joins from many peers, of which some lie. The peers are in one process,
// over one version.
func RunByzantine(ctx context.Context, o ByzantineOptions, progress *harness.Progress) (*ByzantineResult, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	result := &ByzantineResult{Keys: o.Keys, Peers: o.Peers, Lies: o.Lies, Seed: o.Seed, Repeat: o.Repeat, Limit: o.Limit, Machine: harness.ThisMachine()}
	err := harness.InFolder(ctx, o.Dir, "databases", progress, func(dir string) error {
		r := &runner{o: Options{Keys: o.Keys, Seed: o.Seed}, dir: dir, progress: progress}
		server, err := r.startLoaded(ctx, roleServer)
		if err != nil {
			return err
		}
		defer server.End()
		progress.Begin("join", "joins", len(o.Lying)*o.Repeat)
		joins := make([][]joined, len(o.Lying))
		for round := range o.Repeat {
			for i := range o.Lying { // in turns; each round starts with another row
				i = (i + round) % len(o.Lying)
				j, err := r.joinLiars(ctx, server, o, o.Lying[i])
				if err != nil {
					return fmt.Errorf("%d of %d peers lie: %w", o.Lying[i], o.Peers, err)
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

// joinLiars opens new peers, so that none is known as a liar. The seed shuffles honest ones and
// liars in the joiner's list.
func (r *runner) joinLiars(ctx context.Context, server *harness.Process, o ByzantineOptions, lying int) (j joined, err error) {
	r.progress.Working(fmt.Sprintf("%d of %d lie", lying, o.Peers))
	q := request{Op: opServe, Peers: o.Peers}
	for i := range lying {
		q.Lies = append(q.Lies, o.Lies[i%len(o.Lies)])
	}
	var serving answer
	if err := server.Ask(q, &serving); err != nil {
		return j, err
	}
	t := serving.Target
	rng := rand.New(rand.NewPCG(o.Seed, uint64(lying))) //nolint:gosec // the same every time, by the seed
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
	row.StarlingS = harness.Median(row.Seconds)
	m := joins[slices.Index(row.Seconds, row.StarlingS)]
	row.Chunks, row.Refetched, row.Banned = m.Stats.Chunks, m.Stats.Refetched, m.Stats.Banned
	row.Bytes, row.Wasted, row.CPUS = m.Stats.Bytes, m.Stats.Wasted, m.serverCPU+m.CPU
	return row
}

// judge compares the rows with the honest one.
func (r *ByzantineResult) judge() {
	honest := slices.IndexFunc(r.Rows, func(row LyingRow) bool { return row.Lying == 0 })
	for i, row := range r.Rows {
		if honest >= 0 {
			r.Rows[i].Ratio = harness.Ratio(row.StarlingS, r.Rows[honest].StarlingS)
		}
		switch {
		case row.Lying == 26 && honest >= 0:
			r.Goals = append(r.Goals, atMost("with 26 liars at most 1.25× the honest time", 1.25, r.Rows[i].Ratio))
		case row.Lying == 79:
			r.Goals = append(r.Goals, Goal{
				Name: "with 79 liars it still ends", Met: row.Unended == 0, Figure: row.StarlingS, Measure: fmt.Sprintf("%.3g s", row.StarlingS),
			})
		}
	}
}

// Print writes the table, notes on how to read it, and the targets.
func (r *ByzantineResult) Print(out io.Writer) {
	cells := [][]string{{
		fmt.Sprintf("%s keys, of %d peers lie", harness.Group(r.Keys), r.Peers), "join, s", "×", "chunks", "refetched", "bytes, MB", "wasted, MB", "banned", "CPU, s", "unended",
	}}
	for _, row := range r.Rows {
		cells = append(cells, []string{
			fmt.Sprint(row.Lying), fmt.Sprintf("%.3f", row.StarlingS), show("%.3g", row.Ratio), fmt.Sprint(row.Chunks), fmt.Sprint(row.Refetched),
			fmt.Sprintf("%.1f", float64(row.Bytes)/1e6), fmt.Sprintf("%.1f", float64(row.Wasted)/1e6), fmt.Sprint(row.Banned), fmt.Sprintf("%.2f", row.CPUS), show("%.0f", float64(row.Unended)),
		})
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
×        over the honest time
join     from connecting to durable, verified state; all peers are in one process over one version, the joiner in another; the median of %d
unended  joins that were given up after %g s
lies     taken in turn by the liars: %q
`, r.Repeat, r.Limit, r.Lies)
	printGoals(out, "80 peers and 1,000,000 keys", r.Goals)
}
