package treebench

import (
	"fmt"
	"slices"

	"github.com/starling-kv/starling/bench/contestant"
	"github.com/starling-kv/starling/bench/harness"
)

// result checks that all trees have the right content, and computes the figures.
func (r *runner) result() (*Result, error) {
	result := &Result{
		Keys: r.o.Keys, Batch: r.o.Batch, Versions: r.o.Versions, Seed: r.o.Seed, ExportRate: r.o.ExportRate, Machine: harness.ThisMachine(),
	}
	r.progress.Begin("check", "trees", len(r.entrants))
	for _, e := range r.entrants {
		r.progress.Working(e.Name)
		if _, err := e.ask(request{Op: opCheck}); err != nil {
			return nil, err
		}
		result.set(e.Name, e.figures())
		r.progress.Add(1)
	}
	if i := result.Index; i != nil {
		result.Starling.IndexGetNS, result.Starling.IndexBytesPerKey = i.GetNS, i.BytesPerKey
	}
	if err := sameRoots(r.entrants); err != nil {
		return nil, err
	}
	floor, err := r.floor()
	if err != nil {
		return nil, err
	}
	result.Floor = floor
	result.Targets = result.targets()
	return result, nil
}

func (e *entrant) figures() *Figures {
	f := &Figures{
		LoadS:       e.load,
		CommitP50MS: harness.Median(e.without), CommitP99MS: harness.Percentile(e.without, 99),
		CommitP50DuringExportMS: harness.Median(e.during), CommitP99DuringExportMS: harness.Percentile(e.during, 99),
		CommitOneCoreP50MS: harness.Median(e.oneCore), Versions: len(e.without),
		GetNS: harness.Median(e.gets), GetManyNS: harness.Median(e.manyGets), ProofUS: harness.Median(e.proofs), ProofBytes: e.proofBytes,
		ExportS: harness.Median(e.exports), ImportS: harness.Median(e.imports), ExportBytes: e.exportLen,
		BytesPerKey:              e.loaded.perKey(),
		HeapBytesPerKey:          harness.Ratio(float64(e.loaded.Heap), float64(e.loaded.keys)),
		BytesPerKeyAfterVersions: e.after.perKey(),
		HugeShare:                harness.Ratio(float64(e.after.Huge), float64(e.after.Resident)),
		FileBytesPerKey:          harness.Ratio(float64(e.loaded.Files), float64(e.loaded.keys)),
		FileBytesPerKeyAfter:     harness.Ratio(float64(e.after.Files), float64(e.after.keys)),
		FinalKeys:                e.keys,
		FinalRoot:                e.roots[len(e.roots)-1],
	}
	if e.streamTime > 0 {
		f.StreamMBPerS = e.streamed / e.streamTime / 1e6
	}
	return f
}

func (r *runner) floor() (Floor, error) {
	of := func(cost func(hashCost) float64) float64 {
		var all []float64
		for _, c := range r.costs {
			all = append(all, cost(c))
		}
		return harness.Median(all)
	}
	starling := r.entrants[0]
	f := Floor{Hash: hashCost{
		Kernel: r.costs[0].Kernel,
		Inner:  of(func(c hashCost) float64 { return c.Inner }),
		Leaf:   of(func(c hashCost) float64 { return c.Leaf }),
		Value:  of(func(c hashCost) float64 { return c.Value }),
		Key:    of(func(c hashCost) float64 { return c.Key }),
	}}
	if f.Counted = starling.inner > 0; f.Counted {
		made := float64(len(starling.without) + len(starling.during))
		f.Inner, f.Leaves = float64(starling.inner)/made, float64(starling.leaves)/made
	}
	read := min(int(starling.after.larger()), maxReadBytes)
	a, err := starling.ask(request{Op: opRead, N: read})
	if err != nil {
		return f, err
	}
	f.ReadNS, f.ReadMiB = a.Read, read>>20
	f.hashes(starling.after.keys)
	f.walk(starling.after.keys, starling.after.larger())
	return f, nil
}

// sameRoots compares the roots of contestants with the same hashes, over all versions that both
// made: those of memiavl and IAVL v1, and those of Starling with and without an index.
func sameRoots(entrants []*entrant) error {
	ours := func(e *entrant) bool { return e.Name == "starling" || e.Name == contestant.Indexed }
	theirs := func(e *entrant) bool { return !ours(e) }
	if err := equalRoots(slices.DeleteFunc(slices.Clone(entrants), theirs)); err != nil {
		return err
	}
	return equalRoots(slices.DeleteFunc(slices.Clone(entrants), ours))
}

func equalRoots(peers []*entrant) error {
	if len(peers) < 2 {
		return nil
	}
	a := peers[0]
	for _, b := range peers[1:] {
		for i := range min(len(a.roots), len(b.roots)) {
			if a.roots[i] != b.roots[i] {
				return fmt.Errorf("version %d has the root %s in %s and %s in %s: they made different changes", i+1, a.roots[i], a.Name, b.roots[i], b.Name)
			}
		}
	}
	return nil
}
