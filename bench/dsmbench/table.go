package dsmbench

import (
	"fmt"
	"io"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
)

// Print writes the tables, notes that explain them, and the targets.
func (r *Result) Print(out io.Writer) {
	r.printApps(out)
	r.printSizes(out)
	r.printNodes(out)
	r.printPrefetch(out)
	if g := r.Range; g.Keys > 0 {
		fmt.Fprintf(out, "\na range on disk  %.0f keys/s and core with %.0f MB, %.0f in memory; %.2f bytes written per changed byte; a start after SIGKILL %.2f s, then with %.0f MB %.0f MB of memory\n",
			g.PagedS, float64(g.MemoryBytes)/1e6, g.MemoryS, g.BytesPerChanged, g.StartS, float64(g.RSSBudget)/1e6, float64(g.RSS)/1e6)
	}
	for _, s := range r.Starts {
		fmt.Fprintf(out, "\na start after SIGKILL with %s  %.2f s, of %.2f to %.2f s\n", harness.Count(s.Keys, "key"), s.Seconds, slices.Min(s.All), slices.Max(s.All))
	}
	r.printFeed(out)
	for _, failed := range r.Failed {
		fmt.Fprintf(out, "\nNot measured: %s\n", failed)
	}
	if m := r.Moves; m != nil {
		fmt.Fprintf(out, "\na move of %.0f MB  %.1f s [%.1f, %.1f]; the node has the range after %.1f s; a plain copy takes %.2f s; load %.1f\n",
			float64(m.Bytes)/1e6, m.Seconds, m.Interval.Low, m.Interval.High, m.FetchSeconds, m.CopySeconds, m.Load)
		fmt.Fprintf(out, "    during moves: p99 of %d blocks %.0f ms, longest halt %.2f s; without: %d blocks, %.0f ms, %.2f s; %d of %d puts failed\n",
			m.MovingBlocks, m.MovingP99, m.MovingHalt, m.CalmBlocks, m.CalmP99, m.CalmHalt, m.Failed, m.Puts)
	}
	if j := r.Join; j.Blocks > 0 {
		fmt.Fprintf(out, "\njoin, without CometBFT  %.3f s, %.2f MB: the upper tree %.3f s, %.2f MB; then %s of %s transactions; %s, %.2f MB of requests, CPU %.2f s\n",
			j.Seconds, float64(j.Bytes)/1e6, j.UpperS, float64(j.UpperBytes)/1e6, harness.Count(j.Blocks, "block"), harness.Group(r.BlockTx),
			harness.Count(j.Fetches, "fetch"), float64(j.SentBytes)/1e6, j.CPUS)
	}
	fmt.Fprintf(out, "a header with the commit of %d validators  %d bytes\n", headerValidators, r.HeaderBytes)
	r.printNotes(out)
	if r.Quick {
		fmt.Fprintln(out, "\nA quick run: the figures mean nothing.")
		return
	}
	harness.PrintTargets(out, "1,000,000 keys, r 12 and a window of 32", r.Targets)
}

func (r *Result) printFeed(out io.Writer) {
	if len(r.Feed) == 0 {
		return
	}
	cells := [][]string{{"updates", "changed ranges", "ms per block", "CPU, ms", "kept, MB", "memory, MB"}}
	for _, f := range r.Feed {
		cells = append(cells, []string{
			harness.Count(f.Ranges, "range"), fmt.Sprintf("%.0f", f.Changed), fmt.Sprintf("%.1f", f.MS), fmt.Sprintf("%.1f", f.CPUMS),
			fmt.Sprintf("%.0f", float64(f.KeptBytes)/1e6), fmt.Sprintf("%.0f", float64(f.MemoryBytes)/1e6),
		})
	}
	fmt.Fprintln(out)
	harness.PrintAligned(out, cells)
}

func (r *Result) printApps(out io.Writer) {
	if r.Transfers.Apps == nil {
		return
	}
	cells := [][]string{{fmt.Sprintf("%s keys, applications", harness.Group(r.Keys)), "tx/s", "×", "CPU, µs/tx", "thereof graft", "fetched", "tree, MB"}}
	for _, w := range []struct {
		name string
		apps map[string]App
	}{{"transfers", r.Transfers.Apps}, {"5 % deletions", r.Deletions.Apps}} {
		for _, mode := range []string{modeLocal, modeSharded, modePaged} {
			a := w.apps[mode]
			cells = append(cells, []string{
				w.name + ", " + mode, fmt.Sprintf("%.0f", a.TPS), fmt.Sprintf("%.3g", harness.Ratio(a.TPS, w.apps[modeLocal].TPS)), fmt.Sprintf("%.1f", a.CPUMicros),
				fmt.Sprintf("%.1f", a.GraftMicros), fmt.Sprint(a.Fetched), fmt.Sprintf("%.0f", float64(a.TreeBytes)/1e6),
			})
		}
	}
	harness.PrintAligned(out, cells)
}

