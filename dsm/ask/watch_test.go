package ask

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/starling-kv/starling/dsm"
)

// watch is a Machine whose every step is checked against what callers rely on. It derives its own
// state from events and actions alone.
type watch struct {
	*Machine
	p       Policy
	fetches map[FetchID]*watched
	out     map[RequestID]Ask
	askedAt map[RequestID]time.Duration
	ended   map[RequestID]bool
	avoid   map[dsm.Node]time.Duration
	told    map[string]int // Unserved, by fetch and range
	last    RequestID
}

// watched is a fetch: for each want, whether it is open.
type watched struct {
	height    int64
	rounds    int
	open      map[string]bool
	ranges    map[string]dsm.Want // those of open that are for ranges of keys
	oversized bool
}

func newWatch(ranges *dsm.Ranges, p Policy) *watch {
	return &watch{Machine: New(ranges, p), p: p, fetches: map[FetchID]*watched{}, out: map[RequestID]Ask{}, askedAt: map[RequestID]time.Duration{},
		ended: map[RequestID]bool{}, avoid: map[dsm.Node]time.Duration{}, told: map[string]int{}}
}

func nameWant(shard dsm.Range, w dsm.Want) string { return fmt.Sprintf("%v %+v", shard, w) }

func (w *watch) step(now time.Duration, e Event) ([]Action, error) {
	w.event(e)
	actions := w.Step(now, e)
	for _, a := range actions {
		if err := w.action(now, a); err != nil {
			return actions, fmt.Errorf("%s%+v: %w", reflect.TypeOf(a).Name(), a, err)
		}
	}
	return actions, w.check(now)
}

// event applies an event to the state. It ignores what the Machine must ignore.
func (w *watch) event(e Event) {
	end := func(id RequestID) (Ask, bool) {
		a, is := w.out[id]
		delete(w.out, id)
		w.ended[id] = true
		return a, is
	}
	open := func(a Ask, left []dsm.Want) {
		f := w.fetches[a.Fetch]
		for _, want := range a.Wants {
			if !slices.ContainsFunc(left, func(l dsm.Want) bool { return reflect.DeepEqual(l, want) }) {
				f.open[nameWant(a.Range, want)] = true
			}
		}
	}
	switch e := e.(type) {
	case Fetch:
		f := &watched{height: e.Height, rounds: e.Rounds, open: map[string]bool{}, ranges: map[string]dsm.Want{}}
		for _, p := range e.Parts {
			for _, want := range p.Wants {
				f.add(w.ranges.Shard(p.Shard).Range, want)
			}
		}
		w.fetches[e.ID] = f
	case Drop:
		delete(w.fetches, e.ID)
	case Proved:
		if a, is := end(e.Request); is {
			open(a, nil)
		}
	case Refuted:
		if a, is := end(e.Request); is && e.Left != nil {
			open(a, e.Left)
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
		w.ended[a.Request] = true
	case Lied:
		if a.Until < now {
			return fmt.Errorf("it is avoided until a time in the past")
		}
		w.avoid[a.Node] = max(w.avoid[a.Node], a.Until)
	case Unserved:
		name := fmt.Sprint(a.Fetch, a.Range)
		if w.told[name]++; w.told[name] > 1 {
			return fmt.Errorf("it was said before")
		}
		if len(a.Tried) < len(w.replicas(&part{shard: w.shard(a.Range)})) {
			return fmt.Errorf("it does not say what came of each replica")
		}
	case Oversized:
		w.fetches[a.Fetch].oversized = true
	case Done:
		for name, open := range w.fetches[a.Fetch].open {
			if !open {
				return fmt.Errorf("%s is not open", name)
			}
		}
		delete(w.fetches, a.Fetch)
	case GaveUp:
		if f := w.fetches[a.Fetch]; f.rounds == 0 && !f.oversized || len(a.Ranges) == 0 {
			return fmt.Errorf("it has no limit of rounds, or all was served")
		}
		delete(w.fetches, a.Fetch)
	}
	return nil
}

func (w *watch) shard(r dsm.Range) int {
	i, _ := w.ranges.Find(r)
	return i
}

func (w *watch) ask(now time.Duration, a Ask) error {
	f := w.fetches[a.Fetch]
	switch {
	case f == nil || a.Height != f.height:
		return fmt.Errorf("the fetch has ended, or has another height")
	case a.Request <= w.last:
		return fmt.Errorf("the request was used before")
	case !slices.Contains(w.ranges.Shard(w.shard(a.Range)).Replicas, a.Node):
		return fmt.Errorf("it does not keep the range")
	case now < w.avoid[a.Node]:
		return fmt.Errorf("it lied, and is avoided until %v", w.avoid[a.Node])
	case len(a.Wants) == 0 || len(a.Wants) > w.p.Wants:
		return fmt.Errorf("%d wants", len(a.Wants))
	}
	same := 0
	for _, other := range w.out {
		if other.Fetch != a.Fetch || !overlap(other.Wants, a.Wants) || !other.Range.Equal(a.Range) {
			continue
		}
		if same++; other.Node == a.Node {
			return fmt.Errorf("it has the same question, request %d", other.Request)
		}
	}
	if same >= w.p.Copies {
		return fmt.Errorf("%d others are asked the same", same)
	}
	for _, want := range a.Wants {
		f.cut(a.Range, want)
		open, known := f.open[nameWant(a.Range, want)]
		if !known || open {
			return fmt.Errorf("%+v is not wanted, or open: %t", want, open)
		}
	}
	w.last = a.Request
	w.out[a.Request], w.askedAt[a.Request] = a, now
	return nil
}

// cut replaces the want for a range of keys, of which want is a half, by both halves.
func (f *watched) cut(shard dsm.Range, want dsm.Want) {
	for whole, at := range f.ranges {
		if l, r, ok := at.Halves(); ok && (l.Equal(want) || r.Equal(want)) && !f.open[whole] {
			delete(f.open, whole)
			delete(f.ranges, whole)
			for _, half := range []dsm.Want{l, r} {
				f.add(shard, half)
			}
			return
		}
	}
}

func (f *watched) add(shard dsm.Range, want dsm.Want) {
	f.open[nameWant(shard, want)] = false
	if want.Range {
		f.ranges[nameWant(shard, want)] = want
	}
}

func overlap(a, b []dsm.Want) bool {
	return slices.ContainsFunc(a, func(x dsm.Want) bool {
		return slices.ContainsFunc(b, func(y dsm.Want) bool { return x.Equal(y) })
	})
}

// check checks what must be true between steps.
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
		owes[r.node]++
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
