package ask

import (
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

// TestRandomWorlds runs fetches in virtual time against simulated replicas and helpers that are
// honest, slow, behind, busy, silent, down, without data, or faulty. watch checks each step. In
// addition, each fetch must end, and must not miss a range with a replica that is always healthy.
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
	for _, what := range []string{"Done", "Lied", "Cancel", "halved", "unserved", "elsewhere", "oversized", "late", "helper", "neighbour", "path", "upper", "several", "several: nothing"} {
		require.NotZero(t, sum[what], what)
	}
}

// TestSameEventsSameActions runs each world twice: nothing depends on map order.
func TestSameEventsSameActions(t *testing.T) {
	worlds.Same(t, 20, newWorld)
}

// world is a Machine with simulated nodes in virtual time.
type world struct {
	*watch
	rng     *rand.Rand
	now     time.Duration
	events  worlds.Timeline[Event]
	nodes   map[dsm.NodeID]*simNode
	helpers []dsm.NodeID
	seen    map[string]int
}

// simNode is a simulated storage node. Its reaction to a request is random, weighted by these
// fields.
type simNode struct {
	latency  time.Duration
	from     time.Duration // before, it is down: requests fail or get no answer
	hasFrom  time.Duration // before, it is behind and answers "gone"
	liar     bool
	moods    int  // out of ten requests, this many are busy, broken or silent
	tooLarge int  // maximum number of wants, above which it answers "too large"
	silent   bool // it never answers
	nothing  int  // out of ten requests, this many open nothing
}

func newWorld(seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 15))
	p := testPolicy()
	p.Copies, p.Wants = 1+rng.IntN(4), 1+rng.IntN(20)
	w := &world{rng: rng, nodes: map[dsm.NodeID]*simNode{}, seen: map[string]int{}}
	var shards []dsm.Placement
	edges := []string{"", "d", "h", "p", "t"}[:1+rng.IntN(5)]
	for i, first := range edges {
		s := dsm.Placement{Range: avlstar.KeyRange{First: []byte(first)}}
		if i+1 < len(edges) {
			s.Range.After = []byte(edges[i+1])
		}
		for _, n := range rng.Perm(6)[:1+rng.IntN(4)] {
			s.Replicas = append(s.Replicas, dsm.NodeID(fmt.Sprintf("node%d", n)))
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
			node.tooLarge = rng.IntN(5)
		}
		if rng.IntN(4) == 0 {
			node.nothing = rng.IntN(11)
		}
		w.nodes[n] = node
	}
	if rng.IntN(2) == 0 {
		for _, s := range shards {
			*w.nodes[s.Replicas[rng.IntN(len(s.Replicas))]] = simNode{latency: time.Millisecond, tooLarge: 1000}
		}
	}
	if rng.IntN(6) == 0 { // no answer has room for any want
		for _, n := range w.nodes {
			n.tooLarge = 0
		}
	}
	for i := range rng.IntN(12) {
		w.helpers = append(w.helpers, dsm.NodeID(fmt.Sprintf("helper%d", i)))
		w.nodes[w.helpers[i]] = &simNode{latency: time.Duration(1+rng.IntN(300)) * time.Millisecond, tooLarge: 1000, liar: rng.IntN(4) == 0, moods: rng.IntN(10), silent: rng.IntN(3) == 0}
	}
	w.watch = newWatch(ranges, p)
	w.plan()
	return w
}

