package treebench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/starling-kv/starling/bench/contestant"
	"github.com/starling-kv/starling/bench/harness"
)

// Sizes of slices and samples. Slices are short, so that noise that lasts seconds affects all
// contestants, and numerous, so that their medians are meaningful.
const (
	loadSlice    = 10 // batches
	versionSlice = 50
	warmUp       = 100 // maximum number of versions
	// sliceWarmUp is the number of unmeasured versions at the beginning of each slice. During the
	// other contestants' turns, caches were evicted and threads went to sleep.
	sliceWarmUp  = 3
	oneCoreSlice = 10 // versions on one core
	getSlices    = 10
	getsASlice   = 20_000
	proofSlices  = 10
	proofsASlice = 2_000
	iavlProofs   = 200 // per slice
	iavlExports  = 1
	secondsANano = 1e-9
	millisANano  = 1e-6
)

// runner is the state of one run.
type runner struct {
	o        Options
	progress *harness.Progress
	entrants []*entrant // Starling first
	costs    []hashCost
}

// entrant is a contestant and its measurements, in the order in which they are made.
type entrant struct {
	*harness.Process
	begin    begin
	versions int

	load                  float64 // seconds
	without, during       []float64
	oneCore               []float64
	gets, manyGets        []float64
	proofs                []float64
	exports, imports      []float64
	streamed, streamTime  float64
	inner, leaves         uint64
	loaded, after         held
	proofBytes, exportLen int
	keys                  int
	roots                 []string // roots of all commits
}

// held is the memory of a tree, and its number of keys.
type held struct {
	memory
	keys int
}

func (h held) perKey() float64 { return harness.Ratio(float64(h.larger()), float64(h.keys)) }

