package transportbench

import (
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
)

// Targets for RDMA in the VM. Nothing has been measured on hardware yet.
const (
	goalTimes  = 1.5 // machine CPU time per GiB, over the reference's
	goalEvents = 6   // completion events per MiB and side
)

// Result is the outcome of a run.
type Result struct {
	Device string `json:"device"` // "": none
	Kernel string `json:"kernel"`
	Guest  bool   `json:"guest"`
	Runs   []Row  `json:"runs"`
	// Reference has the rows of the raw reference.
	Reference []ReferenceRow `json:"reference,omitempty"`
	// NoRDMA and NoReference are the reasons why there are no such rows.
	NoRDMA      string `json:"no_rdma,omitempty"`
	NoReference string `json:"no_reference,omitempty"`

	Rounds  int              `json:"rounds"`
	MiB     int              `json:"mib"`
	LimitS  float64          `json:"limit_s"`
	Targets []harness.Target `json:"targets,omitempty"` // with Guest
	Machine harness.Machine  `json:"machine"`
}

// Row has the figures for one path, size and number of peers: medians over the rounds.
type Row struct {
	Path  string `json:"path"`
	Size  int    `json:"size"`
	Peers int    `json:"peers"`
	// Flight is the number of concurrent calls of each peer.
	Flight    int     `json:"flight"`
	MBPerS    float64 `json:"mb_s"` // 10⁶ bytes
	CPUServer float64 `json:"cpu_s_per_gib_server"`
	CPUClient float64 `json:"cpu_s_per_gib_client"`
	// CPUMachine is null if the system does not report it.
	CPUMachine *float64 `json:"cpu_s_per_gib_machine"`
	// Events are completion channel events, of the side that had more; null without RDMA.
	Events *float64 `json:"events_per_mib"`
	// Times is the machine's CPU time over that of the reference's largest writes with the same
	// number of peers, round by round; null without a reference.
	Times *float64 `json:"times_reference"`
}

// ReferenceRow has the figures of the reference with writes of one size, in turns with a number of
// peers. The reference itself has one peer.
type ReferenceRow struct {
	Size        int     `json:"size"`
	BesidePeers int     `json:"beside_peers"`
	MBPerS      float64 `json:"mb_s"`
	CPUMachine  float64 `json:"cpu_s_per_gib_machine"`
	Events      float64 `json:"events_per_mib"`
}

const (
	mib = 1 << 20
	gib = 1 << 30
)

func newResult(o Options, turns []*turn) *Result {
	r := &Result{Kernel: harness.KernelRelease(), Rounds: o.Rounds, MiB: o.MiB, LimitS: o.Limit.Seconds(), Machine: harness.ThisMachine()}
	references := make(map[int][]sample) // by peers
	for _, t := range turns {
		if t.path != pathReference {
			continue
		}
		references[t.peers] = t.samples // sizes ascend
		r.Reference = append(r.Reference, ReferenceRow{
			Size: min(t.size, maxReference), BesidePeers: t.peers, MBPerS: t.median(sample.mbPerS), CPUMachine: t.median(sample.machinePerGiB), Events: t.median(sample.eventsPerMiB),
		})
	}
	for _, t := range turns {
		if t.path != pathReference {
			r.Runs = append(r.Runs, t.row(references[t.peers]))
		}
	}
	return r
}

func (t *turn) median(of func(sample) float64) float64 {
	return harness.MedianOf(t.samples, of)
}

func (t *turn) row(beside []sample) Row {
	row := Row{
		Path: t.path, Size: t.size, Peers: t.peers, Flight: flightOf(t.size, t.peers), MBPerS: t.median(sample.mbPerS),
		CPUServer: t.median(func(s sample) float64 { return perGiB(s, s.server) }),
		CPUClient: t.median(func(s sample) float64 { return perGiB(s, s.client) }),
	}
	if machine := t.median(sample.machinePerGiB); machine >= 0 {
		row.CPUMachine = &machine
	}
	if t.path == pathRDMA {
		events := t.median(sample.eventsPerMiB)
		row.Events = &events
	}
	if t.path == pathRDMA && len(beside) == len(t.samples) {
		var times []float64
		for i, s := range t.samples {
			times = append(times, harness.Ratio(s.machinePerGiB(), beside[i].machinePerGiB()))
		}
		median := harness.Median(times)
		row.Times = &median
	}
	return row
}

