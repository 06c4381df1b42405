package storagebench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/starling-kv/starling/bench/harness"
)

// Sizes of slices. Slices are short, so that noise that lasts seconds affects all contestants.
const (
	makeSlice   = 20 // steps
	loadSlice   = 5
	writeRounds = 10
)

// runner is the state of one run.
type runner struct {
	o        Options
	dir      string
	progress *harness.Progress
	ctx      context.Context
	children []*harness.Process // all children that were started
	entrants []*entrant         // contestants, Starling last
	result   *Result
}

// entrant is a contestant and its measurements.
type entrant struct {
	*harness.Process
	seconds float64   // of replaying the blocks
	rates   []float64 // blocks/s of each round; the last round ends when all blocks are durable
	cpu     float64   // CPU seconds, including background work after the last block
	before  answer    // after the load
	after   answer    // after the blocks
}

// Run runs the benchmark, and reports to progress. Its processes have ended when it returns.
func Run(ctx context.Context, o Options, progress *harness.Progress) (*Result, error) {
	r := &runner{o: o, progress: progress, ctx: ctx, result: &Result{
		Plans: map[string]memoryPlan{}, Chain: o.spec(), Budget: o.budget(), Queries: o.Queries, Cold: o.Cold, Machine: harness.ThisMachine(),
	}}
	err := harness.InFolder(ctx, progress, func(dir string) error {
		defer func() {
			for _, c := range r.children {
				c.End()
			}
		}()
		r.dir = dir
		return r.run()
	})
	if err != nil {
		return nil, err
	}
	r.result.finish()
	return r.result, nil
}

func (r *runner) run() error {
	if r.o.wants(PartWrite, PartReads, PartLocality, PartCache) {
		for _, phase := range []func() error{r.make, r.start, r.load, r.blocks} {
			if err := phase(); err != nil {
				return err
			}
		}
		if r.o.wants(PartReads, PartLocality, PartCache) {
			if err := r.reopen(); err != nil {
				return err
			}
		}
		if r.o.wants(PartReads) {
			if err := r.reads(); err != nil {
				return err
			}
		}
		if r.o.wants(PartLocality) {
			if err := r.locality(); err != nil {
				return err
			}
		}
		if r.o.wants(PartCache) {
			if err := r.cache(); err != nil {
				return err
			}
		}
		r.endAll() // free the memory and disk for the next part
	}
	if r.o.wants(PartRecovery) {
		if err := r.recovery(); err != nil {
			return err
		}
	}
	if r.o.wants(PartCommit) {
		if err := r.commits(); err != nil {
			return err
		}
		r.endAll()
	}
	if r.o.wants(PartPaged) {
		return r.paged()
	}
	return nil
}

func (r *runner) endAll() {
	for _, c := range r.children {
		c.End()
	}
	r.children, r.entrants = nil, nil
	_ = os.RemoveAll(r.dir) // anything left is removed at the end
}

// child starts a process of this role in a new folder.
func (r *runner) child(role, dir string, spec Spec) (*harness.Process, error) {
	own, traces := filepath.Join(r.dir, dir), filepath.Join(r.dir, "requests")
	for _, d := range []string{own, traces} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return nil, fmt.Errorf("creating the folder of %s: %w", role, err)
		}
	}
	budget := r.o.budget()
	if strings.HasSuffix(role, tuned) {
		budget = tunedBudget
	}
	p, err := harness.Start(r.ctx, ChildName, role, begin{Role: role, Spec: spec, Dir: own, Traces: traces, Budget: budget}, nil)
	if err == nil {
		r.children = append(r.children, p)
	}
	return p, err
}

