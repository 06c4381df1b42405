package syncbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// loadSlice is the number of batches that a child loads between two reports.
const loadSlice = 10

// runner makes one run.
type runner struct {
	o        Options
	dir      string
	progress *harness.Progress
	result   Result
	blocks   int // the most that children make after the load
}

// Run measures, and shows on progress how far it is. Its processes have ended when it returns.
func Run(ctx context.Context, o Options, progress *harness.Progress) (*Result, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	r := &runner{o: o, progress: progress, result: Result{Keys: o.Keys, Seed: o.Seed, Repeat: o.Repeat, Machine: harness.ThisMachine()}}
	err := harness.InFolder(ctx, o.Dir, "databases", progress, func(dir string) error {
		r.dir = dir
		return r.run(ctx)
	})
	if err != nil {
		return nil, err
	}
	return &r.result, nil
}

func (r *runner) run(ctx context.Context) error {
	program := r.o.SDK
	if slices.Contains(r.o.Against, nameSDK) && program == "" {
		var err error
		if program, err = r.build(ctx); err != nil {
			return err
		}
	}
	if err := r.turns(ctx); err != nil {
		return err
	}
	if err := r.floor(ctx); err != nil {
		return err
	}
	if slices.Contains(r.o.Against, nameSDK) {
		if err := r.sdk(ctx, program); err != nil {
			return err
		}
	}
	r.result.Goals = r.result.goals()
	return nil
}

// build builds the program of the SDK's store.
func (r *runner) build(ctx context.Context) (program string, err error) {
	r.progress.Begin("build", "programs", 1)
	r.progress.Working("the SDK's store")
	if program, err = buildSDK(ctx, r.dir); err == nil {
		r.progress.Add(1)
	}
	return program, err
}

// folder makes a folder in the run's, which is removed as a whole.
func (r *runner) folder(name string) (string, error) {
	dir := filepath.Join(r.dir, name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("no folder for %s: %w", name, err)
	}
	return dir, nil
}

// startSelf runs this program as a child in a role. The child is never stopped: a server serves
// while the parent waits for the joiner.
func startSelf(ctx context.Context, b begin) (*harness.Process, error) {
	return harness.StartRunning(ctx, ChildCommand, b.Role, b, new(answer))
}

// startLoaded starts a child in a role, and lets it load all keys.
func (r *runner) startLoaded(ctx context.Context, role string) (*harness.Process, error) {
	dir, err := r.folder(role)
	if err != nil {
		return nil, err
	}
	spec := specOf(r.o.Keys, r.o.Seed)
	p, err := startSelf(ctx, begin{Role: role, Spec: spec, Dir: dir, Blocks: r.blocks})
	if err != nil {
		return nil, err
	}
	r.progress.Begin("load", "batches", spec.LoadSteps())
	r.progress.Working(role)
	for done := 0; done < spec.LoadSteps(); {
		var a answer
		if err := p.Ask(request{Op: opLoad, N: loadSlice}, &a); err != nil {
			p.End()
			return nil, err
		}
		done += a.Done
		r.progress.Add(a.Done)
	}
	return p, nil
}

// joined is a join of Starling, with the CPU seconds of the server during it.
type joined struct {
	answer
	serverCPU float64
}

// turns lets joiners, each a new process, join from one server, in turns with memiavl's imports:
// noise that lasts seconds hits both.
func (r *runner) turns(ctx context.Context) error {
	server, err := r.startLoaded(ctx, roleServer)
	if err != nil {
		return err
	}
	defer server.End()
	var serving answer
	if err := server.Ask(request{Op: opServe, Peers: 1}, &serving); err != nil {
		return err
	}
	contestants := []string{"starling"}
	var memiavl *harness.Process
	if slices.Contains(r.o.Against, nameMemiavl) {
		if memiavl, err = r.startLoaded(ctx, roleMemiavl); err != nil {
			return err
		}
		defer memiavl.End()
		contestants = append(contestants, nameMemiavl)
	}
	r.progress.Begin("join", "joins", r.o.Repeat*len(contestants))
	var joins []joined
	var imports []answer
	err = harness.InTurns(r.o.Repeat, contestants, func(round int, name string) error {
		r.progress.Working(name)
		defer r.progress.Add(1)
		if name == nameMemiavl {
			syncDisk()
			var a answer
			err := memiavl.Ask(request{Op: opJoin}, &a)
			imports = append(imports, a)
			return err
		}
		j, err := r.join(ctx, server, request{Op: opJoin, Target: serving.Target}, fmt.Sprint(round))
		joins = append(joins, j)
		return err
	})
	if err != nil {
		return err
	}
	var usage answer
	if err := server.Ask(request{Op: opUsage}, &usage); err != nil {
		return err
	}
	r.setStarling(joins, usage.RSS)
	if memiavl != nil {
		r.setMemiavl(imports)
	}
	return nil
}

