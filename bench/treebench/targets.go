package treebench

import (
	"fmt"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// undecidedExport is the reason why the export target is not judged; docs/benchmark-runs.md has the
// details.
const undecidedExport = "memiavl writes and syncs files, Starling stays in memory"

// targets judges a result. A target is left out if its peer did not take part. Targets are set for
// one million keys.
func (r *Result) targets() (t []harness.Target) {
	s := r.Starling
	// faster is met if the peer's figure is at least times our figure.
	faster := func(name string, times, peer, ours float64) harness.Target {
		return harness.AtLeast(name, times, harness.Ratio(peer, ours))
	}
	if m := r.Memiavl; m != nil {
		t = append(t, faster("commit at least 7× memiavl", 7, m.CommitP50MS, s.CommitP50MS))
		t = append(t, faster("commit with one core each at least 5× memiavl", 5, m.CommitOneCoreP50MS, s.CommitOneCoreP50MS))
	}
	if i := r.IAVL; i != nil {
		t = append(t, faster("commit at least 100× IAVL v1", 100, i.CommitP50MS, s.CommitP50MS))
	}
	t = append(t, harness.AtMost("commit within 4× of the hash floor (all cores; the floor is one core's)", 4, harness.Ratio(s.CommitP50MS, r.Floor.CommitMS)))
	if rate := harness.Ratio(workload.Changes*1e3, s.CommitOneCoreP50MS); rate > 0 {
		t = append(t, harness.Target{
			Name: "at least 500,000 changes per second with one core", Met: rate >= 500_000, Figure: rate, Measure: harness.Group(int(rate)),
		})
	}
	if m := r.Memiavl; m != nil {
		t = append(t, faster("load at least 5× memiavl", 5, m.LoadS, s.LoadS))
		get := faster("get at least 2.6× memiavl", 2.6, m.GetNS, s.GetNS)
		get.Measure = fmt.Sprintf("%.0f ns, %s", s.GetNS, get.Measure)
		t = append(t, get)
		if s.IndexGetNS > 0 {
			get := faster("get by the index at least 8× memiavl", 8, m.GetNS, s.IndexGetNS)
			get.Measure = fmt.Sprintf("%.0f ns, %s", s.IndexGetNS, get.Measure)
			t = append(t, get)
		}
		t = append(t, faster("proof at least 3× memiavl", 3, m.ProofUS, s.ProofUS))
		if s.ExportS > 0 {
			export := faster("export and verified import at least 8× memiavl", 8, m.ExportS+m.ImportS, s.ExportS+s.ImportS)
			export.Met, export.Undecided = false, undecidedExport
			t = append(t, export)
		}
	} else {
		t = append(t, harness.Target{Name: "get at most 1 µs", Met: s.GetNS <= 1000, Figure: s.GetNS, Measure: fmt.Sprintf("%.0f ns", s.GetNS)})
	}
	memory := func(most int, with string, bytes float64) {
		t = append(t, harness.Target{
			Name: fmt.Sprintf("memory%s at most %d bytes a key", with, most), Met: bytes <= float64(most), Figure: bytes, Measure: fmt.Sprintf("%.0f bytes", bytes),
		})
	}
	memory(300, "", s.BytesPerKey)
	if s.IndexBytesPerKey > 0 {
		memory(325, " with the index", s.IndexBytesPerKey)
	}
	return append(t, harness.AtMost("commit p99 during an export at most 1.3× without", 1.3, harness.Ratio(s.CommitP99DuringExportMS, s.CommitP99MS)))
}