// make makes the requests in a separate process. All contestants then replay them.
func (r *runner) make() error {
	spec := r.o.spec()
	total := spec.LoadSteps + spec.Blocks
	r.progress.Begin("make requests", "steps", total)
	r.progress.Working("the chain")
	p, err := r.child(roleMaker, roleMaker, spec)
	if err != nil {
		return err
	}
	for made := 0; made < total; made += makeSlice {
		n := min(makeSlice, total-made)
		if err := p.Ask(request{Op: opMake, N: n}, nil); err != nil {
			return err
		}
		r.progress.Add(n)
	}
	var a answer
	err = p.Ask(request{Op: opModel}, &a)
	r.result.Sizes = a.Model
	p.End()
	return err
}

func (r *runner) start() error {
	names := r.o.contestants()
	r.progress.Begin("start", "processes", len(names))
	for _, name := range names {
		r.progress.Working(name)
		p, err := r.child(name, name, r.o.spec())
		if err != nil {
			return err
		}
		r.entrants = append(r.entrants, &entrant{Process: p})
		r.progress.Add(1)
	}
	return nil
}

// slices calls slice in turns, and reports whose turn it is.
func (r *runner) slices(rounds int, slice func(round int, e *entrant) error) error {
	return harness.InTurns(rounds, r.entrants, func(round int, e *entrant) error {
		r.progress.Working(e.Name)
		return slice(round, e)
	})
}

func (e *entrant) ask(q request) (a answer, err error) {
	err = e.Ask(q, &a)
	return a, err
}

// load makes the state that the blocks change, and waits for its compactions.
func (r *runner) load() error {
	steps := r.o.spec().LoadSteps
	r.progress.Begin("load", "steps", (steps+1)*len(r.entrants))
	rounds := (steps + loadSlice - 1) / loadSlice
	return r.slices(rounds, func(round int, e *entrant) (err error) {
		n := min(loadSlice, steps-round*loadSlice)
		if _, err := e.ask(request{Op: opReplay, N: n}); err != nil {
			return err
		}
		r.progress.Add(n)
		if round == rounds-1 {
			e.before, err = e.ask(request{Op: opSettle})
			r.progress.Add(1)
		}
		return err
	})
}

// blocks measures the replay of the blocks.
func (r *runner) blocks() error {
	n := r.o.Blocks
	rounds := min(writeRounds, n)
	r.progress.Begin("blocks", "blocks", n*len(r.entrants))
	err := r.slices(rounds, func(round int, e *entrant) error {
		some := n*(round+1)/rounds - n*round/rounds
		a, err := e.ask(request{Op: opReplay, N: some})
		if err != nil {
			return err
		}
		e.cpu += a.CPU
		r.progress.Add(some)
		seconds := a.Seconds
		if round == rounds-1 {
			if a, err = e.ask(request{Op: opDrain}); err != nil {
				return err
			}
			seconds += a.Seconds
		}
		e.seconds, e.rates = e.seconds+seconds, append(e.rates, harness.Ratio(float64(some), seconds))
		if round < rounds-1 {
			return nil
		}
		e.after, err = e.ask(request{Op: opSettle})
		e.cpu += e.after.CPU
		return err
	})
	if err != nil {
		return err
	}
	for _, e := range r.entrants {
		r.result.Writes = append(r.result.Writes, r.writeCell(e))
	}
	if leaves := r.result.write(nameLeaves); leaves != nil { // caches do not affect writes
		same := *leaves
		same.Contestant, same.Step = nameLeaves+" "+stepCache, stepCache
		r.result.Writes = slices.Insert(r.result.Writes, len(r.result.Writes)-1, same)
	}
	return nil
}

