package feed

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/worlds"
)

// TestRandomWorlds runs chains in virtual time whose validators send updates to simulated replicas.
// Replicas crash, lose updates that they have not logged, are down temporarily or permanently, and
// catch up from chunks; some validators send nothing; ranges are divided, and replicas move, which
// validators learn at different times. watch checks each step of each validator. In
// addition, once the faults have ended, blocks must be made and each running replica must follow
// the head.
func TestRandomWorlds(t *testing.T) {
	sum := map[string]int{}
	n := worlds.Run(t, 100, newWorld, func(w *world) {
		for what, n := range w.seen {
			sum[what] += n
		}
	})
	t.Logf("%d worlds: %v", n, sum)
	if n == 0 {
		return
	}
	for _, what := range []string{"Left", "Back", "blocked", "probe that found all", "crash", "chunks", "division", "move"} {
		require.NotZero(t, sum[what], what)
	}
}

// TestSameEventsSameActions runs each world twice: nothing depends on map order.
func TestSameEventsSameActions(t *testing.T) {
	worlds.Same(t, 10, newWorld)
}

// TestNothingIsSentTwice: without faults, each replica receives each update once, plus one or two
// probes.
func TestNothingIsSentTwice(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		w := newWorld(seed)
		w.calm()
		require.NoError(t, w.Run(func(string, ...any) {}), "seed %d", seed)
		least := int(w.head) * len(w.order)
		require.GreaterOrEqual(t, w.seen["update"], least, "seed %d", seed)
		require.LessOrEqual(t, w.seen["update"], least+least/10, "seed %d: updates sent in whole", seed)
		require.Zero(t, w.seen["Left"], "seed %d", seed)
	}
}

// TestSilentValidatorsAreLeftOut: validators with the full state send nothing. The turns of the
// others then come as early as if they were the only ones, except once in a while. A validator
// whose turn comes less than Stagger before the next one is not found to be silent, but delays
// little.
func TestSilentValidatorsAreLeftOut(t *testing.T) {
	worlds, first, late := 0, 0, 0
	for seed := uint64(1); seed <= 60; seed++ {
		w := newWorld(seed)
		if w.faults = false; len(w.validators) == w.count || w.policy.Senders < 2 {
			continue
		}
		worlds++
		require.NoError(t, w.Run(func(string, ...any) {}), "seed %d", seed)
		first, late = first+w.seen["first"], late+w.seen["late"]
		require.LessOrEqual(t, w.seen["update"], 2*int(w.head)*len(w.order), "seed %d", seed)
	}
	t.Logf("%d of %d updates were late", late, first)
	require.LessOrEqual(t, 20*late, first)
	require.Greater(t, worlds, 10)
}

const (
	blockTime = 200 * time.Millisecond
	faultsEnd = 20 * time.Second
	worldEnd  = 60 * time.Second
)

// world is a chain in virtual time: validators, some of which send nothing, and replicas.
type world struct {
	plan       Change  // the newest map
	shards     []Shard // of the newest map
	order      []place // all replicas
	names      []dsm.NodeID
	changes    []Change // the first map, and all changes
	taken      int64    // head when all validators had the newest map; -1: not yet
	leaving    []place  // replicas that the next change removes
	policy     Policy
	validators []*watch // the honest ones
	count      int      // number of validators
	replicas   map[place]*simReplica
	down       map[dsm.NodeID]bool
	broken     map[dsm.NodeID]bool // permanently
	rng        *rand.Rand
	now        time.Duration
	head       int64
	made       map[int64]time.Duration // when each block was made
	events     worlds.Timeline[func()]
	latency    time.Duration
	faults     bool
	seen       map[string]int
	err        error // first error of a watch
}

// simReplica has all updates up to durable, plus those in held.
type simReplica struct {
	durable int64
	holds   map[int64]bool
	stuck   time.Duration // since when it waits for the same update while the chain is far ahead
}

func (r *simReplica) needs() int64 {
	h := r.durable + 1
	for r.holds[h] {
		h++
	}
	return h
}