// Run runs the benchmark, and reports to progress. Its processes have ended when it returns.
func Run(ctx context.Context, o Options, progress *harness.Progress) (*Result, error) {
	r := &runner{o: o, progress: progress}
	var result *Result
	err := harness.InFolder(ctx, progress, func(dir string) (err error) {
		defer func() {
			for _, e := range r.entrants {
				e.End()
			}
		}()
		result, err = r.run(ctx, dir)
		return err
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}

func (r *runner) run(ctx context.Context, dir string) (*Result, error) {
	names := r.o.contestants()
	r.progress.Begin("start", "processes", len(names))
	for _, name := range names {
		r.progress.Working(name)
		versions := r.o.versions(name)
		own := filepath.Join(dir, name)
		if err := os.MkdirAll(own, 0o750); err != nil {
			return nil, fmt.Errorf("creating the folder of %s: %w", name, err)
		}
		b := begin{
			Name: name, Spec: r.o.spec(), ExportRate: r.o.ExportRate, Dir: own,
			Versions: 2*versions + warmUp + r.o.Exports + r.rounds()*(3*sliceWarmUp+oneCoreSlice),
		}
		p, err := harness.Start(ctx, ChildName, name, b, nil)
		if err != nil {
			return nil, err
		}
		r.entrants = append(r.entrants, &entrant{Process: p, begin: b, versions: versions})
		r.progress.Add(1)
	}
	mapped := func() error { return r.mapped(ctx, dir) }
	for _, phase := range []func() error{r.load, mapped, r.warmUp, r.commits, r.gets, r.proofs, r.memory, r.exports} {
		if err := phase(); err != nil {
			return nil, err
		}
	}
	return r.result()
}

// slices calls slice in turns, and reports whose turn it is.
func (r *runner) slices(rounds int, slice func(round int, e *entrant) error) error {
	return harness.InTurns(rounds, r.entrants, func(round int, e *entrant) error {
		r.progress.Working(e.Name)
		return slice(round, e)
	})
}

func (r *runner) load() error {
	steps := r.o.spec().LoadSteps()
	r.progress.Begin("load", "batches", steps*len(r.entrants))
	return r.slices((steps+loadSlice-1)/loadSlice, func(_ int, e *entrant) error {
		a, err := e.commit(request{Op: opLoad, N: loadSlice})
		for _, n := range a.Nanos {
			e.load += float64(n) * secondsANano
		}
		r.progress.Add(len(a.Nanos))
		return err
	})
}

// mapped starts a process that maps a snapshot of what memiavl has loaded. It takes part from here
// on.
func (r *runner) mapped(ctx context.Context, dir string) error {
	i := slices.IndexFunc(r.entrants, func(e *entrant) bool { return e.Name == "memiavl" })
	if i < 0 {
		return nil
	}
	loader := r.entrants[i]
	r.progress.Begin("snapshot", "trees", 1)
	r.progress.Working(contestant.Mapped)
	if _, err := loader.ask(request{Op: opSnapshot}); err != nil {
		return err
	}
	b := loader.begin
	b.Name, b.Snapshot, b.Dir = contestant.Mapped, filepath.Join(b.Dir, snapshotFolder), filepath.Join(dir, "mapped")
	if err := os.MkdirAll(b.Dir, 0o750); err != nil {
		return fmt.Errorf("creating the folder of %s: %w", b.Name, err)
	}
	p, err := harness.Start(ctx, ChildName, b.Name, b, nil)
	if err != nil {
		return err
	}
	r.entrants = append(r.entrants, &entrant{Process: p, begin: b, versions: loader.versions, roots: slices.Clone(loader.roots)})
	r.progress.Add(1)
	return nil
}

// rounds returns the number of slices of versions.
func (r *runner) rounds() int { return (r.o.Versions + versionSlice - 1) / versionSlice }

// commits alternates slices without an export, slices during one, and a few on one core. Every
// other round starts with the export.
func (r *runner) commits() error {
	total := 0
	for _, e := range r.entrants {
		total += 2 * e.versions
	}
	rounds := r.rounds()
	r.progress.Begin("versions", "versions", total)
	return r.slices(rounds, func(round int, e *entrant) error {
		if e.Name == "starling" {
			a, err := e.ask(request{Op: opHash})
			if err != nil {
				return err
			}
			r.costs = append(r.costs, a.Hash)
		}
		n := e.versions*(round+1)/rounds - e.versions*round/rounds
		if n == 0 {
			return nil
		}
		for _, export := range []bool{round%2 == 1, round%2 == 0} {
			a, err := e.commit(request{Op: opVersions, N: n, Warm: sliceWarmUp, Export: export})
			if err != nil {
				return err
			}
			into := &e.without
			if export {
				into = &e.during
			}
			for _, n := range a.Nanos {
				*into = append(*into, float64(n)*millisANano)
			}
			e.inner, e.leaves = e.inner+a.Inner, e.leaves+a.Leaves
			e.streamed, e.streamTime = e.streamed+float64(a.Streamed), e.streamTime+a.StreamSeconds
			r.progress.Add(len(a.Nanos))
		}
		a, err := e.commit(request{Op: opVersions, N: min(n, oneCoreSlice), Warm: sliceWarmUp, Procs: 1})
		for _, n := range a.Nanos {
			e.oneCore = append(e.oneCore, float64(n)*millisANano)
		}
		return err
	})
}

// warmUp measures the memory of the loaded tree, after returning all free pages to the system. Then
// it makes some versions, which allocate these pages again.
func (r *runner) warmUp() error {
	r.progress.Begin("memory and warm-up", "trees", len(r.entrants))
	return r.slices(1, func(_ int, e *entrant) error {
		a, err := e.ask(request{Op: opMemory})
		if err != nil {
			return err
		}
		e.loaded = held{a.Memory, a.Keys}
		_, err = e.commit(request{Op: opVersions, N: min(warmUp, e.versions/10+1)})
		r.progress.Add(1)
		return err
	})
}

// memory measures the memory again after all versions, including what the versions left behind.
func (r *runner) memory() error {
	r.progress.Begin("memory", "trees", len(r.entrants))
	return r.slices(1, func(_ int, e *entrant) error {
		a, err := e.ask(request{Op: opMemory})
		e.after = held{a.Memory, a.Keys}
		r.progress.Add(1)
		return err
	})
}

func (r *runner) gets() error {
	r.progress.Begin("get", "gets", getSlices*getsASlice*len(r.entrants))
	return r.slices(getSlices, func(round int, e *entrant) error {
		a, err := e.ask(request{Op: opGet, N: getsASlice, Round: uint64(round)})
		if err == nil {
			e.gets = append(e.gets, float64(a.Nanos[0]))
			if len(a.Nanos) > 1 {
				e.manyGets = append(e.manyGets, float64(a.Nanos[1]))
			}
		}
		r.progress.Add(getsASlice)
		return err
	})
}

func (r *runner) proofs() error {
	samples := func(e *entrant) int {
		if e.Name == "iavl" {
			return iavlProofs
		}
		return proofsASlice
	}
	total := 0
	for _, e := range r.entrants {
		total += proofSlices * samples(e)
	}
	r.progress.Begin("proof", "proofs", total)
	return r.slices(proofSlices, func(round int, e *entrant) error {
		a, err := e.ask(request{Op: opProve, N: samples(e), Round: uint64(getSlices + round)})
		if err == nil {
			e.proofs = append(e.proofs, float64(a.Nanos[0])/1e3)
			e.proofBytes = a.Bytes
		}
		r.progress.Add(samples(e))
		return err
	})
}

func (r *runner) exports() error {
	r.progress.Begin("export and import", "exports", r.o.Exports*len(r.entrants))
	return r.slices(r.o.Exports, func(round int, e *entrant) error {
		if e.Name == "iavl" && round >= iavlExports {
			r.progress.Add(1)
			return nil
		}
		a, err := e.commit(request{Op: opExport})
		if err == nil {
			e.exports = append(e.exports, float64(a.Nanos[0])*secondsANano)
			e.imports = append(e.imports, float64(a.Nanos[1])*secondsANano)
			e.exportLen = a.Bytes
		}
		r.progress.Add(1)
		return err
	})
}

// ask sends a request to the contestant's process.
func (e *entrant) ask(q request) (a answer, err error) {
	err = e.Ask(q, &a)
	return a, err
}

// commit is ask for requests that make versions. It records their roots.
func (e *entrant) commit(q request) (answer, error) {
	a, err := e.ask(q)
	e.roots = append(e.roots, a.Roots...)
	e.keys = a.Keys
	if err == nil && len(e.roots) != a.Step {
		err = fmt.Errorf("%s: %d roots after %d commits", e.Name, len(e.roots), a.Step)
	}
	return a, err
}