func (r *runner) writeCell(e *entrant) WriteCell {
	s := r.result.Sizes
	c := WriteCell{
		Contestant: e.Name, Step: stepOf(e.Name), Seconds: e.seconds, CPUMillis: harness.Ratio(e.cpu*1e3, float64(r.o.Blocks)),
		LogicalBytes: s.BlockLogical + s.StateLogical, RequestBytes: s.BlockLogical + s.NodeBytes,
		WrittenBytes: e.after.Written - e.before.Written, counts: e.after.Counts.minus(e.before.Counts), Zones: e.after.Zones.minus(e.before.Zones),
		SettleS: max(0, e.after.Seconds-settleEvery.Seconds()*settleQuiet), Space: e.after.Disk, Plan: e.after.Plan,
	}
	switch e.Name {
	case nameLeaves, nameStarling, nameStarlingTuned:
		c.RequestBytes = s.BlockLogical + s.LeafBytes
	case nameGethHash, nameGethLevel:
		c.RequestBytes = s.BlockLogical + s.HashBytes
	case nameGethRow:
		c.RequestBytes = s.BlockLogical + s.HashBytes + s.HashOps
	case nameGethColumn:
		c.RequestBytes = s.BlockLogical + s.ColumnBytes
	case nameGethPath:
		c.RequestBytes = s.BlockLogical + s.PathBytes
	}
	if c.WrittenBytes == 0 { // without /proc, use the databases' own counts
		c.WrittenBytes = c.Log + c.Flushed + c.Compacted
	}
	c.BlocksPerS, c.Rates = harness.Ratio(float64(r.o.Blocks), c.Seconds), e.rates
	c.Interval = harness.MedianInterval(e.rates)
	c.MBPerS = harness.Ratio(float64(c.LogicalBytes)/1e6, c.Seconds)
	c.WriteAmplification = harness.Ratio(float64(c.WrittenBytes), float64(c.LogicalBytes))
	c.RequestWriteAmplification = harness.Ratio(float64(c.WrittenBytes), float64(c.RequestBytes))
	return c
}

// reader is a contestant with one mode of its cache.
type reader struct {
	*entrant
	step string
	mode cacheMode
}

func (r *runner) readers() (all []reader) {
	for _, e := range r.entrants {
		if strings.HasSuffix(e.Name, tuned) {
			continue // its caches would hold the state
		}
		mode := halves
		if e.Name == nameStarling {
			mode = cacheMode{Gaming: true}
		}
		all = append(all, reader{e, stepOf(e.Name), mode})
		if e.Name == nameMixed && r.o.NodeShare > 0 {
			all = append(all, reader{e, stepPlain, cacheMode{Plain: true}})
		}
		if e.Name == nameGethPath {
			flat := mode
			flat.Flat = true
			all = append(all, reader{e, stepFlat, flat})
		}
		if e.Name == nameLeaves {
			all = append(all, reader{e, stepCache, cacheMode{Gaming: true}})
		}
	}
	return all
}

// reopen opens the files of all readers once, and waits for the flushes and compactions that this
// begins. Otherwise, in the first reads, memtables of the replayed log would take memory from
// Pebble's cache.
func (r *runner) reopen() error {
	r.progress.Begin("reopen", "processes", len(r.entrants))
	return r.slices(1, func(_ int, e *entrant) error {
		defer r.progress.Add(1)
		if strings.HasSuffix(e.Name, tuned) {
			return nil // nothing is read from it
		}
		for _, q := range []request{{Op: opReopen, Cache: halves}, {Op: opSettle}} {
			if _, err := e.ask(q); err != nil {
				return err
			}
		}
		return nil
	})
}

