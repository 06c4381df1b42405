package treebench

import (
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// row is one metric of the table.
type row struct {
	name   string
	format string
	of     func(*Figures) float64
	floor  float64 // 0: no floor
	plain  bool    // without ratios
	some   bool    // some contestants do not have it
	none   bool    // no contestant has it
}

func (r *Result) rows() []row {
	return []row{
		{name: "load, s", format: "%.2f", of: func(f *Figures) float64 { return f.LoadS }, some: true},
		{name: "commit p50, ms", format: "%.2f", of: func(f *Figures) float64 { return f.CommitP50MS }, floor: r.Floor.CommitMS},
		{name: "  on one core p50, ms", format: "%.2f", of: func(f *Figures) float64 { return f.CommitOneCoreP50MS }, floor: r.Floor.CommitMS},
		{name: "commit p99, ms", format: "%.2f", of: func(f *Figures) float64 { return f.CommitP99MS }, floor: r.Floor.CommitMS},
		{name: "  during an export p50, ms", format: "%.2f", of: func(f *Figures) float64 { return f.CommitP50DuringExportMS }},
		{name: "  during an export p99, ms", format: "%.2f", of: func(f *Figures) float64 { return f.CommitP99DuringExportMS }},
		{name: "get, ns", format: "%.0f", of: func(f *Figures) float64 { return f.GetNS }},
		{name: "  of many at once", format: "%.0f", of: func(f *Figures) float64 { return f.GetManyNS }, plain: true},
		{name: "ICS-23 proof, µs", format: "%.2f", of: func(f *Figures) float64 { return f.ProofUS }},
		{name: "  bytes", format: "%.0f", of: func(f *Figures) float64 { return float64(f.ProofBytes) }},
		{name: "export, s", format: "%.3f", of: func(f *Figures) float64 { return f.ExportS }, none: r.Starling.ExportS == 0},
		{name: "import, verified, s", format: "%.3f", of: func(f *Figures) float64 { return f.ImportS }, none: r.Starling.ImportS == 0},
		{name: "memory, bytes/key", format: "%.0f", of: func(f *Figures) float64 { return f.BytesPerKey }},
		{name: "  and of files", format: "%.0f", of: func(f *Figures) float64 { return f.FileBytesPerKey }, plain: true},
		{name: "  after the versions", format: "%.0f", of: func(f *Figures) float64 { return f.BytesPerKeyAfterVersions }},
		{name: "  in huge pages", format: "%.2f", of: func(f *Figures) float64 { return f.HugeShare }, plain: true},
		{name: "  and of files", format: "%.0f", of: func(f *Figures) float64 { return f.FileBytesPerKeyAfter }, plain: true},
		{name: "versions (each way)", format: "%.0f", of: func(f *Figures) float64 { return float64(f.Versions) }, plain: true},
		{name: "concurrent export, MB/s", format: "%.1f", of: func(f *Figures) float64 { return f.StreamMBPerS }, plain: true},
	}
}

// Print writes the table, notes that explain it, and the targets.
func (r *Result) Print(out io.Writer) {
	cells := [][]string{{fmt.Sprintf("%s keys", harness.Group(r.Keys)), "starling"}}
	for _, name := range r.peers() {
		cells[0] = append(cells[0], name, "×")
	}
	cells[0] = append(cells[0], "floor", "×")
	for _, m := range r.rows() {
		if m.none {
			continue
		}
		ours := m.of(r.Starling)
		line := []string{m.name, fmt.Sprintf(m.format, ours)}
		for _, name := range r.peers() {
			theirs := m.of(r.figures(name))
			cell := ""
			if theirs != 0 || !m.some {
				cell = fmt.Sprintf(m.format, theirs)
			}
			line = append(line, cell, times(theirs, ours, m.plain))
		}
		if m.floor > 0 {
			line = append(line, fmt.Sprintf(m.format, m.floor), times(ours, m.floor, false))
		} else {
			line = append(line, "", "")
		}
		cells = append(cells, line)
	}
	harness.PrintAligned(out, cells)
	r.printNotes(out)
	harness.PrintTargets(out, "1,000,000 keys and 2,000 versions", r.Targets)
}

func (r *Result) printNotes(out io.Writer) {
	f := r.Floor
	counted := "counted"
	if !f.Counted {
		counted = "estimated, because the tree does not count them"
	}
	fmt.Fprintf(out, `
× next to a peer: its figure over Starling's; × next to the floor: Starling's figure over the floor.
commit      %d operations (%d updates, %d inserts, %d deletes), from the changes to the root hash; Starling uses all %d cores, the others
            use one, and the rest for garbage collection; "on one core" is GOMAXPROCS 1 for all; no contestant has a log
floor       %.0f inner nodes × %.1f ns + %.0f leaves × (%.1f + %.1f) ns + %d new keys × %.1f ns (%s),
            in bulk on one core with the kernel %s
walk        %.2f ms in addition: %.0f nodes of the changed paths below the %d levels that fit the L2 cache × %.0f ns,
            the time of a random read in %d MiB, one after another
export      and import stay in memory%s;
            during commits: repeated, in pieces of 1 MiB of leaf records, at most %g MB/s; the table has the rate reached
memory      growth of the process since before the tree was created, after a garbage collection: the Go heap in use or resident memory,
            whichever is larger; for the loaded tree, and after all versions; and of files: resident pages of files (program text, mapped
            snapshots), which the system can drop%s
`, workload.Changes, workload.Updates, workload.Inserts, workload.Deletes, r.Machine.CPUs,
		f.Inner, f.Hash.Inner, f.Leaves, f.Hash.Leaf, f.Hash.Value, workload.Inserts, f.Hash.Key, counted, f.Hash.Kernel,
		f.WalkMS, f.Misses, f.CachedLevels, f.ReadNS, f.ReadMiB, r.exportNote(), r.ExportRate,
		r.memoryNote())
}

// exportNote says how the export of a peer differs from Starling's.
func (r *Result) exportNote() (note string) {
	if r.Memiavl != nil {
		note += " (memiavl's writes and syncs files)"
	}
	if r.IAVL != nil {
		note += " (IAVL v1's writes its database, unsynced)"
	}
	return note
}

// memoryNote explains the memory of the peers that took part.
func (r *Result) memoryNote() (note string) {
	if r.IAVL != nil {
		note += ";\n            IAVL v1's memory is its cache"
	}
	if r.Memiavl != nil {
		note += ";\n            memiavl keeps its nodes as objects; mapped, it starts with a snapshot of the loaded tree in a new process, all of it read,\n" +
			"            and writes no further snapshots (a node does, every 1,000 versions)"
	}
	return note
}

func times(a, b float64, plain bool) string {
	if plain || a == 0 || b == 0 {
		return ""
	}
	return fmt.Sprintf("%.3g", a/b)
}