func newWorld(seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 44))
	w := &world{rng: rng, count: 1 + rng.IntN(5), replicas: map[place]*simReplica{}, down: map[dsm.NodeID]bool{}, broken: map[dsm.NodeID]bool{},
		latency: time.Duration(1+rng.IntN(60)) * time.Millisecond, faults: true, seen: map[string]int{}, made: map[int64]time.Duration{}}
	w.policy = testPolicy()
	w.policy.MaxLagBlocks, w.policy.Senders, w.policy.MinAcks = int64(4+rng.IntN(20)), 1+rng.IntN(3), 1+rng.IntN(2)
	w.policy.MaxLagBytes = uint64(2000 * (4 + rng.IntN(20)))
	w.policy.KeepBlocks, w.policy.KeepBytes = int64(15+rng.IntN(10)), 30_000
	var shards []dsm.Placement
	for i, first := range []string{"", "h", "p"}[:1+rng.IntN(3)] {
		s := dsm.Placement{Range: avlstar.KeyRange{First: []byte(first)}}
		for _, n := range rng.Perm(4)[:w.policy.MinAcks+rng.IntN(2)] {
			s.Replicas = append(s.Replicas, dsm.NodeID(fmt.Sprintf("node%d", n)))
		}
		if i > 0 {
			shards[i-1].Range.After = s.Range.First
		}
		shards = append(shards, s)
	}
	for n := range 4 {
		w.names = append(w.names, dsm.NodeID(fmt.Sprintf("node%d", n)))
	}
	w.plan = Change{Ranges: rangesOf(shards)}
	w.changes = []Change{w.plan}
	for i := range 1 + rng.IntN(w.count) { // the others send nothing
		m, err := New(w.plan.Ranges, w.policy, 0)
		if err != nil {
			panic(err)
		}
		w.validators = append(w.validators, newWatch(m))
		w.after(0, func() { w.tell(i, Validators{w.count, i}) })
	}
	w.renew()
	w.after(blockTime, w.block)
	if rng.IntN(2) == 0 {
		w.after(time.Duration(rng.Int64N(int64(5*time.Second))), w.change)
	}
	for range rng.IntN(8) {
		w.after(time.Duration(rng.Int64N(int64(faultsEnd))), w.fault)
	}
	return w
}

// calm disables faults and changes, and makes all validators honest.
func (w *world) calm() {
	w.faults, w.count = false, len(w.validators)
}

func rangesOf(shards []dsm.Placement) *dsm.Ranges {
	ranges, err := dsm.NewRanges(shards)
	if err != nil {
		panic(err)
	}
	return ranges
}

// renew creates the replicas of the newest map that do not exist yet.
func (w *world) renew() {
	numbering, err := New(w.first(), w.policy, 0) // it numbers the ranges as all validators do
	if err != nil {
		panic(err)
	}
	for _, c := range w.changes {
		numbering.Step(0, c)
	}
	w.shards = numbering.Shards()
	for _, s := range w.shards {
		for _, n := range s.Replicas {
			p := place{n, s.Number}
			if w.replicas[p] == nil {
				w.replicas[p] = &simReplica{holds: map[int64]bool{}, stuck: w.now}
				w.order = append(w.order, p)
			}
		}
	}
}

// change begins or finishes a change of the map: a division of a range, or the move of a replica.
func (w *world) change() {
	if !w.faults || w.now > faultsEnd {
		return
	}
	w.after(2*time.Second+time.Duration(w.rng.Int64N(int64(3*time.Second))), w.change)
	var current []dsm.Placement
	for i := range w.plan.Ranges.Len() {
		s := w.plan.Ranges.Shard(i)
		s.Replicas = slices.Clone(s.Replicas)
		current = append(current, s)
	}
	next := w.plan.Next
	switch {
	case len(next)+len(w.leaving) > 0:
		if !w.isReady() {
			return
		}
		current = slices.DeleteFunc(current, func(s dsm.Placement) bool {
			return slices.ContainsFunc(next, func(n dsm.Placement) bool { return n.Range.Overlaps(s.Range) })
		})
		current = append(current, next...)
		for _, s := range w.shards {
			for i := range current {
				if current[i].Range.Equal(s.Range) {
					current[i].Replicas = slices.DeleteFunc(current[i].Replicas, func(n dsm.NodeID) bool { return slices.Contains(w.leaving, place{n, s.Number}) })
				}
			}
		}
		next, w.leaving = nil, nil
	case w.rng.IntN(2) == 0:
		w.seen["division"]++
		i := w.rng.IntN(len(current))
		old := current[i]
		edge := append(slices.Clone(old.Range.First), '5')
		for len(old.Range.After) > 0 && bytes.Compare(edge, old.Range.After) >= 0 {
			edge = append(edge[:len(edge)-1], "05"...)
		}
		next = []dsm.Placement{
			{Range: avlstar.KeyRange{First: old.Range.First, After: edge}, Replicas: old.Replicas},
			{Range: avlstar.KeyRange{First: edge, After: old.Range.After}, Replicas: old.Replicas},
		}
	default:
		i := w.rng.IntN(len(current))
		from, to := current[i].Replicas[0], w.names[w.rng.IntN(len(w.names))]
		if slices.Contains(current[i].Replicas, to) || w.broken[to] {
			return
		}
		w.seen["move"]++
		current[i].Replicas = append(current[i].Replicas, to)
		for _, s := range w.shards {
			if s.Range.Equal(current[i].Range) {
				w.leaving = []place{{from, s.Number}}
			}
		}
	}
	w.plan = Change{rangesOf(current), next}
	w.changes = append(w.changes, w.plan)
	w.renew()
	plan, left := w.plan, len(w.validators)
	w.taken = -1
	for i := range w.validators { // the next change is at least two seconds later
		w.after(time.Duration(w.rng.Int64N(int64(1500*time.Millisecond))), func() {
			w.tell(i, plan)
			if left--; left == 0 {
				w.taken = w.head
			}
		})
	}
}

