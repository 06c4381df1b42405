package dsmbench

import (
	"context"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
)

// runNodes measures storage nodes, separately for each number of them: with one range each, and
// then with the largest number of ranges on fewer nodes.
func (r *runner) runNodes(ctx context.Context, dir string) error {
	most := r.o.Shards[len(r.o.Shards)-1]
	var fewer []int
	for _, n := range r.o.Together {
		if n < most && r.o.has(phaseNodes) {
			fewer = append(fewer, n)
		}
	}
	r.progress.Begin("storage nodes", "rows", len(r.o.Shards)+len(fewer))
	for i, n := range append(slices.Clone(r.o.Shards), fewer...) {
		ranges, rows := n, &r.result.ShardRows
		if i >= len(r.o.Shards) {
			ranges, rows = most, &r.result.TogetherRows
		}
		r.progress.Working(harness.Count(n, "node"))
		row, err := r.shardRow(ctx, filepath.Join(dir, "nodes"), n, ranges, i == len(r.o.Shards)-1)
		if err != nil {
			return err
		}
		*rows = append(*rows, row)
		r.progress.Add(1)
	}
	return nil
}

func (r *runner) shardRow(ctx context.Context, dir string, n, ranges int, last bool) (row ShardRow, err error) {
	row.Shards, row.Ranges = n, ranges
	debug.FreeOSMemory()
	nodes, err := startNodes(ctx, dir, n, ranges, r.chain.newest())
	if err != nil {
		return row, err
	}
	defer nodes.end()
	if r.o.has(phaseNodes) {
		if err := r.serve(ctx, nodes, &row); err != nil {
			return row, err
		}
	}
	join := last && r.o.has(phaseJoin)
	txs, err := r.put(ctx, nodes, &row, join)
	if err != nil {
		return row, err
	}
	if _, row.MemoryBytes, err = nodes.usage(); err != nil {
		return row, err
	}
	if !join {
		return row, nil
	}
	r.result.Join, err = r.join(ctx, nodes, txs)
	return row, err
}

// serve measures how fast storage nodes serve witnesses.
func (r *runner) serve(ctx context.Context, nodes *storageNodes, row *ShardRow) error {
	// A separate generator draws the keys: the blocks are not executed.
	g := newGenerator(r.chain.g.spec)
	g.epoch, g.closed = r.chain.g.epoch, r.chain.g.closed
	measure := func(apart bool) (cpu, ask, seconds, bytes float64, err error) {
		var blocks [][]avlstar.Want
		for range r.o.few(servedBlocks) {
			b := g.next(false)
			blocks = append(blocks, b.wants(true))
		}
		cost, err := nodes.serve(ctx, r.chain.newest().height, r.o.Retain, blocks, apart)
		keys := float64(cost.keys)
		return cost.cpu / keys * 1e6, cost.ask / keys * 1e6, cost.seconds / keys, float64(cost.bytes) / keys, err
	}
	var cpu, ask, seconds, cpuApart, askApart []float64
	for range servedRounds {
		c, a, s, bytes, err := measure(false)
		if err != nil {
			return err
		}
		cpu, ask, seconds, row.BytesKey = append(cpu, c), append(ask, a), append(seconds, s), bytes
		if row.Ranges == row.Shards {
			continue
		}
		if c, a, _, _, err = measure(true); err != nil {
			return err
		}
		cpuApart, askApart = append(cpuApart, c), append(askApart, a)
	}
	row.CPUMicros, row.AskMicros = harness.Median(cpu), harness.Median(ask)
	if len(cpuApart) > 0 {
		row.ApartMicros, row.AskApartMicros = harness.Median(cpuApart), harness.Median(askApart)
	}
	row.OpsCore = harness.Ratio(1e6, row.CPUMicros)
	row.OpsS = harness.Ratio(1, harness.Median(seconds))
	return nil
}

// put makes blocks, and measures how storage nodes ingest their updates. If sign is set, it returns
// the signed transactions of these blocks.
func (r *runner) put(ctx context.Context, nodes *storageNodes, row *ShardRow, sign bool) (txs [][][]byte, err error) {
	updates := make([][][]byte, len(nodes.shards))
	before, puts, n := r.chain.newest().height, 0, r.o.few(putBlocks)
	r.chain.keep = max(r.chain.keep, n+1)
	for range n {
		b := r.chain.g.next(false)
		if sign {
			signed, err := r.chain.g.sign(b)
			if err != nil {
				return nil, err
			}
			txs = append(txs, signed)
		}
		base := r.chain.newest()
		if err := r.chain.advance(b, nil); err != nil {
			return nil, err
		}
		for i, s := range nodes.shards {
			u, err := r.chain.newest().UpdateOf(base.Version, s.Range.tree(), b.changes)
			if err != nil {
				return nil, err
			}
			updates[i] = append(updates[i], u.Encode())
			row.UpdateBytes += len(updates[i][len(updates[i])-1])
		}
		puts += len(b.changes)
		for _, c := range b.changes {
			row.changed += uint64(len(c.Key) + len(c.Value))
		}
	}
	row.puts, row.updates = puts, uint64(row.UpdateBytes)
	row.UpdateBytes /= n
	if err := nodes.prove(r.chain.recent[len(r.chain.recent)-n:]); err != nil {
		return nil, err
	}
	used, _, err := nodes.usage()
	if err != nil {
		return nil, err
	}
	from := time.Now()
	if err := nodes.feed(ctx, before+1, updates); err != nil {
		return nil, err
	}
	row.PutS = float64(puts) / time.Since(from).Seconds()
	after, _, err := nodes.usage()
	row.PutCPUMicros = (after - used) / float64(puts) * 1e6
	return txs, err
}

// join starts a process that joins at a height served by the nodes, and executes the blocks after
// it.
func (r *runner) join(ctx context.Context, nodes *storageNodes, txs [][][]byte) (j Joined, err error) {
	p, err := harness.StartRunning(ctx, ChildName, roleJoiner, begin{Role: roleJoiner, Retain: r.o.Retain, Window: r.o.Window, Nodes: nodes.shards}, nil)
	if err != nil {
		return j, err
	}
	defer p.End()
	count := min(joinBlocks, len(txs))
	start := r.chain.recent[len(r.chain.recent)-1-count]
	q := request{Op: opJoin, Height: start.height, Hashes: []avlstar.Hash{start.AppHash(), r.chain.newest().AppHash()}, Txs: txs[len(txs)-count:]}
	var a answer
	err = p.Ask(q, &a)
	return a.Join, err
}
