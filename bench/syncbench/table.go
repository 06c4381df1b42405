package syncbench

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/starling-kv/starling/bench/harness"
)

// column is a contestant's column in the table. Figures of zero are not shown.
type column struct {
	name         string
	seconds      float64
	all          []float64 // seconds of each join
	fetched, cpu float64
	settled      float64
	blocks       *SettlingBlocks
	create       float64
	bytes        int64
	memory       harness.Memory // both sides
	joiner       harness.Memory // if it is a separate process
	beside       int64          // the joiner's memory without its tree, or beyond its budget
	// What the join time includes.
	network, proved, synced string
}

func (r *Result) columns() []column {
	s := r.Starling
	columns := []column{{
		name: nameStarling, seconds: r.StarlingS, all: s.Seconds, fetched: s.Join.FetchedS, cpu: r.CPUS, bytes: r.Bytes,
		settled: r.SettledS, blocks: s.Blocks,
		memory: s.ServerMemory.Plus(s.JoinerMemory), joiner: s.JoinerMemory, beside: s.BesideTree,
		network: "TCP, TLS", proved: "each", synced: "all",
	}}
	if p := r.Paged; p != nil {
		columns = append(columns, column{
			name: namePaged, seconds: p.StarlingS, all: p.Seconds, joiner: p.JoinerMemory, beside: p.BesideBudget,
			network: "TCP, TLS", proved: "each", synced: "all",
		})
	}
	if d := r.DefaultChunks; d != nil {
		columns = append(columns, column{name: nameDefaultChunks, seconds: d.StarlingS, all: d.Seconds, settled: d.SettledS, network: "TCP, TLS", proved: "each", synced: "all"})
	}
	if m := r.Memiavl; m != nil {
		columns = append(columns, column{
			name: nameMemiavl, seconds: r.MemiavlS, all: m.Seconds, cpu: m.CPUS, bytes: m.Bytes, memory: m.Memory,
			network: "none", proved: "none", synced: "all",
		})
	}
	if s := r.SDK; s != nil {
		columns = append(columns, column{
			name: "sdk-iavl", seconds: r.SDKRestoreS, all: s.Seconds, create: s.CreateS, cpu: s.CPUS, bytes: s.Bytes, memory: s.Memory,
			network: "none", proved: "none", synced: "last batch",
		})
	}
	return append(columns, column{name: "floor", seconds: r.FloorS})
}

// Print writes the table, notes that explain it, and the targets.
func (r *Result) Print(out io.Writer) {
	cells := [][]string{
		{harness.Group(r.Keys) + " keys"}, {"join, s"}, {"  from"}, {"  to"}, {"  ×"}, {"  chunks verified after, s"}, {"  ingested after, s"},
		{"  blocks meanwhile, p99, ms"}, {"  blocks later, p99, ms"}, {"create before, s"},
		{"CPU, s"}, {"bytes, MB"}, {"anonymous memory, MB"}, {"  joiner"}, {"  without its tree"}, {"memory of files, MB"}, {"network"}, {"chunks proved"}, {"files synced"},
	}
	mb := func(n int64) string { return show("%.0f", float64(n)/1e6) }
	for _, c := range r.columns() {
		var meanwhile, later float64
		if c.blocks != nil {
			meanwhile, later = c.blocks.P99MS, c.blocks.LaterP99MS
		}
		interval := harness.MedianInterval(c.all)
		for i, text := range []string{
			c.name, show("%.3f", c.seconds), show("%.3f", interval.Low), show("%.3f", interval.High), show("%.3g", harness.Ratio(c.seconds, r.StarlingS)),
			show("%.3f", c.fetched), show("%.3f", c.settled), show("%.2f", meanwhile), show("%.2f", later), show("%.3f", c.create), show("%.2f", c.cpu), show("%.1f", float64(c.bytes)/1e6),
			mb(c.memory.Anon), mb(c.joiner.Anon), mb(c.beside), mb(c.memory.Files), c.network, c.proved, c.synced,
		} {
			cells[i] = append(cells[i], text)
		}
	}
	cells = slices.DeleteFunc(cells, func(line []string) bool { return strings.Join(line[1:], "") == "" })
	harness.PrintAligned(out, cells)
	f, s := r.Floor, r.Starling
	fmt.Fprintf(out, `
join     the median, and its 95 %% confidence interval (with fewer than 6 joins: their range); the processes of other contestants are stopped
ingested the state is in tables, which are written in the background after the join (the CPU figure includes this); blocks: of %s keys each, one
         after another, after a further join while its state is ingested, and the same number later
×        relative to Starling's figure
starling from connecting to durable, verified state, over loopback, with a known app hash; %s of at most %s bytes; CPU: server %.2f s,
         joiner %.2f s; %s
%smemiavl  a new process maps a snapshot and pipes its export into an import whose files it syncs; bytes: leaf records
sdk-iavl restore until committed, on goleveldb, without loading the state or creating the snapshot; bytes: compressed
memory   of both sides: Starling's server and joiner; for the others, one process that is both; the highest resident memory of samples every
         10 ms, separately for anonymous memory and for files (program text, mapped snapshots)
proved   verified before use, by the app hash alone. memiavl and the SDK compare the root at the end; the SDK also checks chunks against hashes
         sent by the same peer
floor    the largest of loopback %.3f s (%.0f MB/s), hashes %.3f s (%d cores, %s: key %.1f, value %.1f, leaf %.1f, inner %.1f ns)
         and disk %.3f s (%.0f MB/s, synced): %s; not in it: the CPU time of both sides over the cores, %.3f s
`, harness.Group(settlingKeys), harness.Count(s.Join.Chunks, "chunk"), harness.Group(int(s.ChunkBytes)), r.ServerCPUS, r.JoinerCPUS, harness.Count(len(s.Seconds), "join"),
		r.pagedNote(), f.LoopbackS, f.LoopbackMBPerS, f.HashesS, f.Cores, f.Hash.Kernel, f.Hash.Key, f.Hash.Value, f.Hash.Leaf, f.Hash.Inner,
		f.DiskS, f.DiskMBPerS, f.By, f.CPUS)
	harness.PrintTargets(out, "1,000,000 keys", r.Targets)
}

// pagedNote explains the column of the paged joiner.
func (r *Result) pagedNote() string {
	p := r.Paged
	if p == nil {
		return ""
	}
	return fmt.Sprintf("paged    a joiner whose state may exceed memory, with a budget of %.0f MB, which counts as its tree; %s\n",
		float64(p.BudgetBytes)/1e6, harness.Count(len(p.Seconds), "join"))
}

func show(format string, figure float64) string {
	if figure == 0 {
		return ""
	}
	return fmt.Sprintf(format, figure)
}
