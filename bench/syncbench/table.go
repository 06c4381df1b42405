package syncbench

import (
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
)

// column is a contestant in the table; figures of zero are not shown.
type column struct {
	name                 string
	seconds, first, then float64
	cpu                  float64
	bytes, rss           int64
}

func (r *Result) columns() []column {
	j := r.Starling.Join
	columns := []column{{"starling", r.StarlingS, j.FetchedS, max(0, r.StarlingS-j.FetchedS), r.CPUS, r.Bytes, r.RSSBytes}}
	if m := r.Memiavl; m != nil {
		columns = append(columns, column{nameMemiavl, r.MemiavlS, m.ExportS, m.ImportS, m.CPUS, m.Bytes, m.RSSBytes})
	}
	if s := r.SDK; s != nil {
		columns = append(columns, column{"sdk-iavl", r.SDKIAVLS, s.CreateS, s.RestoreS, s.CPUS, s.Bytes, s.RSSBytes})
	}
	return append(columns, column{name: "floor", seconds: r.FloorS})
}

// Print writes the table, notes on how to read it, and the targets.
func (r *Result) Print(out io.Writer) {
	cells := [][]string{
		{harness.Group(r.Keys) + " keys"}, {"join, s"}, {"  ×"}, {"  of it first, s"}, {"  then, s"}, {"CPU, s"}, {"bytes, MB"}, {"memory, MB"},
	}
	for _, c := range r.columns() {
		times := harness.Ratio(c.seconds, r.StarlingS)
		for i, text := range []string{
			c.name, show("%.3f", c.seconds), show("%.3g", times), show("%.3f", c.first), show("%.3f", c.then), show("%.2f", c.cpu),
			show("%.1f", float64(c.bytes)/1e6), show("%.0f", float64(c.rss)/1e6),
		} {
			cells[i] = append(cells[i], text)
		}
	}
	harness.PrintAligned(out, cells)
	f, s := r.Floor, r.Starling
	fmt.Fprintf(out, `
×        its figure over Starling's
starling from connecting to durable, verified state, over loopback, with a known app hash; first: until the last chunk was verified and
         written, then: until everything was durable; %s; CPU: server %.2f s, joiner %.2f s; memory: the joiner's peak, its
         server had %.0f MB; the median of %s
memiavl  export, then import with its files synced, both in one process; bytes: leaf records
sdk-iavl snapshot create, then restore until committed, on goleveldb, both in one process, without loading; bytes: compressed
memory   of one process each: Starling's joiner without its server; for the others source, copy and importer together, so not comparable
floor    the largest of loopback %.3f s (%.0f MB/s), hashes %.3f s (%d cores, %s: key %.1f, value %.1f, leaf %.1f, inner %.1f ns)
         and disk %.3f s (%.0f MB/s, synced): %s; not in it: the CPU time of both sides over the cores, %.3f s
`, harness.Count(s.Join.Chunks, "chunk"), s.ServerCPUS, s.JoinerCPUS, float64(s.ServerRSS)/1e6, harness.Count(len(s.Seconds), "join"),
		f.LoopbackS, f.LoopbackMBPerS, f.HashesS, f.Cores, f.Hash.Kernel, f.Hash.Key, f.Hash.Value, f.Hash.Leaf, f.Hash.Inner,
		f.DiskS, f.DiskMBPerS, f.By, f.CPUS)
	printGoals(out, "1,000,000 keys", r.Goals)
}

func show(format string, figure float64) string {
	if figure == 0 {
		return ""
	}
	return fmt.Sprintf(format, figure)
}
