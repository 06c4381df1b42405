package dsmbench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// startTurns is the number of crashes and starts of a storage node, for each size of the state.
const startTurns = 3

// StartRow has the figures of a storage node with a whole state that starts after SIGKILL.
type StartRow struct {
	Keys    int       `json:"keys"`
	Seconds float64   `json:"seconds"` // median
	All     []float64 `json:"all"`
}

// runStarts measures starts with states of several sizes.
func (r *runner) runStarts(ctx context.Context, dir string) error {
	for _, keys := range r.o.StartKeys {
		o := r.o
		o.Keys = keys
		one := &runner{o: o, progress: r.progress, result: new(Result)}
		row, err := one.starts(ctx, filepath.Join(dir, fmt.Sprint(keys)))
		if err != nil {
			return err
		}
		r.result.Starts = append(r.result.Starts, row)
		debug.FreeOSMemory() // of the full tree
	}
	return os.RemoveAll(dir)
}

func (r *runner) starts(ctx context.Context, dir string) (row StartRow, err error) {
	row.Keys = r.o.Keys
	if err := r.load(); err != nil {
		return row, err
	}
	defer r.release()
	dialer, err := newDialer(tcp.Hooks{})
	if err != nil {
		return row, err
	}
	v := r.chain.newest()
	b := begin{Role: roleNode, Dir: dir, Ranges: []keyRange{{}}, PagedBytes: min(int64(treeBytes(v.Memory()))/rangeShare, mostBudget), Heights: rangeHeights}
	r.progress.Begin(fmt.Sprintf("starts with %s", harness.Count(r.o.Keys, "key")), "starts", startTurns)
	if err := createIn(b, 0, v, v.Leaves()); err != nil {
		return row, err
	}
	nodes := &storageNodes{}
	defer func() { nodes.end() }()
	if err := nodes.start(ctx, dialer, "storage node", b); err != nil {
		return row, err
	}
	for range startTurns {
		for range rangeRounds {
			if _, err := r.put(ctx, nodes, new(ShardRow), false); err != nil {
				return row, err
			}
		}
		again, seconds, err := startAgain(ctx, dialer, nodes, b)
		nodes.end()
		nodes = again
		if err != nil {
			return row, err
		}
		row.All = append(row.All, seconds)
		r.progress.Add(1)
	}
	row.Seconds = harness.Median(row.All)
	return row, nil
}

// startAgain kills the first storage node, and starts it again. The caller ends the result, also
// after an error.
func startAgain(ctx context.Context, dialer transport.Dialer, nodes *storageNodes, b begin) (again *storageNodes, seconds float64, err error) {
	nodes.nodes[0].Kill()
	again = &storageNodes{}
	began := time.Now()
	err = again.start(ctx, dialer, "storage node after SIGKILL", b)
	return again, time.Since(began).Seconds(), err
}
