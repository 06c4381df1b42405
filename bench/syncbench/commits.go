package syncbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// commitModes are the modes of bench/sdk/node that are compared on the same blocks. The first is
// the baseline.
var commitModes = []string{"plain", "served", "joined"}

const (
	commitInterval = 10                 // blocks between two served states
	commitWarmUp   = 2 * commitInterval // unmeasured blocks, while caches are empty
	// commitGap is the pause between two blocks, during which serving can use the processors.
	commitGap = 20 * time.Millisecond
)

// CommitFigure is the cost of a node's blocks of 1,000 changes each, and what the node did
// meanwhile.
type CommitFigure struct {
	P50MS      float64 `json:"p50_ms"` // time of Commit
	P99MS      float64 `json:"p99_ms"`
	BlockP50MS float64 `json:"block_p50_ms"` // time of FinalizeBlock and Commit
	BlockP99MS float64 `json:"block_p99_ms"`
	MBPerS     float64 `json:"mb_per_s,omitempty"` // received by the joiner meanwhile
	PeakMB     float64 `json:"peak_mb"`            // peak of the node's memory
}

// commits starts three nodes on copies of one home, which make the same blocks in turns: one
// without serving, one that serves each tenth state, and one from which a joiner reads all the
// time.
func (r *runner) commits(ctx context.Context, o CosmosOptions, program, engine, home string, w *workload.Workload) (_ map[string]CommitFigure, err error) {
	var nodes []*commitNode
	defer func() {
		for _, n := range nodes {
			n.End()
			err = errors.Join(err, os.RemoveAll(n.dir))
		}
	}()
	for _, mode := range commitModes {
		n := &commitNode{mode: mode, dir: filepath.Join(filepath.Dir(home), "commits-"+mode)}
		if err := copyDatabase(home, n.dir); err != nil {
			return nil, err
		}
		if n.Process, err = harness.StartProgram(ctx, "the SDK's node", sdkBegin{Dir: n.dir, Backend: engine, Mode: mode, Interval: commitInterval}, nil, program, "node"); err != nil {
			return nil, err
		}
		n.Pause()
		nodes = append(nodes, n)
	}
	turns := (o.Commits+commitInterval-1)/commitInterval + commitWarmUp/commitInterval
	r.progress.Begin("commits", "turns", turns*len(nodes))
	for turn := range turns {
		var blocks [][]workload.Change
		for range commitInterval {
			blocks = append(blocks, w.Next())
		}
		var roots []string
		for i := range nodes {
			n := nodes[(i+turn)%len(nodes)] // so that each node follows each other node
			r.progress.Working(engine + ", " + n.mode)
			root, err := n.turn(ctx, blocks, turn*commitInterval >= commitWarmUp)
			if err != nil {
				return nil, err
			}
			roots = append(roots, root)
			r.progress.Add(1)
		}
		for _, root := range roots {
			if root != roots[0] {
				return nil, fmt.Errorf("nodes with the same blocks have different hashes: %x", roots)
			}
		}
	}
	figures := map[string]CommitFigure{}
	for _, n := range nodes {
		if figures[n.mode], err = n.figure(); err != nil {
			return nil, err
		}
	}
	return figures, nil
}

// commitNode is a process of bench/sdk/node.
type commitNode struct {
	*harness.Process
	mode, dir     string
	commit, block []float64 // ms
	took          time.Duration
}

// turn makes blocks, and returns the hash after them.
func (n *commitNode) turn(ctx context.Context, blocks [][]workload.Change, counts bool) (root string, err error) {
	n.Resume()
	defer n.Pause()
	from := time.Now()
	for _, changes := range blocks {
		var a sdkAnswer
		err := n.AskWith(sdkRequest{Op: "commit", N: len(changes)}, changes, &a)
		if err != nil {
			return "", err
		}
		if counts {
			n.commit, n.block = append(n.commit, float64(a.Nanos)/1e6), append(n.block, float64(a.BlockNanos)/1e6)
		}
		root = string(a.Root)
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(commitGap):
		}
	}
	n.took += time.Since(from)
	return root, nil
}

func (n *commitNode) figure() (f CommitFigure, err error) {
	n.Resume()
	var a sdkAnswer
	if err := n.Ask(sdkRequest{Op: "end"}, &a); err != nil {
		return f, err
	}
	if n.mode == commitModes[len(commitModes)-1] && a.Bytes == 0 {
		return f, errors.New("the joiner received nothing, so the measurement is void")
	}
	return CommitFigure{
		P50MS: harness.Median(n.commit), P99MS: harness.Percentile(n.commit, 99),
		BlockP50MS: harness.Median(n.block), BlockP99MS: harness.Percentile(n.block, 99),
		MBPerS: float64(a.Bytes) / 1e6 / n.took.Seconds(), PeakMB: float64(a.PeakBytes) / 1e6,
	}, nil
}

// printCommits writes a table with a line for each node.
func (r *CosmosResult) printCommits(out io.Writer) {
	rows := [][]string{{"ms", "Commit p50", "p99", "p99 over plain", "block p50", "p99", "MB/s to the joiner", "peak MB"}}
	for _, engine := range Engines {
		f := r.Engines[engine]
		for _, mode := range commitModes {
			if c, measured := f.Commits[mode]; measured {
				row := []string{engine + ", " + mode}
				for _, v := range []float64{c.P50MS, c.P99MS, harness.Ratio(c.P99MS, f.Commits[commitModes[0]].P99MS), c.BlockP50MS, c.BlockP99MS, c.MBPerS, c.PeakMB} {
					row = append(row, fmt.Sprintf("%.2f", v))
				}
				rows = append(rows, row)
			}
		}
	}
	if len(rows) == 1 {
		return
	}
	harness.PrintAligned(out, rows)
	fmt.Fprintf(out, `
SDK applications on copies of that home make the same blocks of 1,000 changes, one after another with pauses of %v, and take
turns of %d; the others are stopped. plain does not serve states (cosmos/sdk/serve); served offers the state of each tenth height, which
it reads once; joined also serves a joiner that reads the newest state's chunks all the time, as fast as possible (commit_p99_ratio).
`, commitGap, commitInterval)
}

// copyDatabase copies the database of a stopped application. It links tables, because they are
// never written to again.
func copyDatabase(from, to string) error {
	const name = "application.db"
	from, to = filepath.Join(from, name), filepath.Join(to, name)
	files, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, f := range files {
		move := copyFile
		if ext := filepath.Ext(f.Name()); ext == ".ldb" || ext == ".sst" {
			move = os.Link
		}
		if err := move(filepath.Join(from, f.Name()), filepath.Join(to, f.Name())); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
