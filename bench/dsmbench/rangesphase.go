package dsmbench

import (
	"context"
	"path/filepath"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/transport/tcp"
)

const (
	// rangeRounds is the number of rounds of putBlocks blocks; the first one is not counted.
	rangeRounds = 4
	// rangeHeights is the number of heights that storage nodes serve in this phase: blocks are
	// written to disk soon.
	rangeHeights = 8
	// rangeShare: one of the storage nodes has this part of the memory that the range takes.
	rangeShare = 4
	// mostBudget limits the budget of the node that starts after a crash, whose memory is measured.
	mostBudget = 256 << 20
)

// runRanges measures a range on disk: two storage nodes ingest the same updates, one of which has a
// quarter of the memory that the range takes, the other one all that it wants. Then the first one
// is killed and starts again, with mostBudget at most.
func (r *runner) runRanges(ctx context.Context, dir string) error {
	v := r.chain.newest()
	size := int64(treeBytes(v.Memory()))
	r.progress.Begin("a range on disk", "rounds", rangeRounds)
	dialer, err := newDialer(tcp.Hooks{})
	if err != nil {
		return err
	}
	nodes := &storageNodes{}
	defer func() { nodes.end() }()
	var started begin
	for _, n := range []struct {
		name  string
		bytes int64
	}{{"paged", size / rangeShare}, {"in memory", 4 * size}} {
		b := begin{Role: roleNode, Dir: filepath.Join(dir, n.name), Ranges: []keyRange{{}}, PagedBytes: n.bytes, Heights: rangeHeights}
		r.progress.Working(n.name)
		if err := createIn(b, 0, v, v.Leaves()); err != nil {
			return err
		}
		if err := nodes.start(ctx, dialer, "storage node, "+n.name, b); err != nil {
			return err
		}
		if len(nodes.nodes) == 1 {
			started = b
		}
	}
	out := &r.result.Range
	out.MemoryBytes = size / rangeShare
	var cpu [2]float64
	var written, changed uint64
	for round := range rangeRounds {
		before, err := nodes.usages()
		if err != nil {
			return err
		}
		var row ShardRow
		if _, err := r.put(ctx, nodes, &row, false); err != nil {
			return err
		}
		after, err := nodes.usages()
		if err != nil {
			return err
		}
		if round > 0 {
			out.Keys += row.puts
			changed += row.changed
			// The log has the updates; row counts those of both nodes.
			written += after[0].Written - before[0].Written + row.updates/uint64(len(nodes.nodes))
			for i := range cpu {
				cpu[i] += after[i].CPU - before[i].CPU
			}
		}
		r.progress.Add(1)
	}
	out.PagedS, out.MemoryS = float64(out.Keys)/cpu[0], float64(out.Keys)/cpu[1]
	out.BytesPerChanged = harness.Ratio(float64(written), float64(changed))
	r.progress.Working("a start after SIGKILL")
	started.PagedBytes = min(started.PagedBytes, mostBudget)
	again, seconds, err := startAgain(ctx, dialer, nodes, started)
	defer again.end()
	if err != nil {
		return err
	}
	out.StartS = seconds
	if _, err := r.put(ctx, again, new(ShardRow), false); err != nil {
		return err
	}
	_, out.RSS, err = again.usage()
	out.RSSBudget = started.PagedBytes
	return err
}