func (r *Result) printSizes(out io.Writer) {
	if r.Transfers.Sizes == nil {
		return
	}
	t, d := r.Transfers.Sizes, r.Deletions.Sizes
	row := func(name, format string, a, b float64) []string {
		return []string{name, fmt.Sprintf(format, a), fmt.Sprintf(format, b)}
	}
	fmt.Fprintln(out)
	cells := [][]string{{"bytes per transaction", "transfers", "5 % deletions"}, row("full paths", "%.0f", t.RawBytesTx, d.RawBytesTx), row("multiproof, nothing held", "%.0f", t.ColdBytesTx, d.ColdBytesTx)}
	for i := range t.Depths {
		cells = append(cells, row(fmt.Sprintf("multiproof, r %d", t.Depths[i].Depth), "%.0f", t.Depths[i].MultiproofBytesTx, d.Depths[i].MultiproofBytesTx))
	}
	for i := range t.Depths {
		cells = append(cells, row(fmt.Sprintf("memory, MB, r %d", t.Depths[i].Depth), "%.1f", float64(t.Depths[i].MemoryBytes)/1e6, float64(d.Depths[i].MemoryBytes)/1e6))
	}
	cells = append(cells, row(fmt.Sprintf("  of %.0f MB, r %d", float64(r.TreeBytes)/1e6, r.Retain), "%.3f", t.Depths[0].MemoryRatio, d.Depths[0].MemoryRatio))
	harness.PrintAligned(out, cells)
	fmt.Fprintln(out)
	cells = [][]string{{"multiproofs of age", "missed", "stale", "missed, deletions", "stale"}}
	for i, a := range t.Ages {
		b := d.Ages[i]
		cells = append(cells, []string{harness.Count(a.Age, "block"), fmt.Sprintf("%.3g", a.MissRate), fmt.Sprintf("%.3f", a.StaleRate), fmt.Sprintf("%.3g", b.MissRate), fmt.Sprintf("%.3f", b.StaleRate)})
	}
	harness.PrintAligned(out, cells)
	r.printStale(out)
}

// printStale has a row for each number of accounts, and a column for each r.
func (r *Result) printStale(out io.Writer) {
	if len(r.Stale) == 0 {
		return
	}
	cells := [][]string{{"stale after a block"}}
	for _, s := range r.Stale {
		if s.Keys == r.Stale[0].Keys {
			cells[0] = append(cells[0], fmt.Sprintf("r %d", s.Depth))
		}
		name := harness.Count(s.Keys, "account")
		if cells[len(cells)-1][0] != name {
			cells = append(cells, []string{name})
		}
		cells[len(cells)-1] = append(cells[len(cells)-1], fmt.Sprintf("%.3f", s.StaleRate))
	}
	fmt.Fprintln(out)
	harness.PrintAligned(out, cells)
}

func (r *Result) printNodes(out io.Writer) {
	if len(r.ShardRows) == 0 {
		return
	}
	fmt.Fprintln(out)
	cells := [][]string{{"storage nodes", "keys/s and core", "CPU, µs/key", "of the requester", "keys/s", "bytes/key", "puts/s", "CPU, µs/put", "update, KB", "memory, MB"}}
	for _, s := range append(slices.Clone(r.ShardRows), r.TogetherRows...) {
		name := fmt.Sprint(s.Shards)
		if s.Ranges > s.Shards {
			name += " with " + harness.Count(s.Ranges, "range")
		}
		cells = append(cells, []string{
			name, fmt.Sprintf("%.0f", s.OpsCore), fmt.Sprintf("%.2f", s.CPUMicros), fmt.Sprintf("%.2f", s.AskMicros), fmt.Sprintf("%.0f", s.OpsS), fmt.Sprintf("%.0f", s.BytesKey),
			fmt.Sprintf("%.0f", s.PutS), fmt.Sprintf("%.2f", s.PutCPUMicros), fmt.Sprintf("%.0f", float64(s.UpdateBytes)/1e3), fmt.Sprintf("%.0f", float64(s.MemoryBytes)/1e6),
		})
	}
	harness.PrintAligned(out, cells)
	for _, s := range r.TogetherRows {
		fmt.Fprintf(out, "%s with %s, a request for each range: CPU %.2f µs/key, of the requester %.2f\n",
			harness.Count(s.Shards, "node"), harness.Count(s.Ranges, "range"), s.ApartMicros, s.AskApartMicros)
	}
}