// reads measures each mix and distribution with all contestants in turn. Each starts with empty
// caches, which unmeasured queries fill.
func (r *runner) reads() error {
	readers := r.readers()
	cells := len(mixes) * len(distributions)
	r.progress.Begin("reads", "queries", cells*len(readers)*2*r.o.Queries)
	round := 0
	for _, d := range distributions {
		for _, m := range mixes {
			round++
			for i := range readers {
				e := readers[(round+i)%len(readers)]
				r.progress.Working(fmt.Sprintf("%s %s, %s", e.Name, m, d))
				a, err := r.query(e.entrant, e.mode, request{Op: opRead, Mix: m, Distribution: d, Round: uint64(round)})
				if err != nil {
					return err
				}
				done := float64(a.Done)
				r.result.Plans[strings.TrimSpace(e.Name+" "+e.step)] = a.Plan
				r.result.Reads = append(r.result.Reads, ReadCell{
					Contestant: e.Name, Step: e.step, Mix: m.String(), Distribution: string(d), Queries: a.Done,
					PerS: harness.Ratio(done, a.Seconds), Micros: harness.Ratio(a.Seconds*1e6, done), CPUMicros: harness.Ratio(a.CPU*1e6, done),
					Reads: harness.Ratio(float64(a.Reads), done), ReadBytes: harness.Ratio(float64(a.ReadBytes), done), HitRate: a.Hits.rate(),
				})
			}
		}
	}
	return nil
}

// query makes queries to a contestant with empty caches.
func (r *runner) query(e *entrant, mode cacheMode, q request) (a answer, err error) {
	opened, err := e.ask(request{Op: opReopen, Cache: mode, Cold: r.o.Cold})
	if err != nil {
		return a, err
	}
	q.N, q.Warm = r.o.Queries, r.o.Queries
	if a, err = e.ask(q); err != nil {
		return a, err
	}
	a.Plan = opened.Plan
	r.progress.Add(a.Done + q.Warm)
	if a.Wrong > 0 {
		return a, fmt.Errorf("%s: %d of %d results are wrong", e.Name, a.Wrong, a.Done)
	}
	return a, nil
}

// turn is a change of the mix midway: queries of one mix, then the same number of another.
type turn struct{ from, to mix10 }

func (t turn) String() string { return fmt.Sprintf("%s then %s", t.from, t.to) }

// changing is the turn of the target: from serving history to serving state.
var (
	changing = turn{10, 0}
	turns    = []turn{changing, {7, 3}}
)

const gameSplit = "game"

// splits are the fixed divisions in eighths, and 0 for the game.
var splits = []int{0, 1, 2, 3, 4, 5, 6, 7}

func splitName(eighths int) string {
	if eighths == 0 {
		return gameSplit
	}
	return fmt.Sprintf("%d/8", eighths)
}

// cache compares the game with fixed splits. Starling gets the same queries each time, with empty
// caches that unmeasured queries fill.
func (r *runner) cache() error {
	ours := r.entrants[len(r.entrants)-1]
	r.progress.Begin("cache", "queries", len(splits)*(len(mixes)*2+len(turns)*3)*r.o.Queries)
	round := 1000
	measure := func(name string, q request) error {
		round++
		q.Round, q.Distribution = uint64(round), cacheDistribution
		for i := range splits {
			eighths := splits[(round+i)%len(splits)]
			r.progress.Working(fmt.Sprintf("%s, %s", splitName(eighths), name))
			a, err := r.query(ours, cacheMode{Gaming: eighths == 0, Split: float64(eighths) / 8}, q)
			if err != nil {
				return err
			}
			done := float64(a.Done)
			h := a.Hits
			r.result.Cache = append(r.result.Cache, CacheCell{
				Split: splitName(eighths), Mix: name, PerS: harness.Ratio(done, a.Seconds), Micros: harness.Ratio(a.Seconds*1e6, done), CPUMicros: harness.Ratio(a.CPU*1e6, done),
				HitRate: h.rate(), Reads: harness.Ratio(float64(a.Reads), done),
				State:  harness.Ratio(float64(h.StateHits), float64(h.StateHits+h.StateMisses)),
				Blocks: harness.Ratio(float64(h.BlockHits), float64(h.BlockHits+h.BlockMisses)),
			})
		}
		return nil
	}
	for _, m := range mixes {
		if err := measure(m.String(), request{Op: opRead, Mix: m}); err != nil {
			return err
		}
	}
	for _, t := range turns {
		if err := measure(t.String(), request{Op: opChange, Mix: t.from, Then: t.to}); err != nil {
			return err
		}
	}
	return nil
}

