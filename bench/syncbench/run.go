package syncbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// loadSlice is the number of batches that a child loads between two reports.
const loadSlice = 10

// runner is the state of one run.
type runner struct {
	o        Options
	dir      string
	progress *harness.Progress
	result   Result
	blocks   int // maximum number of blocks that children make after the load
}

// Run runs the benchmark, and reports to progress. Its processes have ended when it returns.
func Run(ctx context.Context, o Options, progress *harness.Progress) (*Result, error) {
	r := &runner{o: o, progress: progress, result: Result{Keys: o.Keys, Seed: o.Seed, Repeat: o.Repeat, Machine: harness.ThisMachine()}}
	err := harness.InFolder(ctx, progress, func(dir string) error {
		r.dir = dir
		return r.run(ctx)
	})
	if err != nil {
		return nil, err
	}
	return &r.result, nil
}

func (r *runner) run(ctx context.Context) error {
	program := ""
	if slices.Contains(r.o.Against, nameSDK) {
		var err error
		if program, err = harness.Build(ctx, r.o.SDK, "bench/sdk", ".", r.progress); err != nil {
			return err
		}
	}
	if err := r.turns(ctx, program); err != nil {
		return err
	}
	if err := r.floor(ctx); err != nil {
		return err
	}
	r.result.Targets = r.result.targets()
	return nil
}

// folder creates a folder in the run's folder, which is removed as a whole.
func (r *runner) folder(name string) (string, error) {
	dir := filepath.Join(r.dir, name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("creating the folder of %s: %w", name, err)
	}
	return dir, nil
}

// startSelf runs this program as a child with a role. Only Pause stops the child: a server must
// serve while the parent waits for the joiner.
func startSelf(ctx context.Context, b begin) (*harness.Process, error) {
	return harness.StartRunning(ctx, ChildName, b.Role, b, nil)
}

// startLoaded starts a child with a role, and lets it load all keys.
func (r *runner) startLoaded(ctx context.Context, role string) (*harness.Process, error) {
	return r.startLoadedAs(ctx, role, begin{Role: role})
}

