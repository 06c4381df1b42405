package tablebench

import (
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
)

// Result is the outcome of a run.
type Result struct {
	Workloads []Rows          `json:"workloads"`
	MB        int             `json:"mb"`
	Rounds    int             `json:"rounds"`
	Seed      uint64          `json:"seed"`
	Machine   harness.Machine `json:"machine"`
}

// Rows are the writers' figures for one size of chunk.
type Rows struct {
	Name   string `json:"name"`
	Chunks int    `json:"chunks"`
	Bytes  int    `json:"bytes"` // of the keys and values of all chunks
	Rows   []Row  `json:"rows"`
}

// Row is one writer's. Intervals are over the rounds.
type Row struct {
	Writer string `json:"writer"`
	// user and system CPU time of a chunk, both tables
	ChunkUS    harness.Interval `json:"cpu_us_chunk"`
	UserUS     float64          `json:"user_us_chunk"`
	SPerGB     float64          `json:"cpu_s_gb"` // CPU seconds for 10⁹ bytes of keys and values
	Times      harness.Interval `json:"times"`    // CPU time over rowtable's in the same round
	Written    float64          `json:"written"`  // bytes of tables over bytes of keys and values
	Allocs     float64          `json:"allocs_chunk"`
	AllocBytes float64          `json:"alloc_bytes_chunk"`
}

// newRows takes the samples of each writer, by round.
func newRows(w workload, contestants []writer, samples map[string][]sample) Rows {
	rows := Rows{Name: w.name, Chunks: len(w.chunks), Bytes: w.bytes}
	n := float64(len(w.chunks))
	for _, c := range contestants {
		var total, user, times []float64
		mine := samples[c.name]
		for round, s := range mine {
			total = append(total, perChunk(s.cpu.Total(), len(w.chunks)))
			user = append(user, perChunk(s.cpu.User, len(w.chunks)))
			times = append(times, harness.Ratio(float64(s.cpu.Total()), float64(samples[ours][round].cpu.Total())))
		}
		row := Row{
			Writer: c.name, ChunkUS: harness.MedianInterval(total), UserUS: harness.Median(user),
			Times: harness.MedianInterval(times),
		}
		row.SPerGB = row.ChunkUS.Median * n / 1e6 / (float64(w.bytes) / 1e9)
		last := mine[len(mine)-1]
		row.Written = harness.Ratio(float64(last.written), float64(w.bytes))
		row.Allocs, row.AllocBytes = float64(last.allocs)/n, float64(last.alloc)/n
		rows.Rows = append(rows.Rows, row)
	}
	return rows
}

// Print writes a table for each size of chunk, and how to read them.
func (r *Result) Print(out io.Writer) {
	confidence := 0.0
	for _, w := range r.Workloads {
		cells := [][]string{{w.Name, "CPU, µs/chunk", "user", "CPU, s/GB", "×", "written", "allocs/chunk", "KB/chunk"}}
		for _, row := range w.Rows {
			confidence = row.Times.Confidence
			cells = append(cells, []string{
				row.Writer, row.ChunkUS.Text("%.0f"), fmt.Sprintf("%.0f", row.UserUS), fmt.Sprintf("%.3f", row.SPerGB),
				row.Times.Text("%.2f"), fmt.Sprintf("%.3f", row.Written), fmt.Sprintf("%.0f", row.Allocs),
				fmt.Sprintf("%.1f", row.AllocBytes/1e3),
			})
		}
		harness.PrintAligned(out, cells)
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, `CPU      user and system time of the table of a chunk, written to a file, not synced;
         medians of %s with intervals at %.1f %%
×        CPU time over rowtable's in the same round
written  bytes of tables for each byte of keys and values
KB       allocated for each chunk
`, harness.Count(r.Rounds, "round"), 100*confidence)
}
