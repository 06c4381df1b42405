package dsmbench

import (
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
)

// Print writes the tables, notes on how to read them, and the targets.
func (r *Result) Print(out io.Writer) {
	r.printApps(out)
	r.printSizes(out)
	r.printNodes(out)
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
	fmt.Fprintf(out, "\nTargets (they are set for %s keys, r 12 and a window of 32)\n", harness.Group(1_000_000))
	for _, t := range r.Targets {
		verdict := "not met"
		if t.Met {
			verdict = "met"
		}
		fmt.Fprintf(out, "  %-8s%s: %s\n", verdict, t.Name, t.Measure)
	}
}

func (r *Result) printApps(out io.Writer) {
	if r.Transfers.Apps == nil {
		return
	}
	cells := [][]string{{fmt.Sprintf("%s keys, applications", harness.Group(r.Keys)), "tx/s", "×", "CPU, µs/tx", "of which graft", "fetched", "tree, MB"}}
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
	cells := [][]string{{"bytes a transaction", "transfers", "5 % deletions"}, row("full ways", "%.0f", t.RawBytesTx, d.RawBytesTx), row("bag, nothing held", "%.0f", t.ColdBytesTx, d.ColdBytesTx)}
	for i := range t.Depths {
		cells = append(cells, row(fmt.Sprintf("bag, r %d", t.Depths[i].Depth), "%.0f", t.Depths[i].BagBytesTx, d.Depths[i].BagBytesTx))
	}
	for i := range t.Depths {
		cells = append(cells, row(fmt.Sprintf("memory, MB, r %d", t.Depths[i].Depth), "%.1f", float64(t.Depths[i].MemoryBytes)/1e6, float64(d.Depths[i].MemoryBytes)/1e6))
	}
	cells = append(cells, row(fmt.Sprintf("  of %.0f MB, r %d", float64(r.TreeBytes)/1e6, r.Retain), "%.3f", t.Depths[0].MemoryRatio, d.Depths[0].MemoryRatio))
	harness.PrintAligned(out, cells)
	fmt.Fprintln(out)
	cells = [][]string{{"bags of age", "missed", "stale", "missed, deletions", "stale"}}
	for i, a := range t.Ages {
		b := d.Ages[i]
		cells = append(cells, []string{harness.Count(a.Age, "block"), fmt.Sprintf("%.3g", a.MissRate), fmt.Sprintf("%.3f", a.StaleRate), fmt.Sprintf("%.3g", b.MissRate), fmt.Sprintf("%.3f", b.StaleRate)})
	}
	harness.PrintAligned(out, cells)
}

func (r *Result) printNodes(out io.Writer) {
	if len(r.ShardRows) == 0 {
		return
	}
	fmt.Fprintln(out)
	cells := [][]string{{"storage nodes", "keys/s and core", "CPU, µs/key", "keys/s", "bytes/key", "puts/s", "CPU, µs/put", "update, KB", "memory, MB"}}
	for _, s := range r.ShardRows {
		cells = append(cells, []string{
			fmt.Sprint(s.Shards), fmt.Sprintf("%.0f", s.OpsCore), fmt.Sprintf("%.2f", s.CPUMicros), fmt.Sprintf("%.0f", s.OpsS), fmt.Sprintf("%.0f", s.BytesKey),
			fmt.Sprintf("%.0f", s.PutS), fmt.Sprintf("%.2f", s.PutCPUMicros), fmt.Sprintf("%.0f", float64(s.UpdateBytes)/1e3), fmt.Sprintf("%.0f", float64(s.MemoryBytes)/1e6),
		})
	}
	harness.PrintAligned(out, cells)
}

func (r *Result) printNotes(out io.Writer) {
	fmt.Fprintf(out, `
transfers   %s signed transactions in a block, of %s signers: two compare-and-puts each, among accounts of which a tenth take part nine times
            of ten; keys of %d bytes, values of %d. With deletions, 5 %% of them delete an account, and 5 %% make one
local       everything in memory; paged: %d MiB for what `+"`state_in_memory = false`"+` shares. All execute blocks whose signatures were checked before,
            until they are committed; by the median block, %d of them. No CometBFT
sharded     the tree to depth r, all bookkeeping records, and what changed or came in the last %d blocks. The block's bag is in this process, encoded:
            decoding and grafting it count, making it and the network do not. fetched: requests while blocks were executed
full ways   for each transaction those of its two accounts and its nonce: images of inner nodes (%d bytes and a key), and leaves
bags        one for a block; what the receiver has is named by its stubs, and bookkeeping records are among that
missed      ways in a bag of that age to keys that were there then, which the receiver could not use; stale: transactions of which a way has changed below
            depth r, which a scheme without revision would reject
nodes       processes that answer over TLS on loopback, all on this machine; CPU time is theirs. A block's keys are asked for at once, below depth r.
            puts: updates of %d blocks until they are replayed, logged and synced by all; puts/s is by the clock of this machine
join        the upper tree from these nodes, and %d blocks that nothing was fetched for before, in a new process with dsm/source; bytes are those received
`, harness.Group(r.BlockTx), harness.Group(r.Signers), keyBytes, valueBytes, r.PagedMB, r.Blocks, r.Window, imageBytes, putBlocks, joinBlocks)
}
