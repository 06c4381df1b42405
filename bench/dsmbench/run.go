package dsmbench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
)

// appSlice is the number of blocks that an application executes in a turn.
const appSlice = 10

// runner is the state of one run.
type runner struct {
	o        Options
	progress *harness.Progress
	result   *Result
	chain    *chain
}

// few returns n, or a smaller number in a quick run.
func (o *Options) few(n int) int {
	if o.Quick {
		return min(n, 4)
	}
	return n
}

// Run runs the benchmark, and reports to progress. Its processes have ended when it returns.
func Run(ctx context.Context, o Options, progress *harness.Progress) (*Result, error) {
	s := o.spec()
	r := &runner{o: o, progress: progress, result: &Result{
		Keys: o.Keys, Retain: o.Retain, Window: o.Window, Shards: o.Shards, Signers: s.Signers, BlockTx: s.Transfers,
		Blocks: o.Blocks, PagedMB: o.PagedMB, Seed: o.Seed, Quick: o.Quick, Phases: o.Phases, Machine: harness.ThisMachine(),
		HeaderBytes: headerBytes(),
	}}
	err := harness.InFolder(ctx, progress, func(dir string) error { return r.run(ctx, dir) })
	if err != nil {
		return nil, err
	}
	r.result.summarize()
	return r.result, nil
}

func (r *runner) run(ctx context.Context, dir string) error {
	if r.o.has(phaseApps) {
		if err := r.runApps(ctx, filepath.Join(dir, "apps")); err != nil {
			return err
		}
	}
	if r.o.has(phaseMove) {
		err := r.runMoves(ctx, filepath.Join(dir, "move"))
		if ctx.Err() != nil {
			return err
		}
		if err != nil { // the figures of the other phases count
			r.progress.Say("the moves failed: %v", err)
			r.result.Failed = append(r.result.Failed, "moves: "+err.Error())
		}
	}
	if r.o.has(phaseFeed) {
		if err := r.runFeed(ctx); err != nil {
			return err
		}
	}
	if r.o.has(phaseSizes) || r.o.has(phaseNodes) || r.o.has(phaseJoin) || r.o.has(phaseRange) || r.o.has(phasePrefetch) {
		if err := r.runState(ctx, dir); err != nil {
			return err
		}
	}
	if r.o.has(phaseStart) { // last, since its largest tree takes gigabytes
		return r.runStarts(ctx, filepath.Join(dir, "start"))
	}
	return nil
}

// runState runs the phases that need the full tree in this process.
func (r *runner) runState(ctx context.Context, dir string) error {
	if err := r.load(); err != nil {
		return err
	}
	defer r.release()
	if r.o.has(phaseSizes) {
		if err := r.runSizes(ctx); err != nil {
			return err
		}
	}
	if r.o.has(phaseRange) {
		if err := r.runRanges(ctx, filepath.Join(dir, "ranges")); err != nil {
			return err
		}
	}
	if r.o.has(phasePrefetch) {
		if err := r.runPrefetch(ctx, dir); err != nil {
			return err
		}
	}
	if r.o.has(phaseNodes) || r.o.has(phaseJoin) {
		return r.runNodes(ctx, dir)
	}
	return nil
}

// release releases the states of this process.
func (r *runner) release() {
	for _, v := range r.chain.recent {
		v.release()
	}
}

// load makes the full tree of this process.
func (r *runner) load() error {
	r.progress.Begin("load", "keys", r.o.Keys)
	r.progress.Working("the full tree")
	g := newGenerator(r.o.spec())
	v, err := newState(g, r.progress.Add)
	if err != nil {
		return err
	}
	r.chain = &chain{g: g, recent: []at{{height: firstHeight, Version: v}}, keep: r.o.Window + 1, bytes: treeBytes(v.Memory())}
	r.result.TreeBytes = r.chain.bytes
	return nil
}

// entrant is a validator and its measurements.
type entrant struct {
	*harness.Process
	mode    string
	seconds []float64 // for each block
	graft   []float64
	cpu     float64
	last    answer
	fetched int
}

// runApps runs the validators in turns.
func (r *runner) runApps(ctx context.Context, dir string) error {
	modes := []string{modeLocal, modeSharded, modePaged}
	var entrants []*entrant
	defer func() {
		for _, e := range entrants {
			e.End()
		}
	}()
	r.progress.Begin("start", "validators", len(modes))
	for _, mode := range modes {
		r.progress.Working(mode)
		own := filepath.Join(dir, mode)
		if err := os.MkdirAll(own, 0o750); err != nil {
			return fmt.Errorf("creating a validator's folder: %w", err)
		}
		b := begin{Role: mode, Spec: r.o.spec(), Retain: r.o.Retain, Window: r.o.Window, Dir: own, PagedBytes: int64(r.o.PagedMB) << 20}
		p, err := harness.Start(ctx, ChildName, mode, b, nil)
		if err != nil {
			return err
		}
		entrants = append(entrants, &entrant{Process: p, mode: mode})
		r.progress.Add(1)
	}
	for _, w := range []struct {
		name      string
		deletions bool
		warm      int
		into      *Row
	}{{"transfers", false, r.o.warmUp(), &r.result.Transfers}, {"with deletions", true, r.o.Window, &r.result.Deletions}} {
		w.into.Apps = map[string]App{}
		r.progress.Begin(w.name, "blocks", len(entrants)*(w.warm+r.o.Blocks))
		for _, phase := range []struct {
			blocks int
			count  bool
		}{{w.warm, false}, {r.o.Blocks, true}} {
			if err := r.turns(entrants, w.deletions, phase.blocks, phase.count); err != nil {
				return err
			}
		}
		for _, e := range entrants {
			w.into.Apps[e.mode] = e.figures(r.o.spec().Transfers)
		}
	}
	return nil
}

func (r *runner) turns(entrants []*entrant, deletions bool, blocks int, count bool) error {
	rounds := (blocks + appSlice - 1) / appSlice
	err := harness.InTurns(rounds, entrants, func(round int, e *entrant) error {
		r.progress.Working(e.mode)
		n := blocks*(round+1)/rounds - blocks*round/rounds
		var a answer
		if err := e.Ask(request{Op: opBlocks, N: n, Deletions: deletions}, &a); err != nil {
			return err
		}
		e.last = a
		r.progress.Add(n)
		if !count {
			return nil
		}
		e.fetched += a.Fetched
		for i := range a.Nanos {
			e.seconds = append(e.seconds, float64(a.Nanos[i])*1e-9)
			e.graft = append(e.graft, float64(a.GraftNanos[i])*1e-9)
			e.cpu += float64(a.CPUNanos[i]) * 1e-9
		}
		return nil
	})
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(entrants, func(e *entrant) bool { return e.last.AppHash != entrants[0].last.AppHash }); i >= 0 {
		return fmt.Errorf("after block %d %s has the app hash %s, %s has %s", entrants[0].last.Height, entrants[i].mode, entrants[i].last.AppHash, entrants[0].mode, entrants[0].last.AppHash)
	}
	return nil
}

// figures returns what was measured so far, and resets it.
func (e *entrant) figures(txs int) App {
	a := App{
		TPS: harness.Ratio(float64(txs), harness.Median(e.seconds)), CPUMicros: e.cpu / float64(len(e.seconds)*txs) * 1e6,
		GraftMicros: harness.Median(e.graft) / float64(txs) * 1e6, Fetched: e.fetched, TreeBytes: e.last.TreeBytes,
	}
	e.seconds, e.graft, e.cpu, e.fetched = nil, nil, 0, 0
	return a
}