func (r *Result) printPrefetch(out io.Writer) {
	if len(r.Prefetch) == 0 {
		return
	}
	fmt.Fprintln(out)
	cells := [][]string{{"round trip, prefetch", "keys/s", "left out", "requests", "KB", "process: no wait", "p50, ms", "p99, ms", "requests", "KB", "finalize: no wait", "p99, ms", "rejected"}}
	for _, p := range r.Prefetch {
		cells = append(cells, []string{
			fmt.Sprintf("%d ms", p.DelayMS), fmt.Sprintf("%.0f", p.KeysS), fmt.Sprintf("%.3f", p.LeftOut), fmt.Sprintf("%.1f", p.Ahead.Rounds), fmt.Sprintf("%.0f", p.Ahead.Bytes/1e3),
			fmt.Sprintf("%.2f", p.Process.Unwaited), fmt.Sprintf("%.0f", p.Process.P50MS), fmt.Sprintf("%.0f", p.Process.P99MS), fmt.Sprintf("%.1f", p.Process.Rounds), fmt.Sprintf("%.0f", p.Process.Bytes/1e3),
			fmt.Sprintf("%.2f", p.Finalize.Unwaited), fmt.Sprintf("%.0f", p.Finalize.P99MS), fmt.Sprint(p.Rejected),
		})
	}
	harness.PrintAligned(out, cells)
}

func (r *Result) printNotes(out io.Writer) {
	fmt.Fprintf(out, `
transfers   %s signed transactions per block, by %s signers: two compare-and-puts each. Nine times out of ten an account is drawn from a tenth
            of the accounts. Keys have %d bytes, values %d. With deletions, 5 %% of the transactions delete an account, and 5 %% create one
local       everything in memory; paged: %d MiB of memory for all that `+"`state_in_memory = false`"+` caches. Blocks are executed and committed after
            their signatures were checked; older states stay as by default; figures are those of the median of %d blocks. No CometBFT
sharded     the tree to depth r, all system keys, and what was changed or fetched in the last %d blocks. The block's multiproof is encoded in this process:
            decoding and grafting count, encoding and the network do not. fetched: requests during the execution of blocks
full paths  for each transaction, the paths of its two accounts and its nonce: images of inner nodes (%d bytes and a key), and leaves
multiproofs        one per block; it omits nodes that the receiver has as stubs, and system keys
missed      paths in a multiproof of that age, to keys that existed then, that the receiver could not use; stale: transactions with a path that
            changed below depth r, which a scheme without revision would reject
nodes       processes that serve over TLS on loopback, all on this machine; the CPU time is theirs. A block's keys are requested together, below
            depth r, in one request for all ranges of a node; the requester decodes the answers. puts: updates of %d blocks, until all nodes have replayed, logged and synced them; puts/s is by wall time
range       two storage nodes with all keys replay, log, sync and write the same updates: one has a quarter of the memory that its tree takes
            in memory. They serve the last %d heights
start       a storage node with all keys, and a quarter of the memory that the range takes (256 MiB at most), is killed after %d blocks and started;
            the median of %d. A start ends when it serves
prefetch    a new process with dsm/client and %s, each call of which takes a round trip longer. keys/s: from the first CheckTx of %d blocks until all
            nodes are there. Then %d blocks each %v, of up to %d transactions with %d accounts that nothing requested before; requests and KB are per block
move        4 sharded validators, 4 storage nodes, 2 ranges with 2 nodes each: `+"`starlingd storage ranges move`"+` moves a replica to a node of the other range
            and back, while %d clients put. A move begins when the node has deleted its former copy, and ends when the command does. copy: as many bytes over
            loopback into a file, which is synced
join        the upper tree from these nodes, and %d blocks without prefetched nodes, in a new process with dsm/client; bytes are those received
`, harness.Group(r.BlockTx), harness.Group(r.Signers), keyBytes, valueBytes, r.PagedMB, r.Blocks, r.Window, imageBytes, putBlocks, rangeHeights,
		rangeRounds*putBlocks, startTurns, harness.Count(r.Shards[0], "storage node"), prefetchBatch, prefetchBlocks, prefetchInterval, prefetchTxs, prefetchPuts, moveWriters, joinBlocks)
}
