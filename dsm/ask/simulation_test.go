package ask

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/worlds"
)

// TestRandomWorlds runs fetches among simulated replicas that are honest, slow, behind, busy,
// silent or down, or that lie, in virtual time. watch checks every step. Moreover, a fetch with a
// limit of rounds ends, and any other one is done if each range has an honest replica that answers
// in the end.
func TestRandomWorlds(t *testing.T) {
	sum := map[string]int{}
	n := worlds.Run(t, 200, newWorld, func(w *world) {
		for what, n := range w.seen {
			sum[what] += n
		}
	})
	t.Logf("%d worlds: %v", n, sum)
	if n == 0 {
		return
	}
	for _, what := range []string{"Done", "GaveUp", "Lied", "Unserved", "Cancel", "halved"} {
		require.NotZero(t, sum[what], what)
	}
}

// TestSameEventsSameActions runs worlds twice: nothing depends on the order of a map.
func TestSameEventsSameActions(t *testing.T) {
	worlds.Same(t, 20, newWorld)
}

// world is a Machine among simulated nodes in virtual time.
type world struct {
	*watch
	rng     *rand.Rand
	now     time.Duration
	events  worlds.Timeline[Event]
	nodes   map[dsm.Node]*simNode
	fetches map[FetchID]bool // that must be done in the end
	seen    map[string]int
}

// simNode is a storage node. What it does to a request is drawn by its shares.
type simNode struct {
	latency  time.Duration
	from     time.Duration // before, it is down: requests break off or are silent
	hasFrom  time.Duration // before, it is behind: gone
	liar     bool
	moods    int  // of ten requests, so many are busy, broken or silent
	tooLarge int  // more wants than this are too much
	silent   bool // it never answers
}

func newWorld(seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 15))
	p := testPolicy()
	p.Copies, p.Wants = 1+rng.IntN(4), 1+rng.IntN(20)
	w := &world{rng: rng, nodes: map[dsm.Node]*simNode{}, fetches: map[FetchID]bool{}, seen: map[string]int{}}
	var shards []dsm.Shard
	edges := []string{"", "d", "h", "p", "t"}[:1+rng.IntN(5)]
	hopeless := rng.IntN(4) == 0
	for i, first := range edges {
		s := dsm.Shard{Range: dsm.Range{First: []byte(first)}}
		if i+1 < len(edges) {
			s.Range.After = []byte(edges[i+1])
		}
		for _, n := range rng.Perm(6)[:1+rng.IntN(4)] {
			s.Replicas = append(s.Replicas, dsm.Node(fmt.Sprintf("node%d", n)))
		}
		shards = append(shards, s)
	}
	ranges, err := dsm.NewRanges(shards)
	if err != nil {
		panic(err)
	}
	for _, n := range ranges.Nodes() {
		node := &simNode{latency: time.Duration(1+rng.IntN(300)) * time.Millisecond, tooLarge: 1000}
		if rng.IntN(2) == 0 {
			node.latency /= 20
		}
		if rng.IntN(2) == 0 {
			node.from = time.Duration(rng.IntN(20_000)) * time.Millisecond
		}
		if rng.IntN(2) == 0 {
			node.hasFrom = time.Duration(rng.IntN(3000)) * time.Millisecond
		}
		node.liar, node.silent = rng.IntN(4) == 0, rng.IntN(8) == 0
		if rng.IntN(3) == 0 {
			node.moods = rng.IntN(9)
		}
		if rng.IntN(3) == 0 {
			node.tooLarge = 1 + rng.IntN(5)
		}
		w.nodes[n] = node
	}
	if !hopeless {
		for _, s := range shards {
			node := w.nodes[s.Replicas[rng.IntN(len(s.Replicas))]]
			node.liar, node.silent = false, false
		}
	}
	w.watch = newWatch(ranges, p)
	w.plan(hopeless)
	return w
}