func (r *runner) join(ctx context.Context, server *harness.Process, q request, name string) (j joined, err error) {
	dir, err := r.folder("joiner-" + name)
	if err != nil {
		return j, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	joiner, err := startSelf(ctx, begin{Role: roleJoiner, Spec: specOf(r.o.Keys, r.o.Seed), Dir: dir})
	if err != nil {
		return j, err
	}
	defer joiner.End()
	syncDisk()
	var before, after answer
	if err := server.Ask(request{Op: opUsage}, &before); err != nil {
		return j, err
	}
	if err := joiner.Ask(q, &j.answer); err != nil {
		return j, err
	}
	if err := server.Ask(request{Op: opUsage}, &after); err != nil {
		return j, err
	}
	j.serverCPU = after.CPU - before.CPU
	return j, nil
}

// setStarling takes all figures from the join of the median time: they belong together.
func (r *runner) setStarling(joins []joined, serverRSS int64) {
	s := Starling{ServerRSS: serverRSS}
	for _, j := range joins {
		s.Seconds = append(s.Seconds, j.Seconds)
	}
	median := harness.Median(s.Seconds)
	m := joins[slices.Index(s.Seconds, median)]
	s.ServerCPUS, s.JoinerCPUS, s.Join = m.serverCPU, m.CPU, m.Stats
	r.result.Starling = s
	r.result.StarlingS, r.result.CPUS = median, m.serverCPU+m.CPU
	r.result.Bytes, r.result.RSSBytes = m.Stats.Bytes, m.RSS
}

func (r *runner) floor(ctx context.Context) (err error) {
	r.progress.Begin("floor", "measures", 1)
	r.progress.Working("loopback, disk, hashes")
	r.result.Floor, err = measureFloor(ctx, r.dir, r.result.Bytes, r.o.Keys, r.result.CPUS)
	r.result.FloorS = r.result.Floor.Seconds
	r.progress.Add(1)
	return err
}

func (r *runner) setMemiavl(imports []answer) {
	m := &Memiavl{}
	var exports, cpus []float64
	for _, a := range imports {
		m.Seconds, exports, cpus = append(m.Seconds, a.Seconds), append(exports, a.ExportS), append(cpus, a.CPU)
		m.Bytes, m.RSSBytes = a.Bytes, a.RSS
	}
	r.result.MemiavlS = harness.Median(m.Seconds)
	m.ExportS, m.CPUS = harness.Median(exports), harness.Median(cpus)
	m.ImportS = r.result.MemiavlS - m.ExportS
	r.result.Memiavl = m
}

func (r *runner) sdk(ctx context.Context, program string) error {
	dir, err := r.folder(nameSDK)
	if err != nil {
		return err
	}
	store, err := startSDK(ctx, program, dir)
	if err != nil {
		return err
	}
	defer store.End()
	w, err := workload.New(specOf(r.o.Keys, r.o.Seed), 0)
	if err != nil {
		return err
	}
	if err := loadSDK(store, w, r.o.Keys, r.progress); err != nil {
		return err
	}
	r.progress.Begin("create and restore", "joins", 1)
	r.progress.Working(nameSDK)
	syncDisk()
	a, err := store.join()
	if err != nil {
		return err
	}
	r.progress.Add(1)
	r.result.SDKIAVLS = a.CreateS + a.RestoreS
	r.result.SDK = &SDK{CreateS: a.CreateS, RestoreS: a.RestoreS, CPUS: a.CPUS, Chunks: a.Chunks, Bytes: a.Bytes, RSSBytes: a.RSSBytes}
	return nil
}

// loadSDK makes the load here and sends it over: the SDK's module cannot import the workload's.
func loadSDK(store sdkStore, w *workload.Workload, keys int, progress *harness.Progress) error {
	progress.Begin("load", "batches", specOf(keys, 0).LoadSteps())
	progress.Working(nameSDK)
	for !w.Loaded() {
		if _, err := store.commit(w.Next(), false); err != nil {
			return err
		}
		progress.Add(1)
	}
	return nil
}
