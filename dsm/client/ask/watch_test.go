package ask

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
)

// watch checks each step of a Machine against the guarantees to callers. It derives its own state
// from events and actions alone.
type watch struct {
	*Machine
	p       Policy
	fetches map[FetchID]*watched
	out     map[RequestID]Ask
	askedAt map[RequestID]time.Duration
	avoid   map[dsm.NodeID]time.Duration
	last    RequestID
}

// watched is a fetch with, by number of the range: the wants that are not open, whether anything
// else has been opened, and whether the range was missed.
type watched struct {
	Fetch
	wants        map[int][]avlstar.Want
	came, missed map[int]bool
}

func newWatch(ranges *dsm.Ranges, p Policy) *watch {
	return &watch{
		Machine: New(ranges, p), p: p, fetches: map[FetchID]*watched{}, out: map[RequestID]Ask{}, askedAt: map[RequestID]time.Duration{},
		avoid: map[dsm.NodeID]time.Duration{},
	}
}

func (w *watch) step(now time.Duration, e Event) ([]Action, error) {
	w.event(e)
	actions := w.Step(now, e)
	for _, a := range actions {
		if err := w.action(now, a); err != nil {
			return actions, fmt.Errorf("%s%+v: %w", reflect.TypeOf(a).Name(), a, err)
		}
	}
	if drop, is := e.(Drop); is {
		delete(w.fetches, drop.ID)
	}
	return actions, w.check(now)
}

func (w *watch) isHelper(n dsm.NodeID) bool { return len(w.ranges.Of(n)) == 0 }

// open records that an answer opens all wants except left, and except those of the ranges nothing.
func (w *watch) open(a Ask, left []avlstar.Want, nothing []int) {
	f := w.fetches[a.Fetch]
	ranges := slices.DeleteFunc(a.Ranges(), func(of int) bool { return slices.Contains(nothing, of) })
	switch {
	case a.Kind == Path:
	case a.Kind == Open && !w.isHelper(a.Node):
		for _, of := range ranges {
			f.wants[of] = slices.DeleteFunc(f.wants[of], func(want avlstar.Want) bool {
				return slices.ContainsFunc(a.Wants, want.Equal) && !slices.ContainsFunc(left, want.Equal)
			})
		}
	case a.Kind == Upper && w.isHelper(a.Node):
		for i := range w.ranges.Len() {
			f.came[i] = true
		}
	case a.Kind == Upper:
		for _, i := range w.ranges.Of(a.Node) {
			f.came[i] = true
		}
	default:
		for _, of := range ranges {
			f.came[of] = true
		}
	}
}

// event applies an event to the state. It ignores the events that the Machine must ignore.
func (w *watch) event(e Event) {
	end := func(id RequestID) (Ask, bool) {
		a, is := w.out[id]
		delete(w.out, id)
		return a, is
	}
	switch e := e.(type) {
	case Fetch:
		f := &watched{Fetch: e, wants: map[int][]avlstar.Want{}, came: map[int]bool{}, missed: map[int]bool{}}
		for _, p := range e.Parts {
			f.wants[p.Shard] = slices.Clone(p.Wants)
		}
		w.fetches[e.ID] = f
	case Proved:
		if a, is := end(e.Request); is {
			w.open(a, nil, e.Nothing)
		}
	case Refuted:
		if a, is := end(e.Request); is && (e.Left != nil || w.isHelper(a.Node) && e.Verdict == Omits) {
			w.open(a, e.Left, e.Nothing)
		}
	case Failed:
		end(e.Request)
	}
}

func (w *watch) action(now time.Duration, a Action) error {
	switch a := a.(type) {
	case Ask:
		return w.ask(now, a)
	case Cancel:
		if _, is := w.out[a.Request]; !is {
			return fmt.Errorf("it is not in flight")
		}
		delete(w.out, a.Request)
	case Lied:
		if a.Until < now {
			return fmt.Errorf("it is avoided until a time in the past")
		}
		w.avoid[a.Node] = max(w.avoid[a.Node], a.Until)
	case Missed:
		f := w.fetches[a.Fetch]
		if f == nil || f.missed[a.Shard] {
			return fmt.Errorf("the fetch has ended, or the range was missed before")
		}
		if f.missed[a.Shard] = true; a.Why == Unserved && !w.saysAll(a.Tried) {
			return fmt.Errorf("the outcomes of some replicas are missing")
		}
	case Done:
		f := w.fetches[a.Fetch]
		for i := range w.ranges.Len() {
			if (len(f.wants[i]) > 0 || f.Upper) && !f.came[i] && !f.missed[i] {
				return fmt.Errorf("range %d was neither opened nor missed", i)
			}
		}
		delete(w.fetches, a.Fetch)
	}
	return nil
}

// saysAll reports whether tried lists the outcomes of all replicas of a range: of the missed range,
// or of another one if neighbours were searched.
func (w *watch) saysAll(tried []Trial) bool {
	for i := range w.ranges.Len() {
		if !slices.ContainsFunc(w.ranges.Shard(i).Replicas, func(n dsm.NodeID) bool {
			return !slices.ContainsFunc(tried, func(t Trial) bool { return t.Node == n })
		}) {
			return true
		}
	}
	return false
}