// cacheDistribution is the distribution of the queries that compare divisions. Without hot keys, no
// division would be better than another.
const cacheDistribution = distZipf99

// dyingBlocks is the number of blocks after the state of a recovery. The last of them are not
// durable when the process is killed.
const dyingBlocks = 130

// startRounds is the number of measured crashes and starts, in memory and paged.
const startRounds = 5

// filledBlocks is the number of blocks after the state is in memory again.
const filledBlocks = 100

func (r *runner) recovery() error {
	spec := r.o.spec()
	spec.Blocks = dyingBlocks
	order := []string{startMemory} // what the load left
	for range startRounds {
		order = append(order, startMemory, startPaged)
	}
	order = append(order, startLeaves, startFill)
	r.progress.Begin("recovery", "steps", spec.LoadSteps+len(order)+len(crashLevels))
	r.progress.Working("write")
	p, err := r.child(roleWriter, "recovery", spec)
	if err != nil {
		return err
	}
	var written answer
	for made := 0; made < spec.LoadSteps; made += loadSlice {
		n := min(loadSlice, spec.LoadSteps-made)
		if err := p.Ask(request{Op: opWrite, N: n}, &written); err != nil {
			return err
		}
		r.progress.Add(n)
	}
	starts := map[string][]answer{}
	var fill answer
	c := &Recovery{}
	height := written.Height
	for _, start := range order {
		r.progress.Working("start " + start)
		blocks := int64(dyingBlocks)
		if start == startFill {
			blocks = 0 // without a cache (startLeaves), blocks would have no page lists
			p.End()
		} else if err := die(p, dyingBlocks); err != nil {
			return err
		}
		if p, err = r.child(roleOpener, "recovery", spec); err != nil {
			return err
		}
		var a answer
		if err := p.Ask(request{Op: opRecover, Start: start}, &a); err != nil {
			return err
		}
		if a.Height < height {
			return fmt.Errorf("recovery: the store is at height %d after the crash, but %d was durable", a.Height, height)
		}
		c.Lost = max(c.Lost, height+blocks-a.Height)
		starts[start], height = append(starts[start], a), a.Height
		r.progress.Add(1)
	}
	r.progress.Working("fill the memory")
	if err := p.Ask(request{Op: opFill, N: filledBlocks}, &fill); err != nil {
		return err
	}
	p.End()
	seconds := func(a answer) float64 { return a.Seconds }
	cpu := func(a answer) float64 { return a.CPU }
	memory, paged, leaves := starts[startMemory][1:], starts[startPaged], starts[startLeaves][0]
	first := starts[startMemory][0] // of the size that was asked for: each crash adds blocks
	c.Keys, c.Height, c.DiskBytes, c.AfterLoadS = first.Keys, first.Height, first.Disk, first.Seconds
	c.Seconds, c.CPUS, c.OpenS = harness.MedianOf(memory, seconds), harness.MedianOf(memory, cpu), harness.MedianOf(memory, func(a answer) float64 { return a.Open })
	c.PagedS, c.PagedCPUS = harness.MedianOf(paged, seconds), harness.MedianOf(paged, cpu)
	for i := range memory {
		c.All, c.PagedAll = append(c.All, memory[i].Seconds), append(c.PagedAll, paged[i].Seconds)
	}
	c.LeavesS, c.LeavesCPUS, c.FillS, c.FillCPUS, c.FillBlocks = leaves.Seconds, leaves.CPU, fill.Seconds, fill.CPU, fill.Done
	c.FillP50, c.FillP99 = harness.Median(fill.Millis[:fill.Done]), harness.Percentile(fill.Millis[:fill.Done], 99)
	c.FilledP50, c.FilledP99 = harness.Median(fill.Millis[fill.Done:]), harness.Percentile(fill.Millis[fill.Done:], 99)
	r.result.Recovery = c
	if err := r.crashes(spec); err != nil {
		return err
	}
	r.endAll()
	return nil
}