// isReady reports whether enough replicas of each range, without those that leave, follow the
// chain, with updates that all validators have.
func (w *world) isReady() bool {
	if w.taken < 0 {
		return false
	}
	for _, s := range w.shards {
		good := 0
		for _, n := range s.Replicas {
			p := place{n, s.Number}
			if r := w.replicas[p]; !w.broken[n] && !w.down[n] && !slices.Contains(w.leaving, p) && r.durable+3 >= w.head && r.durable > w.taken {
				good++
			}
		}
		if good < w.policy.MinAcks {
			return false
		}
	}
	return true
}

// first returns the first map.
func (w *world) first() *dsm.Ranges { return w.changes[0].Ranges }

func (w *world) after(d time.Duration, do func()) {
	w.events.Add(w.now+d, do)
}

// block makes a block unless a validator waits.
func (w *world) block() {
	if w.now < worldEnd-10*time.Second { // near the end, the world comes to rest
		w.after(blockTime, w.block)
	}
	w.sync()
	for _, v := range w.validators {
		if len(v.Blocked()) > 0 {
			w.seen["blocked"]++
			return
		}
	}
	w.head++
	w.made[w.head] = w.now
	for i, v := range w.validators {
		bytes := make([]uint64, v.Numbers())
		for k := range bytes {
			bytes[k] = uint64(100 + w.rng.IntN(1900))
		}
		w.tell(i, Committed{w.head, bytes})
	}
	w.sync()
}

// sync lets replicas log proved updates, and lets replicas that lag far behind fetch chunks.
func (w *world) sync() {
	for _, p := range w.order {
		r := w.replicas[p]
		if w.down[p.node] {
			continue
		}
		for r.durable+1 < w.head && r.holds[r.durable+1] {
			r.durable++
			delete(r.holds, r.durable)
			r.stuck = w.now
		}
		if w.now-r.stuck > 4*time.Second && r.durable+2 < w.head {
			w.seen["chunks"]++
			r.durable = w.head - 2
			r.stuck = w.now
		}
	}
}

// fault takes a node down, temporarily or permanently. Updates that are not logged are lost.
func (w *world) fault() {
	n := w.names[w.rng.IntN(len(w.names))]
	if !w.faults || w.down[n] {
		return
	}
	w.seen["crash"]++
	w.down[n] = true
	lost := w.rng.IntN(4) == 0
	for _, p := range w.order {
		if r := w.replicas[p]; p.node == n {
			clear(r.holds)
			if lost { // including its disk
				r.durable = 0
			}
		}
	}
	if w.rng.IntN(3) == 0 && w.spare(n) {
		w.broken[n] = true
		return
	}
	w.after(time.Duration(w.rng.Int64N(int64(faultsEnd))), func() {
		w.down[n] = false
		for _, p := range w.order {
			if p.node == n {
				w.replicas[p].stuck = w.now
			}
		}
		if w.rng.IntN(2) == 0 {
			for i := range w.validators {
				w.tell(i, Up{n})
			}
		}
	})
}

// spare reports whether blocks can be made without a node.
func (w *world) spare(n dsm.NodeID) bool {
	for _, s := range w.shards {
		left := 0
		for _, other := range s.Replicas {
			if other != n && !w.broken[other] && !slices.Contains(w.leaving, place{other, s.Number}) {
				left++
			}
		}
		if left < w.policy.MinAcks {
			return false
		}
	}
	return true
}