func (w *watch) ask(now time.Duration, a Ask) error {
	f := w.fetches[a.Fetch]
	for _, of := range a.Also {
		if f == nil || f.missed[of] || a.Kind != Open || a.Of != a.Shard {
			return fmt.Errorf("range %d cannot share it", of)
		}
		if !slices.Contains(w.ranges.Shard(of).Replicas, a.Node) && !w.isHelper(a.Node) {
			return fmt.Errorf("the node is not a replica of range %d", of)
		}
	}
	switch {
	case f == nil || f.missed[a.Of]:
		return fmt.Errorf("it has ended")
	case a.Request <= w.last:
		return fmt.Errorf("the request was used before")
	case !slices.Contains(w.ranges.Shard(a.Shard).Replicas, a.Node) && !slices.Contains(f.Helpers, a.Node):
		return fmt.Errorf("the node is neither a replica of the range nor a helper")
	case now < w.avoid[a.Node]:
		return fmt.Errorf("it sent an invalid answer and is avoided until %v", w.avoid[a.Node])
	case (len(a.Wants) == 0) != f.Upper || len(a.Wants) > w.p.Wants:
		return fmt.Errorf("%d wants", len(a.Wants))
	case a.Height <= 0 || (f.Upper || w.isHelper(a.Node)) && a.Height != f.Height:
		return fmt.Errorf("at a wrong height")
	}
	most := w.p.Copies
	if w.isHelper(a.Node) {
		most = w.p.Helpers
	}
	others := map[int]int{} // by index of the want; -1: of the upper tree
	for _, other := range w.out {
		if other.Fetch != a.Fetch || other.Kind != a.Kind || a.Kind != Open && (other.Of != a.Of || other.Shard != a.Shard) ||
			w.isHelper(other.Node) != w.isHelper(a.Node) || !f.Upper && !overlap(other.Wants, a.Wants) {
			continue
		}
		if other.Node == a.Node {
			return fmt.Errorf("the node has the same request in flight: %d", other.Request)
		}
		if f.Upper {
			others[-1]++
		}
		for i, want := range a.Wants {
			if slices.ContainsFunc(other.Wants, want.Equal) {
				others[i]++
			}
		}
	}
	for _, same := range others {
		if same >= most {
			return fmt.Errorf("%d others are asked the same", same)
		}
	}
	for _, want := range a.Wants {
		of := w.ranges.Index(want.Least())
		if a.Kind == Open && !slices.Contains(a.Ranges(), of) {
			return fmt.Errorf("%+v is in range %d", want, of)
		}
		if a.Kind == Open && !want.Range && !w.isHelper(a.Node) && !slices.ContainsFunc(f.wants[of], want.Equal) {
			return fmt.Errorf("%+v is not wanted, or open", want)
		}
		if a.Kind == Open && want.Range {
			f.cut(of, want)
		}
	}
	w.last = a.Request
	w.out[a.Request], w.askedAt[a.Request] = a, now
	return nil
}

// cut replaces a want for a key range by its two halves, of which want is one.
func (f *watched) cut(of int, want avlstar.Want) {
	for i, whole := range f.wants[of] {
		if l, r, ok := whole.Halves(); ok && (l.Equal(want) || r.Equal(want)) {
			f.wants[of] = append(slices.Delete(f.wants[of], i, i+1), l, r)
			return
		}
	}
}

func overlap(a, b []avlstar.Want) bool {
	return slices.ContainsFunc(a, func(x avlstar.Want) bool { return slices.ContainsFunc(b, x.Equal) })
}

// check checks the invariants between steps.
func (w *watch) check(now time.Duration) error {
	if len(w.requests) != len(w.out) {
		return fmt.Errorf("%d requests are in flight, and %d are known", len(w.out), len(w.requests))
	}
	for id, a := range w.out {
		if _, is := w.fetches[a.Fetch]; !is {
			return fmt.Errorf("request %d was not cancelled", id)
		}
		if now >= w.askedAt[id]+w.p.GiveUp {
			return fmt.Errorf("request %d was not given up", id)
		}
	}
	if len(w.Machine.fetches) != len(w.fetches) {
		return fmt.Errorf("%d fetches have not ended, and %d are known", len(w.fetches), len(w.Machine.fetches))
	}
	owes := map[*node]int{}
	for _, r := range w.requests {
		owes[r.node] += len(r.parts)
	}
	for _, n := range w.nodes {
		if n.owes != owes[n] {
			return fmt.Errorf("%s owes %d, and counts %d", n.id, owes[n], n.owes)
		}
	}
	next, has := w.Next()
	if len(w.fetches) > 0 && (!has || next <= now) {
		return fmt.Errorf("fetches have not ended, and nothing is due later (%v, %t)", next, has)
	}
	return nil
}
