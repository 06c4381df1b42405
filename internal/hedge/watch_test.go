package hedge

import (
	"fmt"
	"reflect"
	"slices"
	"time"
)

// watch checks each step of a Machine against the guarantees to callers. It derives its own state
// from events and actions alone.
type watch struct {
	*Machine
	p       Policy
	named   map[ID]bool
	asked   map[ID]time.Duration // time of the last question
	moved   map[ID]int64         // bytes received
	before  map[ID]int64         // bytes received before the last question
	parked  map[ID]int           // number of times
	out     map[ID]bool
	answers map[ID]string // "" is unique
	proofs  map[ID]bool   // started
	proving map[ID]bool
	useless map[ID]bool // failed or refuted
	agreed  map[ID]bool // its answer equals the winner's

	accepted bool // an answer that needed no proof is to be accepted
	won      bool
	winner   string
	wonAt    time.Duration
	overdue  bool
	settled  bool
	stopped  bool
	ended    bool
	canceled map[ID]bool
}

func newWatch(p Policy) *watch {
	return &watch{Machine: New(p), p: p, named: map[ID]bool{}, asked: map[ID]time.Duration{}, moved: map[ID]int64{},
		before: map[ID]int64{}, parked: map[ID]int{}, out: map[ID]bool{}, answers: map[ID]string{},
		proofs: map[ID]bool{}, proving: map[ID]bool{}, useless: map[ID]bool{}, agreed: map[ID]bool{}, canceled: map[ID]bool{}}
}

func (w *watch) step(now time.Duration, e Event) ([]Action, error) {
	ended := w.ended
	w.event(now, e)
	actions := w.Step(now, e)
	if ended && len(actions) > 0 {
		return actions, fmt.Errorf("actions after the end: %v", actions)
	}
	for _, a := range actions {
		if err := w.action(now, a); err != nil {
			return actions, fmt.Errorf("%s%+v: %w", reflect.TypeOf(a).Name(), a, err)
		}
	}
	if w.accepted {
		return actions, fmt.Errorf("an answer that needs no proof was not accepted")
	}
	return actions, w.check(now)
}

// event applies an event to the state. It ignores the events that the Machine must ignore.
func (w *watch) event(now time.Duration, e Event) {
	if w.ended {
		return
	}
	switch e := e.(type) {
	case Add:
		for _, id := range e.IDs {
			w.named[id] = true
		}
	case Known:
		if !w.won {
			w.won, w.winner, w.wonAt = true, e.Answer, now
		}
	case Answered:
		if w.out[e.ID] {
			delete(w.out, e.ID)
			w.answers[e.ID] = e.Answer
			if e.Proved {
				w.accepted = !w.won || e.Answer == "" || e.Answer != w.winner
				w.proved(now, e.ID)
			}
		}
	case Failed:
		if w.out[e.ID] {
			delete(w.out, e.ID)
			w.useless[e.ID] = true
		}
	case Proved:
		if w.proving[e.ID] {
			delete(w.proving, e.ID)
			w.proved(now, e.ID)
		}
	case Refuted:
		if w.proving[e.ID] {
			delete(w.proving, e.ID)
			w.useless[e.ID] = true
		}
	case Moved:
		w.moved[e.ID] = max(w.moved[e.ID], e.Bytes)
	case Stop:
		w.stopped = true
	}
	for id, answer := range w.answers {
		if w.won && answer != "" && answer == w.winner && !w.proofs[id] {
			w.agreed[id] = true
		}
	}
}

func (w *watch) proved(now time.Duration, id ID) {
	w.agreed[id] = true
	if !w.won {
		w.won, w.winner, w.wonAt = true, w.answers[id], now
	}
}

func (w *watch) action(now time.Duration, a Action) error {
	if w.ended {
		return fmt.Errorf("after the end")
	}
	switch a := a.(type) {
	case Ask:
		_, again := w.asked[a.ID]
		if again || !w.named[a.ID] {
			return fmt.Errorf("asked twice, or unknown")
		}
		w.asked[a.ID], w.before[a.ID], w.out[a.ID] = now, w.moved[a.ID], true
	case Park:
		return w.park(now, a.ID)
	case Prove:
		if _, answered := w.answers[a.ID]; !answered || w.proofs[a.ID] || w.agreed[a.ID] {
			return fmt.Errorf("it has no answer to prove, was proved before, or confirms the winner")
		}
		w.proofs[a.ID], w.proving[a.ID] = true, true
	case Accept:
		if _, answered := w.answers[a.ID]; !answered || !w.accepted {
			return fmt.Errorf("it has no answer that needs no proof and is new")
		}
		w.accepted = false
	case Cancel:
		if !w.out[a.ID] && !w.proving[a.ID] {
			return fmt.Errorf("it is not in flight")
		}
		delete(w.out, a.ID)
		delete(w.proving, a.ID)
		w.canceled[a.ID] = true
	case Overdue:
		if w.overdue || !w.won || now < w.wonAt+w.p.Compare {
			return fmt.Errorf("twice, or too early")
		}
		if len(a.Asked) != len(w.out) || len(a.Proving) != len(w.proving) {
			return fmt.Errorf("%d questions and %d proofs are in flight", len(w.out), len(w.proving))
		}
		w.overdue = true
	case Settled:
		if w.settled || !w.won {
			return fmt.Errorf("twice, or nothing is proved")
		}
		w.settled = true
	case End:
		if len(w.out)+len(w.proving) > 0 {
			return fmt.Errorf("%d questions and %d proofs were not cancelled", len(w.out), len(w.proving))
		}
		w.ended = true
	}
	return nil
}

