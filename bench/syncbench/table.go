package syncbench

import (
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
)

// column is a contestant of the table; zero figures are not shown.
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

// Print writes the table, how to read it, and the targets.
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
×        how many times Starling's figure it needs
starling from connecting to durable, verified state, over loopback, the app hash being known; first: until the last chunk was verified
         and written, then: until all was durable; %d chunks, CPU: server %.2f s, joiner %.2f s; memory: the joiner's peak, its server had %.0f MB; the median of %d joins
memiavl  export, then import with its files synced, both in one process; bytes: leaf records
sdk-iavl snapshot create, then restore until committed, on goleveldb, both in one process; bytes: compressed; loading is not counted
floor    the largest of loopback %.3f s (%.0f MB/s), hashes %.3f s (%d cores, %s: key %.1f, value %.1f, leaf %.1f, inner %.1f ns),
         disk %.3f s (%.0f MB/s, synced), CPU of both sides %.3f s (over the cores): %s
`, s.Join.Chunks, s.ServerCPUS, s.JoinerCPUS, float64(s.ServerRSS)/1e6, len(s.Seconds),
		f.LoopbackS, f.LoopbackMBPerS, f.HashesS, f.Cores, f.Hash.Kernel, f.Hash.Key, f.Hash.Value, f.Hash.Leaf, f.Hash.Inner,
		f.DiskS, f.DiskMBPerS, f.CPUS, f.By)
	printGoals(out, "1,000,000 keys", r.Goals)
}

func show(format string, figure float64) string {
	if figure == 0 {
		return ""
	}
	return fmt.Sprintf(format, figure)
}