// crashLevels are the numbers of blocks after a flush. The first four crashes come before the next
// flush is due by its number of blocks (storage.Options.FlushBlocks), the last one during or after
// it. On a slow disk, a flush may be due before by its interval: Lost says what was not on disk.
var crashLevels = []int{0, 10, 25, 49, dyingBlocks}

// crashes measures starts after crashes of several levels, one after another in one home.
func (r *runner) crashes(spec Spec) error {
	p, err := r.child(roleOpener, "recovery", spec)
	if err != nil {
		return err
	}
	var last answer
	if err := p.Ask(request{Op: opRecover, Start: startMemory}, &last); err != nil {
		return err
	}
	for _, n := range crashLevels {
		r.progress.Working(fmt.Sprintf("kill %d blocks after a flush", n))
		if err := die(p, n); err != nil {
			return err
		}
		if p, err = r.child(roleOpener, "recovery", spec); err != nil {
			return err
		}
		died := last.Height + int64(n)
		var start, replay answer
		if err := p.Ask(request{Op: opRecover, Start: startMemory}, &start); err != nil {
			return err
		}
		if err := p.Ask(request{Op: opRedo, N: int(died)}, &replay); err != nil {
			return err
		}
		r.result.Recovery.Crashes = append(r.result.Recovery.Crashes, Crash{
			Blocks: n, Lost: died - start.Height, Seconds: start.Seconds, ReplayS: replay.Seconds, CPUS: start.CPU + replay.CPU,
		})
		last = replay
		r.progress.Add(1)
	}
	return nil
}

// die makes n blocks after a flush in a child, and kills it.
func die(p *harness.Process, n int) error {
	switch err := p.Ask(request{Op: opDie, N: n}, nil); {
	case err == nil:
		return errors.New("recovery: the process survived being killed")
	case !p.Ended():
		return err
	}
	return nil
}

// Blocks of the commit part. A slice takes as long as the flusher's maximum delay, so each slice
// includes a flush.
const (
	commitSlice   = 50
	commitBlocks  = 1000 // maximum
	commitWarm    = 5
	unpacedBlocks = 2000
)

// startChainers starts children that make the chain, and lets each make the load.
func (r *runner) startChainers(roles ...string) error {
	spec := r.o.spec()
	for _, role := range roles {
		p, err := r.child(role, role, spec)
		if err != nil {
			return err
		}
		r.entrants = append(r.entrants, &entrant{Process: p})
		r.progress.Working(role + ", load")
		for made := 0; made < spec.LoadSteps; made += loadSlice {
			n := min(loadSlice, spec.LoadSteps-made)
			if err := p.Ask(request{Op: opWrite, N: n}, nil); err != nil {
				return err
			}
			r.progress.Add(n)
		}
	}
	return nil
}

