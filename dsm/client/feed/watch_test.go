package feed

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/starling-kv/starling/dsm"
)

// watch checks each step of a Machine against the guarantees to callers. It derives its own state
// from events and actions alone.
type watch struct {
	*Machine
	sending map[place]int64
	polling map[dsm.NodeID]bool
	forgot  map[int]int64 // by range: up to this height
	states  map[place]State
	most    uint64 // bytes of the largest update
}

type place struct {
	node  dsm.NodeID
	shard int
}

func newWatch(m *Machine) *watch {
	w := &watch{Machine: m, sending: map[place]int64{}, polling: map[dsm.NodeID]bool{}, forgot: map[int]int64{}, states: map[place]State{}}
	for _, s := range m.Shards() {
		w.forgot[s.Number] = m.head
	}
	return w
}

// claims returns claims of all ranges of a node.
func (m *Machine) claims(node dsm.NodeID, durable, needs int64) (claims []dsm.Claim) {
	for _, s := range m.Shards() {
		if slices.Contains(s.Replicas, node) {
			claims = append(claims, dsm.Claim{Range: s.Range, Durable: durable, Needs: needs})
		}
	}
	return claims
}

// changed forgets what was known about ranges and replicas that are gone, once a Change has been
// applied.
func (w *watch) changed() {
	stays := map[place]bool{}
	for _, s := range w.Shards() {
		if _, known := w.forgot[s.Number]; !known {
			w.forgot[s.Number] = w.head
		}
		for _, n := range s.Replicas {
			stays[place{n, s.Number}] = true
		}
	}
	gone := func(p place) bool { return !stays[p] }
	maps.DeleteFunc(w.sending, func(p place, _ int64) bool { return gone(p) })
	maps.DeleteFunc(w.states, func(p place, _ State) bool { return gone(p) })
	maps.DeleteFunc(w.polling, func(n dsm.NodeID, _ bool) bool { return w.byName[n] == nil })
}

func (w *watch) step(now time.Duration, e Event) ([]Action, error) {
	w.event(e)
	actions := w.Step(now, e)
	if _, is := e.(Change); is {
		w.changed()
	}
	for _, a := range actions {
		if err := w.action(a); err != nil {
			return actions, fmt.Errorf("%s%+v: %w", reflect.TypeOf(a).Name(), a, err)
		}
	}
	return actions, w.check(now)
}

func (w *watch) event(e Event) {
	hear := func(p place) {
		if w.states[p] == Unheard {
			w.states[p] = InStep
		}
	}
	switch e := e.(type) {
	case Committed:
		for _, n := range e.Bytes {
			w.most = max(w.most, n)
		}
	case Sent:
		if p := (place{e.Node, e.Shard}); w.sending[p] > 0 {
			delete(w.sending, p)
			hear(p)
		}
	case NotSent:
		delete(w.sending, place{e.Node, e.Shard})
	case Claimed:
		delete(w.polling, e.Node)
		for _, s := range w.Shards() {
			if slices.Contains(s.Replicas, e.Node) {
				hear(place{e.Node, s.Number})
			}
		}
	case NotPolled:
		delete(w.polling, e.Node)
	}
}

func (w *watch) action(a Action) error {
	switch a := a.(type) {
	case Send:
		p := place{a.Node, a.Shard}
		switch {
		case w.sending[p] > 0:
			return fmt.Errorf("height %d is being sent", w.sending[p])
		case a.Height <= w.forgot[a.Shard] || a.Height > w.head:
			return fmt.Errorf("forgotten up to %d, and the last block is %d", w.forgot[a.Shard], w.head)
		case w.states[p] != InStep:
			return fmt.Errorf("it is %v", w.states[p])
		}
		w.sending[p] = a.Height
	case Poll:
		if w.polling[a.Node] {
			return fmt.Errorf("it is being polled")
		}
		w.polling[a.Node] = true
	case Forget:
		if a.Height <= w.forgot[a.Shard] || a.Height > w.head {
			return fmt.Errorf("forgotten up to %d, and the last block is %d", w.forgot[a.Shard], w.head)
		}
		w.forgot[a.Shard] = a.Height
		for _, l := range w.Lags(a.Shard) {
			if state := w.states[place{l.Node, a.Shard}]; (state == Unheard || state == InStep) && l.Durable < a.Height {
				return fmt.Errorf("%s is %v, and has %d", l.Node, l.State, l.Durable)
			}
		}
	case Left:
		within := 0
		for _, l := range w.Lags(a.Shard) {
			if l.Within && l.Node != a.Node {
				within++
			}
		}
		if w.states[place{a.Node, a.Shard}] == Lagging || within < w.policy.MinAcks && !w.queues[a.Shard].next {
			return fmt.Errorf("it had left, or only %d others are within the lag", within)
		}
		w.states[place{a.Node, a.Shard}] = Lagging
	case Back:
		if w.states[place{a.Node, a.Shard}] != Lagging {
			return fmt.Errorf("it had not left")
		}
		w.states[place{a.Node, a.Shard}] = InStep
	}
	return nil
}

// check checks the invariants between steps, and the indices.
func (w *watch) check(now time.Duration) error {
	blocked := map[string]bool{}
	for _, b := range w.Blocked() {
		blocked[b.Range.String()] = true
	}
	for _, s := range w.Shards() {
		i, within := s.Number, 0
		for _, l := range w.Lags(i) {
			if state := w.states[place{l.Node, i}]; state != l.State {
				return fmt.Errorf("%s is %v, and was %v", l.Node, l.State, state)
			}
			if l.Within {
				within++
			}
		}
		if blocked[s.Range.String()] != (within < w.policy.MinAcks && !s.Next) {
			return fmt.Errorf("%d replicas of range %d are within the lag, and blocked: %v", within, i, blocked)
		}
		// The most recent block may exceed the limit.
		if w.Queued(i) > max(w.policy.MaxLagBytes+w.most, w.policy.KeepBytes) || w.head-w.forgot[i] > max(w.policy.MaxLagBlocks+1, w.policy.KeepBlocks) {
			return fmt.Errorf("%d bytes and %d blocks are kept of range %d", w.Queued(i), w.head-w.forgot[i], i)
		}
	}
	if next, has := w.Next(); has && next <= now {
		return fmt.Errorf("something was due at %v", next)
	}
	return w.scan()
}