func perGiB(s sample, seconds float64) float64 { return seconds * gib / float64(s.bytes) }

func (s sample) mbPerS() float64        { return float64(s.bytes) / 1e6 / s.seconds }
func (s sample) machinePerGiB() float64 { return perGiB(s, s.machine) }
func (s sample) eventsPerMiB() float64  { return float64(s.events) * mib / float64(s.bytes) }

// Print writes the table, and explains it.
func (r *Result) Print(out io.Writer) {
	where := "this machine, over loopback"
	switch {
	case r.Guest:
		where = "the emulated VM, " + r.Device
	case r.Device != "":
		where = "this machine, " + r.Device
	}
	fmt.Fprintf(out, "%s, Linux %s, %s of up to %d MiB or %.4g s a turn, load %.1f\n\n", where, r.Kernel, harness.Count(r.Rounds, "round"), r.MiB, r.LimitS, r.Machine.Load)
	cells := [][]string{{"responses", "peers", "path", "MB/s", "server", "client", "machine", "× raw", "events/MiB"}}
	for _, w := range r.Runs {
		cells = append(cells, []string{
			harness.SizeText(w.Size), fmt.Sprint(w.Peers), w.Path, fmt.Sprintf("%.1f", w.MBPerS), fmt.Sprintf("%.2f", w.CPUServer), fmt.Sprintf("%.2f", w.CPUClient),
			optional("%.2f", w.CPUMachine), optional("%.2f", w.Times), optional("%.1f", w.Events),
		})
	}
	for _, w := range r.Reference {
		cells = append(cells, []string{
			harness.SizeText(w.Size), fmt.Sprintf("(%d)", w.BesidePeers), "raw", fmt.Sprintf("%.1f", w.MBPerS), "", "", fmt.Sprintf("%.2f", w.CPUMachine), "", fmt.Sprintf("%.1f", w.Events),
		})
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
server, client  CPU seconds of each process per GiB of responses
machine         the same for all processors, including kernel threads and other programs
tcp             plain sockets; tls: transport/tcp, authenticated and encrypted; rdma: transport/rdma
`)
	if len(r.Reference) > 0 {
		fmt.Fprintln(out, "raw             writes with libibverbs alone, by one peer, in turns with (that many) peers; × raw: relative to the largest writes")
	}
	if r.Guest {
		fmt.Fprintln(out, "tls             has no target: AES is emulated in the VM")
	}
	if r.NoRDMA != "" {
		fmt.Fprintf(out, "no rows of rdma: %s; --guest runs everything with Soft-RoCE in an emulated VM\n", r.NoRDMA)
	}
	if r.NoReference != "" {
		fmt.Fprintln(out, r.NoReference)
	}
	harness.PrintTargets(out, "the emulated VM", r.Targets)
}

// targets judges the row of RDMA that is farthest from each target. They are set for the VM.
func (r *Result) targets() (t []harness.Target) {
	most := func(name string, limit float64, unit string, of func(Row) *float64) {
		var worst Row
		figure := -1.0
		for _, w := range r.Runs {
			if f := of(w); w.Path == pathRDMA && f != nil && *f > figure {
				worst, figure = w, *f
			}
		}
		if figure < 0 {
			return // not measured
		}
		measure := fmt.Sprintf("%.2f%swith %s to %s", figure, unit, harness.SizeText(worst.Size), harness.Count(worst.Peers, "peer"))
		t = append(t, harness.Target{Name: name, Met: figure <= limit, Figure: figure, Measure: measure})
	}
	most(fmt.Sprintf("rdma at most %.1f× raw", goalTimes), goalTimes, "× ", func(w Row) *float64 { return w.Times })
	most(fmt.Sprintf("rdma at most %d events a MiB and side", goalEvents), goalEvents, " ", func(w Row) *float64 { return w.Events })
	return t
}

func optional(format string, v *float64) string {
	if v == nil {
		return ""
	}
	return fmt.Sprintf(format, *v)
}