func (r *runner) commits() error {
	spec := r.o.spec()
	slice, unpaced := min(commitSlice, r.o.Blocks), min(unpacedBlocks, 4*r.o.Blocks)
	rounds := min(commitBlocks, r.o.Blocks) / slice
	r.progress.Begin("commit", "blocks", 2*(spec.LoadSteps+rounds*slice+unpaced))
	millis := map[string][]float64{}
	if err := r.startChainers(roleMemory, roleDurable); err != nil {
		return err
	}
	for _, e := range r.entrants {
		if _, err := e.ask(request{Op: opCommit, N: commitWarm}); err != nil {
			return err
		}
	}
	ask := func(e *entrant, q request) (answer, error) {
		a, err := e.ask(q)
		r.progress.Add(a.Done)
		return a, err
	}
	c := &Commit{}
	err := r.slices(rounds, func(_ int, e *entrant) error {
		a, err := ask(e, request{Op: opCommit, N: slice, Paced: true})
		millis[e.Name] = append(millis[e.Name], a.Millis...)
		if e.Name == roleDurable {
			c.ReclaimMax = max(c.ReclaimMax, a.Reclaim)
		}
		return err
	})
	if err != nil {
		return err
	}
	memory, durable := millis[roleMemory], millis[roleDurable]
	c.Operations, c.Blocks, c.UnpacedBlocks = r.o.TxsPerBlock, len(durable), unpaced
	c.MemoryP50, c.MemoryP99 = harness.Median(memory), harness.Percentile(memory, 99)
	c.DurableP50, c.DurableP99 = harness.Median(durable), harness.Percentile(durable, 99)
	c.RatioP50, c.RatioP99 = harness.Ratio(c.DurableP50, c.MemoryP50), harness.Ratio(c.DurableP99, c.MemoryP99)
	r.result.Commit = c
	return r.slices(1, func(_ int, e *entrant) error {
		a, err := ask(e, request{Op: opUnpaced, N: unpaced})
		if e.Name == roleMemory {
			c.MemoryRate = harness.Ratio(float64(a.Done), a.Seconds)
			return err
		}
		c.DurableRate, c.WaitS, c.BlocksBeforeWait, c.Saturated = harness.Ratio(float64(a.Done), a.Seconds), a.Waited, a.FirstWait, a.Waited > 0
		return err
	})
}

// pagedRounds is the number of measured slices of commits, after one that is not measured.
const pagedRounds = 4

// paged compares a node whose state is at least four times its memory with one that has everything
// in memory: the CPU time of commits until they are durable, and of queries.
func (r *runner) paged() error {
	slice := min(commitSlice, r.o.Blocks)
	queries := []string{opGet, opAbsent, opProve}
	r.progress.Begin("paged", "steps", 2*(r.o.spec().LoadSteps+(1+pagedRounds)*slice)+len(queries)*r.o.Queries)
	if err := r.startChainers(roleDurable, rolePaged); err != nil {
		return err
	}
	paged := r.entrants[1]
	if _, err := paged.ask(request{Op: opPage}); err != nil {
		return err
	}
	p := &Paged{Blocks: pagedRounds * slice, Budget: r.o.budget()}
	pages := uint64(0)
	err := r.slices(1+pagedRounds, func(round int, e *entrant) error {
		a, err := e.ask(request{Op: opUnpaced, N: slice})
		r.progress.Add(a.Done)
		if round > 0 {
			e.seconds, e.cpu = e.seconds+a.Seconds, e.cpu+a.CPU
			pages += a.Pages // the other node reads none
		}
		return err
	})
	if err != nil {
		return err
	}
	perBlock := func(e *entrant) float64 { return harness.Ratio(e.cpu*1e3, float64(p.Blocks)) }
	p.MemoryCommitCPUMS, p.CommitCPUMS = perBlock(r.entrants[0]), perBlock(paged)
	p.Ratio, p.TPSX = harness.Ratio(p.CommitCPUMS, p.MemoryCommitCPUMS), harness.Ratio(r.entrants[0].seconds, paged.seconds)
	p.PagesPerCommit = harness.Ratio(float64(pages), float64(p.Blocks))
	p.PageCPUUS = max(0, harness.Ratio((p.CommitCPUMS-p.MemoryCommitCPUMS)*1e3, p.PagesPerCommit))
	for i, of := range []*float64{&p.GetUS, &p.AbsentUS, &p.ProofUS} {
		r.progress.Working(queries[i])
		a, err := paged.ask(request{Op: queries[i], N: r.o.Queries, Round: uint64(i)})
		if err != nil {
			return err
		}
		*of = harness.Ratio(a.CPU*1e6, float64(a.Done))
		r.progress.Add(a.Done)
	}
	if mixed := r.result.read(nameMixed, stepMixed, 0, distNormal); mixed != nil {
		p.MixedGetUS = mixed.CPUMicros
	}
	r.result.Paged = p
	return nil
}
