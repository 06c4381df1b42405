package framebench

import (
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
)

// Result is the outcome of a run.
type Result struct {
	Rows    []Row           `json:"rows"`
	MB      int             `json:"mb"`
	Small   int             `json:"small"`
	Rounds  int             `json:"rounds"`
	Flight  int             `json:"flight"`
	Seed    uint64          `json:"seed"`
	Machine harness.Machine `json:"machine"`
}

// Row is one contestant's. Intervals are over the rounds.
type Row struct {
	Name string `json:"name"`
	// CPU seconds of both sides for a GiB of large answers
	SPerGiB     harness.Interval `json:"cpu_s_gib"`
	Times       harness.Interval `json:"times"` // CPU time over tcp's in the same round
	MBPerS      harness.Interval `json:"mb_s"`  // 10⁶ bytes a second
	Allocs      float64          `json:"allocs_answer"`
	AllocBytes  float64          `json:"alloc_bytes_answer"`
	AloneP50US  harness.Interval `json:"alone_p50_us"`
	AloneP99US  harness.Interval `json:"alone_p99_us"`
	BesideP50US harness.Interval `json:"beside_p50_us"`
	BesideP99US harness.Interval `json:"beside_p99_us"`
	// from a cancel until a small call is answered
	CancelMS      harness.Interval `json:"cancel_ms"`
	CancelBytes   harness.Interval `json:"cancel_bytes"`    // that the server sent meanwhile
	ConnHeapBytes float64          `json:"conn_heap_bytes"` // of both sides
}

func newRow(e, first *entrant, kept float64) Row {
	over := func(of func(sample) float64) harness.Interval {
		var figures []float64
		for _, s := range e.samples {
			figures = append(figures, of(s))
		}
		return harness.MedianInterval(figures)
	}
	row := Row{
		Name: e.name,
		SPerGiB: over(func(s sample) float64 {
			return s.cpu.Seconds() / (float64(s.calls) * largeBytes / (1 << 30))
		}),
		MBPerS:      over(func(s sample) float64 { return float64(s.calls) * largeBytes / 1e6 / s.wall.Seconds() }),
		Allocs:      over(func(s sample) float64 { return float64(s.allocs) / float64(s.calls) }).Median,
		AllocBytes:  over(func(s sample) float64 { return float64(s.alloc) / float64(s.calls) }).Median,
		AloneP50US:  over(func(s sample) float64 { return harness.Median(s.alone) }),
		AloneP99US:  over(func(s sample) float64 { return harness.Percentile(s.alone, 99) }),
		BesideP50US: over(func(s sample) float64 { return harness.Median(s.beside) }),
		BesideP99US: over(func(s sample) float64 { return harness.Percentile(s.beside, 99) }),
		CancelMS:    over(func(s sample) float64 { return harness.Median(s.afterCancel) }),
		CancelBytes: over(func(s sample) float64 { return harness.Median(s.stillSent) }),

		ConnHeapBytes: kept,
	}
	var times []float64
	for round, s := range e.samples {
		times = append(times, harness.Ratio(float64(s.cpu), float64(first.samples[round].cpu)))
	}
	row.Times = harness.MedianInterval(times)
	return row
}

// Print writes the table, and how to read it.
func (r *Result) Print(out io.Writer) {
	cells := [][]string{{""}}
	for _, row := range r.Rows {
		cells[0] = append(cells[0], row.Name)
	}
	line := func(name string, text func(Row) string) {
		l := []string{name}
		for _, row := range r.Rows {
			l = append(l, text(row))
		}
		cells = append(cells, l)
	}
	line("CPU, s/GiB", func(w Row) string { return w.SPerGiB.Text("%.2f") })
	line("  ×", func(w Row) string { return w.Times.Text("%.2f") })
	line("MB/s", func(w Row) string { return w.MBPerS.Text("%.0f") })
	line("allocs/answer", func(w Row) string { return fmt.Sprintf("%.0f", w.Allocs) })
	line("KB/answer", func(w Row) string { return fmt.Sprintf("%.1f", w.AllocBytes/1e3) })
	line("small alone p50, µs", func(w Row) string { return w.AloneP50US.Text("%.0f") })
	line("  p99", func(w Row) string { return w.AloneP99US.Text("%.0f") })
	line("beside large p50, µs", func(w Row) string { return w.BesideP50US.Text("%.0f") })
	line("  p99", func(w Row) string { return w.BesideP99US.Text("%.0f") })
	line("after a cancel, ms", func(w Row) string { return w.CancelMS.Text("%.2f") })
	line("  still sent, KB", func(w Row) string {
		return harness.Interval{Median: w.CancelBytes.Median / 1e3, Low: w.CancelBytes.Low / 1e3, High: w.CancelBytes.High / 1e3}.Text("%.0f")
	})
	line("heap of a connection, KB", func(w Row) string { return fmt.Sprintf("%.0f", w.ConnHeapBytes/1e3) })
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
over loopback with TLS 1.3, both sides in one process; medians of %s with intervals at %.1f %%
CPU            user and system time of both sides while answers of %s bytes are fetched, %d at a time; ×: over tcp's in the same round
allocs, KB     objects and bytes allocated for each of those answers, by both sides; the answer lands in the caller's buffer
small          %s of %d bytes a round, one after another; beside large: while %s under way
after a cancel from the cancel of a call for 64 MiB, of which 1 MiB has come, until a small call is answered; still sent: by the
               server in that time, packets and headers included
heap           kept by both sides of an idle connection that has carried an answer
`, harness.Count(r.Rounds, "round"), 100*r.Rows[0].Times.Confidence, harness.Group(largeBytes), r.Flight,
		harness.Count(r.Small, "call"), smallBytes, areLarge(r.Flight))
}

func areLarge(n int) string {
	if n == 1 {
		return "1 large answer is"
	}
	return harness.Count(n, "large answer") + " are"
}