// plan puts the world's own events into the queue.
func (w *world) plan(hopeless bool) {
	names := w.ranges.Nodes()
	for id := range FetchID(1 + w.rng.IntN(5)) {
		var wants []dsm.Want
		for range w.rng.IntN(60) {
			wants = append(wants, dsm.Want{Key: fmt.Appendf(nil, "%c%d", 'a'+w.rng.IntN(26), w.rng.IntN(100)), Deleted: w.rng.IntN(5) == 0})
		}
		parts, err := w.ranges.Route(wants)
		if err != nil {
			panic(err)
		}
		f := Fetch{ID: id + 1, Height: 10, Parts: parts}
		if hopeless || w.rng.IntN(2) == 0 {
			f.Rounds = 1 + w.rng.IntN(5)
		}
		at := time.Duration(w.rng.IntN(5000)) * time.Millisecond
		w.at(at, f)
		w.fetches[f.ID] = f.Rounds == 0
		if w.rng.IntN(8) == 0 {
			w.at(at+time.Duration(w.rng.IntN(3000))*time.Millisecond, Drop{f.ID})
			w.fetches[f.ID] = false
		}
	}
	for range w.rng.IntN(10) {
		n := names[w.rng.IntN(len(names))]
		at := time.Duration(w.rng.IntN(20_000)) * time.Millisecond
		if w.rng.IntN(2) == 0 {
			w.at(at, Up{n})
			continue
		}
		var claims []dsm.Claim
		for _, i := range w.ranges.Of(n) {
			claims = append(claims, dsm.Claim{Range: w.ranges.Shard(i).Range, Oldest: 1, Newest: int64(5 + w.rng.IntN(10))})
		}
		w.at(at, Claimed{n, claims})
	}
	w.at(0, Proved{77}) // of a request that is not in flight
}

func (w *world) at(at time.Duration, e Event) {
	w.events.Add(at, e)
}

// Run implements worlds.World.
func (w *world) Run(trace func(string, ...any)) error {
	const limit = 30 * time.Minute
	for steps := 0; ; steps++ {
		next, has := w.Next()
		at, planned := w.events.Next()
		var e Event = Tick{}
		switch {
		case planned && (!has || at <= next):
			_, e = w.events.Take()
			w.now = max(w.now, at)
		case has:
			w.now = max(w.now, next)
		default:
			for id, must := range w.fetches {
				if must {
					return fmt.Errorf("fetch %d has not ended, and nothing is due", id)
				}
			}
			return nil
		}
		if w.now > limit || steps > 200_000 {
			return fmt.Errorf("at %v, step %d: fetches do not end: %+v", w.now, steps, w.Waiting())
		}
		actions, err := w.step(w.now, e)
		trace("%v: %T%+v: %+v", w.now, e, e, actions)
		if err != nil {
			return fmt.Errorf("at %v, after %T%+v: %w", w.now, e, e, err)
		}
		for _, a := range actions {
			w.perform(a)
		}
	}
}

// perform simulates the caller's and the node's part of an action.
func (w *world) perform(a Action) {
	switch a := a.(type) {
	case Ask:
		w.answer(a)
	case Cancel:
		w.seen["Cancel"]++
	case Lied:
		w.seen["Lied"]++
	case Unserved:
		w.seen["Unserved"]++
	case Done:
		w.seen["Done"]++
		w.fetches[a.Fetch] = false
	case GaveUp:
		w.seen["GaveUp"]++
		w.fetches[a.Fetch] = false
	}
}

func (w *world) answer(a Ask) {
	n := w.nodes[a.Node]
	at := w.now + n.latency/2 + time.Duration(w.rng.Int64N(int64(n.latency)))
	switch {
	case n.silent || w.rng.IntN(30) < n.moods && w.rng.IntN(3) == 0:
		return
	case w.now < n.from:
		if w.rng.IntN(3) > 0 {
			w.at(w.now+time.Millisecond, Failed{a.Request, Broken})
		}
	case w.now < n.hasFrom:
		w.at(at, Failed{a.Request, Gone})
	case w.rng.IntN(10) < n.moods:
		w.at(at, Failed{a.Request, []Reason{Busy, Broken, Refused}[w.rng.IntN(3)]})
	case n.liar && w.rng.IntN(3) == 0: // it opens some
		left := slices.DeleteFunc(slices.Clone(a.Wants), func(dsm.Want) bool { return w.rng.IntN(2) == 0 })
		w.at(at, Refuted{a.Request, Omits, append([]dsm.Want{}, left...)})
	case n.liar:
		w.at(at, Refuted{a.Request, []Verdict{Undecodable, OpensNothing, TooLong}[w.rng.IntN(3)], nil})
	case len(a.Wants) > n.tooLarge:
		w.seen["halved"]++
		w.at(at, Failed{a.Request, TooLarge})
	default:
		w.at(at, Proved{a.Request})
	}
	if w.rng.IntN(10) == 0 {
		w.at(at+time.Second, Failed{a.Request, Busy}) // of a request that has ended
	}
}