// tell steps a validator and performs the resulting actions.
func (w *world) tell(i int, e Event) {
	v := w.validators[i]
	actions, err := v.step(w.now, e)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("at %v, validator %d after %T%+v: %w", w.now, i, e, e, err)
	}
	for _, a := range actions {
		switch a := a.(type) {
		case Send:
			w.after(w.wait(), func() { w.send(i, a) })
		case Poll:
			w.after(w.wait(), func() { w.poll(i, a) })
		case Left:
			w.seen["Left"]++
		case Back:
			w.seen["Back"]++
		}
	}
}

func (w *world) wait() time.Duration {
	return w.latency/2 + time.Duration(w.rng.Int64N(int64(w.latency)))
}

func (w *world) send(i int, a Send) {
	r := w.replicas[place{a.Node, a.Shard}]
	if w.down[a.Node] || r == nil {
		w.after(w.wait(), func() { w.tell(i, NotSent{a.Node, a.Shard}) })
		return
	}
	has := a.Height <= r.durable || r.holds[a.Height]
	complete, missing := true, a.Probe && !has && a.Height == r.needs()
	switch {
	case has && a.Probe:
		w.seen["probe that found all"]++
	case !has && a.Height > r.needs()+30: // beyond its memory limit
		complete = false
	default:
		w.seen["update"]++
		if !has {
			r.holds[a.Height] = true
			if a.Height > 100 { // the validators know each other
				w.seen["first"]++
				if w.now-w.made[a.Height] >= 3*w.policy.Stagger/2 {
					w.seen["late"]++
				}
			}
		}
	}
	w.sync()
	answer := Sent{a.Node, a.Shard, dsm.UpdateAnswer{Durable: r.durable, Needs: r.needs()}, complete, missing}
	w.after(w.wait(), func() { w.tell(i, answer) })
}

func (w *world) poll(i int, a Poll) {
	if w.down[a.Node] {
		w.after(w.wait(), func() { w.tell(i, NotPolled{a.Node}) })
		return
	}
	w.sync() // also if nothing is sent any more
	answer := Claimed{Node: a.Node}
	for _, s := range w.known() {
		if r := w.replicas[place{a.Node, s.Number}]; r != nil {
			answer.Claims = append(answer.Claims, dsm.Claim{Range: s.Range, Durable: r.durable, Needs: r.needs()})
		}
	}
	w.after(w.wait(), func() { w.tell(i, answer) })
}

// known returns the ranges of all maps: a node answers for those that it has had.
func (w *world) known() []Shard {
	all := slices.Clone(w.shards)
	for _, v := range w.validators {
		for _, s := range v.Shards() { // some validators may have an earlier map
			if !slices.ContainsFunc(all, func(o Shard) bool { return o.Number == s.Number }) {
				all = append(all, s)
			}
		}
	}
	slices.SortFunc(all, func(a, b Shard) int { return dsm.CompareRanges(a.Range, b.Range) })
	return all
}

// Run implements worlds.World.
func (w *world) Run(trace func(string, ...any)) error {

	for steps := 0; w.now < worldEnd; steps++ {
		next, who := worldEnd, -1
		for i, v := range w.validators {
			if at, has := v.Next(); has && at < next {
				next, who = at, i
			}
		}
		if at, planned := w.events.Next(); planned && at <= next {
			_, do := w.events.Take()
			w.now = max(w.now, at)
			do()
		} else if w.now = max(w.now, next); who >= 0 {
			w.tell(who, Tick{})
		}
		trace("%v: head %d", w.now, w.head)
		if w.err != nil {
			return w.err
		}
		if steps > 2_000_000 {
			return fmt.Errorf("at %v: too many steps", w.now)
		}
	}
	return w.rest()
}

// rest checks the world after a period without faults.
func (w *world) rest() error {
	if least := int64((worldEnd - 2*faultsEnd - 10*time.Second) / blockTime / 2); w.head < least {
		var blocked []Block
		for _, v := range w.validators {
			blocked = append(blocked, v.Blocked()...)
		}
		return fmt.Errorf("only %d blocks: nodes that broke %v; blocked %+v", w.head, w.broken, blocked)
	}
	for i, v := range w.validators {
		for _, shard := range v.Shards() {
			s := shard.Number
			for _, l := range v.Lags(s) {
				r := w.replicas[place{l.Node, s}]
				if w.broken[l.Node] {
					if l.Within {
						return fmt.Errorf("validator %d thinks that %s, which is down, is in step: %+v", i, l.Node, l)
					}
					continue
				}
				if l.State != InStep || r.durable < w.head-1 {
					return fmt.Errorf("range %d, head %d, %s durable at %d, waiting for %d; validator %d says %+v", s, w.head, l.Node, r.durable, r.needs(), i, l)
				}
			}
		}
	}
	return nil
}