// park checks that a candidate gives up its slot only with ByRate, after its turn, to a waiting
// candidate, and while no question is well and another one is at least as fast.
func (w *watch) park(now time.Duration, id ID) error {
	rate := func(id ID) float64 { return float64(w.moved[id]-w.before[id]) / (now - w.asked[id]).Seconds() }
	waiting := 0
	for id := range w.named {
		if _, asked := w.asked[id]; !asked {
			waiting++
		}
	}
	faster := false
	for other := range w.out {
		age := now - w.asked[other]
		if age < w.p.After || rate(other)*age.Seconds() > float64(w.p.Rate)*(age-w.p.After/2).Seconds()+1 {
			return fmt.Errorf("%d is not slow", other)
		}
		faster = faster || other != id && rate(other) >= rate(id)-1
	}
	switch {
	case w.p.Pace != ByRate || !w.out[id]:
		return fmt.Errorf("another pace, or it is not in flight")
	case waiting == 0 || len(w.out) < w.p.Most:
		return fmt.Errorf("no candidate is queued for its slot")
	case !faster:
		return fmt.Errorf("no candidate is faster")
	case now-w.asked[id] < w.p.Turn<<min(w.parked[id], 16):
		return fmt.Errorf("its turn is not over")
	}
	w.parked[id]++
	delete(w.out, id)
	delete(w.asked, id)
	return nil
}

// check checks the invariants between steps.
func (w *watch) check(now time.Duration) error {
	if len(w.canceled) > 0 && !w.ended {
		return fmt.Errorf("something was cancelled, and the search has not ended")
	}
	if w.ended {
		return w.checkEnd()
	}
	fresh := 0
	for id := range w.out {
		if now < w.asked[id]+w.p.After {
			fresh++
		}
	}
	switch {
	case len(w.out) > w.p.Most:
		return fmt.Errorf("%d questions are in flight", len(w.out))
	case w.p.Pace == EachSlow && fresh > w.p.Start:
		return fmt.Errorf("%d questions are in flight that are not slow", fresh)
	case len(w.out)+len(w.proving) == 0 && len(w.asked) < len(w.named):
		return fmt.Errorf("nothing is in flight, and a candidate was not asked")
	case w.won && w.p.Compare == 0:
		return fmt.Errorf("an answer is proved, and the search has not ended")
	case w.won && !w.settled && now > w.wonAt+w.p.Compare:
		return fmt.Errorf("Compare has passed, and the search is not settled")
	case w.settled && !w.p.Linger:
		return fmt.Errorf("the search is settled, and has not ended")
	}
	return w.checkAnswers()
}

// checkAnswers checks that no answer is forgotten: each is being proved, or waits for the proof of
// an equal one.
func (w *watch) checkAnswers() error {
	for id, answer := range w.answers {
		if w.proofs[id] || w.agreed[id] {
			continue
		}
		equal := func(other ID) bool { return answer != "" && w.answers[other] == answer }
		if w.won {
			return fmt.Errorf("the answer of %d differs, and is not examined", id)
		}
		if !slices.ContainsFunc(keys(w.proving), equal) {
			return fmt.Errorf("the answer of %d waits, and no equal one is being proved", id)
		}
	}
	return nil
}

func (w *watch) checkEnd() error {
	switch {
	case w.stopped:
		return nil
	case w.won != w.settled:
		return fmt.Errorf("it ended; proved: %t, settled: %t", w.won, w.settled)
	case w.won:
		return nil
	}
	for id := range w.named {
		if !w.useless[id] {
			return fmt.Errorf("it ended without an answer, and %d has not failed", id)
		}
	}
	return nil
}

func keys(m map[ID]bool) (ids []ID) {
	for id := range m {
		ids = append(ids, id)
	}
	return ids
}