// plan queues the world's own events.
func (w *world) plan() {
	names := w.ranges.Nodes()
	for id := range FetchID(1 + w.rng.IntN(5)) {
		var wants []avlstar.Want
		for range w.rng.IntN(60) {
			wants = append(wants, avlstar.Want{Key: fmt.Appendf(nil, "%c%d", 'a'+w.rng.IntN(26), w.rng.IntN(100)), Deleted: w.rng.IntN(5) == 0})
		}
		if w.rng.IntN(3) == 0 {
			wants = append(wants, avlstar.Want{Key: []byte("c"), Range: true, After: []byte("r")})
		}
		parts, err := w.ranges.Route(wants)
		if err != nil {
			panic(err)
		}
		f := Fetch{ID: id + 1, Height: 10, Parts: parts, Helpers: w.helpers, Upper: w.rng.IntN(5) == 0}
		if f.Upper {
			f.Parts = nil
		}
		if w.rng.IntN(4) == 0 {
			f.MaxBytes = 1 + w.rng.IntN(5)
		}
		at := time.Duration(w.rng.IntN(5000)) * time.Millisecond
		w.at(at, f)
		if w.rng.IntN(8) == 0 {
			w.at(at+time.Duration(w.rng.IntN(3000))*time.Millisecond, Drop{f.ID})
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
	w.at(0, Proved{Request: 77}) // the request is not in flight
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
			if len(w.fetches) > 0 {
				return fmt.Errorf("%d fetches have not ended, and nothing is due", len(w.fetches))
			}
			return nil
		}
		if w.now > limit || steps > 200_000 {
			return fmt.Errorf("at %v, step %d: %d fetches do not end", w.now, steps, len(w.fetches))
		}
		actions, err := w.step(w.now, e)
		trace("%v: %T%+v: %+v", w.now, e, e, actions)
		if err != nil {
			return fmt.Errorf("at %v, after %T%+v: %w", w.now, e, e, err)
		}
		for _, a := range actions {
			if err := w.perform(a); err != nil {
				return err
			}
		}
	}
}

// perform simulates the caller and the node for an action.
func (w *world) perform(a Action) error {
	switch a := a.(type) {
	case Ask:
		if len(a.Also) > 0 {
			w.seen["several"]++
		}
		switch w.answer(a); {
		case w.isHelper(a.Node):
			w.seen["helper"]++
		case a.Kind == Neighbor:
			w.seen["neighbour"]++
		case a.Kind == Path:
			w.seen["path"]++
		case a.Kind == Upper:
			w.seen["upper"]++
		}
	case Cancel:
		w.seen["Cancel"]++
	case Lied:
		w.seen["Lied"]++
	case Missed:
		w.seen[a.Why.String()]++
		for _, n := range w.ranges.Shard(a.Shard).Replicas {
			if a.Why == Unserved && *w.nodes[n] == (simNode{latency: time.Millisecond, tooLarge: 1000}) {
				return fmt.Errorf("%v of range %d, whose replica %s is always well: %v", a.Why, a.Shard, n, a.Tried)
			}
		}
	case Done:
		w.seen["Done"]++
	}
	return nil
}

func (w *world) answer(a Ask) {
	n := w.nodes[a.Node]
	answer := Proved{Request: a.Request, Bytes: 1, Leaves: make([][]byte, len(a.Around))}
	for i := range answer.Leaves {
		if w.rng.IntN(3) > 0 {
			answer.Leaves[i] = fmt.Appendf(nil, "%c%d", 'a'+w.rng.IntN(26), w.rng.IntN(100))
		}
	}
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
	case w.rng.IntN(10) < n.nothing && a.Kind != Upper:
		w.at(at, Failed{a.Request, Nothing})
	case n.liar && a.Kind == Open && w.rng.IntN(3) == 0: // the answer opens some wants
		left := slices.DeleteFunc(slices.Clone(a.Wants), func(avlstar.Want) bool { return w.rng.IntN(2) == 0 })
		e := Refuted{Request: a.Request, Verdict: Omits, Bytes: 1, Left: append([]avlstar.Want{}, left...)}
		if len(a.Also) > 0 && w.rng.IntN(3) == 0 {
			e.Nothing = a.Ranges()[1+w.rng.IntN(len(a.Also)):]
		}
		w.at(at, e)
	case n.liar:
		w.at(at, Refuted{Request: a.Request, Verdict: []Verdict{Undecodable, OpensNothing, TooLong}[w.rng.IntN(3)]})
	case len(a.Wants) > max(n.tooLarge, 1) || n.tooLarge == 0 && len(a.Wants) == 1 && !a.Wants[0].Range:
		w.seen["halved"]++
		w.at(at, Failed{a.Request, TooLarge})
	default:
		if len(a.Also) > 0 && w.rng.IntN(10) == 0 {
			w.seen["several: nothing"]++
			answer.Nothing = a.Ranges()[w.rng.IntN(2):]
			answer.Nothing = answer.Nothing[:1+w.rng.IntN(len(a.Also))]
		}
		w.at(at, answer)
	}
	if w.rng.IntN(10) == 0 {
		w.at(at+time.Second, Failed{a.Request, Busy}) // the request has ended
	}
}