// startLoadedAs is startLoaded for a child whose folder has the given name.
func (r *runner) startLoadedAs(ctx context.Context, name string, b begin) (_ *harness.Process, err error) {
	if b.Dir, err = r.folder(name); err != nil {
		return nil, err
	}
	b.Spec, b.Blocks = specOf(r.o.Keys, r.o.Seed), r.blocks
	p, err := startSelf(ctx, b)
	if err != nil {
		return nil, err
	}
	r.progress.Begin("load", "batches", b.Spec.LoadSteps())
	r.progress.Working(name)
	for done := 0; done < b.Spec.LoadSteps(); {
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

// joined is a join of Starling, with the server's CPU seconds during the join and the memory of
// both sides.
type joined struct {
	answer
	serverCPU            float64
	serverHad, joinerHad harness.Memory
}

// entrant is a contestant. Its process, if it keeps one, is stopped except in its own turns.
type entrant struct {
	name  string
	turns int
	join  func(round int) error
	set   func() // sets the figures in the result
	end   func()
}

// turns lets the contestants join in turns, so that noise that lasts seconds affects all.
func (r *runner) turns(ctx context.Context, program string) error {
	ours, err := r.serve(ctx, nameStarling, r.o.ChunkBytes)
	if err != nil {
		return err
	}
	defer ours.End()
	memory := max(int64(r.o.Keys)*(workload.KeyBytes+workload.ValueBytes)/pagedPart, leastPaged)
	enter := []func(context.Context) (*entrant, error){
		func(ctx context.Context) (*entrant, error) {
			return r.starling(ctx, nameStarling, ours, 0, r.o.Repeat+1, r.setStarling), nil
		},
		func(ctx context.Context) (*entrant, error) {
			set := func(joins []joined) { r.setPaged(memory, joins) }
			return r.starling(ctx, namePaged, ours, memory, min(pagedJoins, r.o.Repeat), set), nil
		},
	}
	if r.o.ChunkBytes != avlstar.DefaultChunkBytes {
		enter = append(enter, func(ctx context.Context) (*entrant, error) {
			other, err := r.serve(ctx, nameDefaultChunks, avlstar.DefaultChunkBytes)
			if err != nil {
				return nil, err
			}
			e := r.starling(ctx, nameDefaultChunks, other, 0, r.o.Repeat+1, r.setDefaultChunks)
			e.end = other.End
			return e, nil
		})
	}
	if slices.Contains(r.o.Against, nameMemiavl) {
		enter = append(enter, r.memiavl)
	}
	if slices.Contains(r.o.Against, nameSDK) {
		enter = append(enter, func(ctx context.Context) (*entrant, error) { return r.sdk(ctx, program) })
	}
	var entrants []*entrant
	total := 0
	for _, start := range enter {
		e, err := start(ctx)
		if err != nil {
			return err
		}
		defer e.end()
		entrants, total = append(entrants, e), total+e.turns
	}
	r.progress.Begin("join", "joins", total)
	err = harness.InTurns(r.o.Repeat+1, entrants, func(round int, e *entrant) error {
		if round >= e.turns {
			return nil
		}
		r.progress.Working(e.name)
		defer r.progress.Add(1)
		return e.join(round)
	})
	if err != nil {
		return err
	}
	for _, e := range entrants {
		e.set()
	}
	return nil
}

// serving is a server that is stopped except during joins.
type serving struct {
	*harness.Process
	target Target
}

func (r *runner) serve(ctx context.Context, name string, chunkBytes uint64) (s serving, err error) {
	if s.Process, err = r.startLoadedAs(ctx, name, begin{Role: roleServer, ChunkBytes: chunkBytes}); err != nil {
		return s, err
	}
	var a answer
	if err := s.Ask(request{Op: opServe, Peers: 1}, &a); err != nil {
		s.End()
		return s, err
	}
	s.target = a.Target
	s.Pause()
	return s, nil
}

// starling joins from a server, each time with a new process. memory is a paged joiner's budget; 0:
// the state is in memory.
func (r *runner) starling(ctx context.Context, name string, server serving, memory int64, turns int, set func([]joined)) *entrant {
	var joins []joined
	return &entrant{
		name: name, turns: turns, end: func() {}, set: func() { set(joins) },
		join: func(round int) error {
			server.Resume()
			defer server.Pause()
			// the last join is for measuring blocks during ingestion
			q := request{Op: opJoin, Target: server.target, Memory: memory, Commit: round == r.o.Repeat}
			j, err := r.join(ctx, server.Process, q, fmt.Sprintf("%s-%d", name, round))
			joins = append(joins, j)
			return err
		},
	}
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
	harness.SyncDisk()
	var before, after answer
	if err := server.Ask(request{Op: opUsage}, &before); err != nil {
		return j, err
	}
	stop := harness.Watch(server, joiner)
	err = joiner.Ask(q, &j.answer)
	had := stop()
	j.serverHad, j.joinerHad = had[0], had[1]
	if err != nil {
		return j, err
	}
	if err := server.Ask(request{Op: opUsage}, &after); err != nil {
		return j, err
	}
	j.serverCPU = after.CPU - before.CPU
	return j, nil
}

// setStarling takes all figures except times from the join of median time, because they belong
// together.
func (r *runner) setStarling(joins []joined) {
	s := Starling{ChunkBytes: r.o.ChunkBytes}
	joins, last := joins[:len(joins)-1], joins[len(joins)-1]
	var settled []float64
	for _, j := range joins {
		s.Seconds, settled = append(s.Seconds, j.Seconds), append(settled, j.Stats.SettledS)
	}
	if n := len(last.Nanos); n > 0 {
		s.Blocks = &SettlingBlocks{
			Blocks: n, Keys: settlingKeys, SettledS: last.Stats.SettledS,
			P99MS: harness.Percentile(millis(last.Nanos), 99), LaterP99MS: harness.Percentile(millis(last.Later), 99),
		}
	}
	median := harness.LowerMedian(s.Seconds)
	m := joins[slices.Index(s.Seconds, median)]
	s.Join = m.Stats
	s.ServerMemory, s.JoinerMemory = m.serverHad, m.joinerHad
	s.BesideTree = max(0, m.joinerHad.Anon-m.Stats.TreeBytes)
	r.result.Starling = s
	r.result.SettledS = harness.Median(settled)
	r.result.StarlingS, r.result.CPUS = median, m.serverCPU+m.CPU
	r.result.ServerCPUS, r.result.JoinerCPUS = m.serverCPU, m.CPU
	r.result.Bytes, r.result.RSSBytes = m.Stats.Bytes, m.joinerHad.Peak
}

// setPaged uses the join with the highest peak: the budget must be kept in every join.
func (r *runner) setPaged(memory int64, joins []joined) {
	p := &Paged{BudgetBytes: memory}
	for _, j := range joins {
		p.Seconds = append(p.Seconds, j.Seconds)
		if j.joinerHad.Anon > p.JoinerMemory.Anon {
			p.JoinerMemory, p.TreeBytes = j.joinerHad, j.Stats.TreeBytes
		}
	}
	p.StarlingS = harness.Median(p.Seconds)
	p.BesideBudget = max(0, p.JoinerMemory.Anon-memory)
	r.result.Paged = p
}

func (r *runner) setDefaultChunks(joins []joined) {
	d := &DefaultChunks{}
	var settled []float64
	for _, j := range joins[:len(joins)-1] {
		d.Seconds, settled = append(d.Seconds, j.Seconds), append(settled, j.Stats.SettledS)
	}
	d.StarlingS, d.SettledS = harness.Median(d.Seconds), harness.Median(settled)
	r.result.DefaultChunks = d
}

func (r *runner) floor(ctx context.Context) (err error) {
	r.progress.Begin("floor", "measures", 1)
	r.progress.Working("loopback, disk, hashes")
	r.result.Floor, err = measureFloor(ctx, r.dir, r.result.Bytes, r.o.Keys, r.result.CPUS)
	r.result.FloorS = r.result.Floor.Seconds
	r.progress.Add(1)
	return err
}

// memiavl writes a snapshot, and pipes its export into an import, each time with a new process.
func (r *runner) memiavl(ctx context.Context) (*entrant, error) {
	writer, err := r.startLoaded(ctx, roleMemiavl)
	if err != nil {
		return nil, err
	}
	err = writer.Ask(request{Op: opWrite}, nil)
	writer.End()
	if err != nil {
		return nil, err
	}
	dir, err := r.folder(roleMemiavl)
	if err != nil {
		return nil, err
	}
	m := &Memiavl{}
	var cpus []float64
	return &entrant{
		name: nameMemiavl, turns: r.o.Repeat, end: func() {},
		set: func() {
			r.result.MemiavlS, m.CPUS = harness.Median(m.Seconds), harness.Median(cpus)
			r.result.Memiavl = m
		},
		join: func(int) error {
			p, err := startSelf(ctx, begin{Role: roleImporter, Dir: dir})
			if err != nil {
				return err
			}
			defer p.End()
			harness.SyncDisk()
			stop := harness.Watch(p)
			var a answer
			err = p.Ask(request{Op: opJoin}, &a)
			m.Memory, m.Bytes = stop()[0], a.Bytes
			m.Seconds, cpus = append(m.Seconds, a.Seconds), append(cpus, a.CPU)
			return err
		},
	}, nil
}

// sdk creates a snapshot, and restores it into a new store each time.
func (r *runner) sdk(ctx context.Context, program string) (_ *entrant, err error) {
	dir, err := r.folder(nameSDK)
	if err != nil {
		return nil, err
	}
	store, err := startSDK(ctx, program, sdkBegin{Dir: dir, Backend: Engines[0]})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			store.End()
		}
	}()
	w, err := workload.New(specOf(r.o.Keys, r.o.Seed), 0)
	if err != nil {
		return nil, err
	}
	if err := loadSDK(store, w, r.o.Keys, r.progress); err != nil {
		return nil, err
	}
	r.progress.Begin("create", "snapshots", 1)
	r.progress.Working(nameSDK)
	created, err := store.create()
	if err != nil {
		return nil, err
	}
	r.progress.Add(1)
	store.Pause()
	s := &SDK{CreateS: created.Seconds}
	var cpus []float64
	return &entrant{
		name: nameSDK, turns: min(r.o.SDKRepeat, r.o.Repeat), end: store.End,
		set: func() {
			r.result.SDKRestoreS, r.result.SDKCreateS, s.CPUS = harness.Median(s.Seconds), s.CreateS, harness.Median(cpus)
			r.result.SDK = s
		},
		join: func(int) error {
			store.Resume()
			defer store.Pause()
			harness.SyncDisk()
			stop := harness.Watch(store.Process)
			a, err := store.restore()
			s.Memory, s.Chunks, s.Bytes = stop()[0], a.Chunks, a.Bytes
			s.Seconds, cpus = append(s.Seconds, a.Seconds), append(cpus, a.CPUS)
			return err
		},
	}, nil
}

// loadSDK makes the load here and sends it, because the SDK's module cannot import the workload's.
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
