package hedge

import (
	"context"
	"time"
)

// Search asks one question of candidates of type C, whose answers have type A, as a Machine
// decides. Functions must be set unless they are optional. Ask and Prove run in their own
// goroutines; all other functions run in the goroutine of Run.
type Search[C, A any] struct {
	Policy Policy
	// Began is when the question was first asked, if that was before Run. Optional: it counts
	// towards Policy.After.
	Began time.Time
	// Go starts a goroutine. It may do nothing once the context of Run has ended. Run does not wait
	// for cancelled goroutines; the provider of Go does.
	Go func(func())
	// More returns candidates that it has not returned before, and a channel that is closed when
	// there may be others (nil: there will be none). Run calls it at the start and whenever the
	// channel is closed.
	More func() (candidates []C, again <-chan struct{})
	// Ask asks the question. With ByRate, a question may be abandoned by its context and asked
	// again, possibly before the first call has returned.
	Ask func(ctx context.Context, c C) (A, error)
	// Key returns the same string for equal answers. Optional: without it all answers differ.
	Key func(A) string
	// Prove returns nil if an answer is proved. Optional: without it every answer counts as proved.
	Prove func(ctx context.Context, c C, a A) error
	// Known is the Key of an answer that is already proved. Optional.
	Known string
	// Standing returns the fields of the event of that name. Optional: without it both are true.
	Standing func(C) (prompt, trusted bool)
	// Received returns the number of bytes received so far from a candidate, over all questions to
	// it. It must be set with ByRate.
	Received func(C) int64

	// The functions below are notifications. All are optional.

	Failed  func(c C, err error) (stop bool) // Ask failed; stop abandons the search
	Refuted func(c C, err error) (stop bool) // Prove failed; stop abandons the search
	Proved  func(c C, a A)                   // an answer is proved, the first or a later one
	Settled func()                           // see the action
	Overdue func(asked, proving []C)         // see the action
	// Unheard is called at the end for each candidate that has not answered, with the time since it
	// was asked.
	Unheard func(c C, since time.Duration)
}

// Run searches until the Machine ends, Failed or Refuted asks to stop, or ctx ends. It returns an
// error only if ctx ended: that of ctx. It cancels the questions and proofs in flight.
func (s *Search[C, A]) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run[C, A]{Search: s, ctx: ctx, machine: New(s.Policy), began: time.Now(), results: make(chan result[A])}
	if !s.Began.IsZero() {
		r.began = s.Began
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for r.more(); !r.ended; {
		due := timer.C
		if at, ok := r.machine.Next(); ok {
			timer.Reset(max(at-r.now(), 0))
		} else {
			due = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due:
			r.step(Tick{})
		case <-r.again:
			r.more()
		case got := <-r.results:
			r.took(got)
		}
	}
	return nil
}

// run is a Search in progress. Only the goroutine of Run uses it.
type run[C, A any] struct {
	*Search[C, A]
	ctx     context.Context
	machine *Machine
	began   time.Time
	states  []state[C, A] // by ID
	again   <-chan struct{}
	results chan result[A]
	ended   bool
}

// state is the shell's state of a candidate.
type state[C, A any] struct {
	candidate       C
	answer          A
	since           time.Duration // when it was asked
	out             bool          // its question is in flight
	asked           int           // with ByRate, a question may be asked several times
	received        int64         // last result of Received
	cancel          context.CancelFunc
	prompt, trusted bool // as last reported to the Machine
}

// result is the outcome of a question or, if proof is set, of the proof of its answer.
type result[A any] struct {
	id     ID
	asked  int // which question to the candidate it belongs to
	proof  bool
	answer A
	err    error
}

func (r *run[C, A]) now() time.Duration { return time.Since(r.began) }

func (r *run[C, A]) more() {
	first := len(r.states) == 0
	candidates, again := r.More()
	r.again = again
	var ids []ID
	for _, c := range candidates {
		ids = append(ids, ID(len(r.states)))
		r.states = append(r.states, state[C, A]{candidate: c, prompt: true, trusted: true})
	}
	r.do(Add{ids}) // before observe, which reports their standing
	r.observe(nil)
	if first && r.Known != "" {
		r.step(Known{r.Known})
	}
}

// took turns a result into an event.
func (r *run[C, A]) took(got result[A]) {
	st := &r.states[got.id]
	if got.asked != st.asked || !got.proof && !st.out {
		return // the end of an abandoned question
	}
	st.cancel()
	failed, event := r.Failed, Event(Failed{got.id})
	switch {
	case got.proof && got.err == nil:
		event = Proved{got.id}
		if r.Proved != nil {
			r.Proved(st.candidate, st.answer)
		}
	case got.proof:
		failed, event = r.Refuted, Refuted{got.id}
	case got.err == nil:
		answered := Answered{ID: got.id}
		if r.Key != nil {
			answered.Answer = r.Key(got.answer)
		}
		answered.Proved = r.Prove == nil
		st.answer, event = got.answer, answered
	}
	if !got.proof {
		st.out = false
	}
	if got.err != nil && failed != nil && failed(st.candidate, got.err) {
		event = Stop{}
	}
	r.step(event)
}

// step passes an event to the Machine, after the state that the Machine needs to judge it. The
// standing of a candidate that answers is reported afterwards: a late answer makes it not prompt,
// but the answer has arrived, and must be examined before the Machine may conclude that none is
// awaited.
func (r *run[C, A]) step(e Event) {
	r.observe(e)
	r.do(e)
	if _, answered := e.(Answered); answered {
		r.observe(nil)
	}
}

// observe reports to the Machine what changes without an event: bytes received, and standings,
// except that of the candidate whose answer is next.
func (r *run[C, A]) observe(next Event) {
	answer, answers := next.(Answered)
	if r.Received != nil {
		for id := range r.states {
			st := &r.states[id]
			if n := r.Received(st.candidate); n > st.received {
				st.received = n
				r.do(Moved{ID(id), n})
			}
		}
	}
	if r.Standing != nil {
		for id := range r.states {
			if answers && ID(id) == answer.ID {
				continue
			}
			st := &r.states[id]
			if prompt, trusted := r.Standing(st.candidate); prompt != st.prompt || trusted != st.trusted {
				st.prompt, st.trusted = prompt, trusted
				r.do(Standing{ID(id), prompt, trusted})
			}
		}
	}
}

// do passes an event to the Machine and performs its actions.
func (r *run[C, A]) do(e Event) {
	for _, a := range r.machine.Step(r.now(), e) {
		switch a := a.(type) {
		case Ask:
			r.ask(a.ID)
		case Park:
			st := &r.states[a.ID]
			st.out = false
			st.cancel()
		case Prove:
			r.prove(a.ID)
		case Accept:
			if st := &r.states[a.ID]; r.Proved != nil {
				r.Proved(st.candidate, st.answer)
			}
		case Overdue:
			if r.Overdue != nil {
				r.Overdue(r.those(a.Asked), r.those(a.Proving))
			}
		case Settled:
			if r.Settled != nil {
				r.Settled()
			}
		case Cancel:
			st := &r.states[a.ID]
			st.cancel()
			if st.out && r.Unheard != nil {
				r.Unheard(st.candidate, r.now()-st.since)
			}
		case End:
			r.ended = true
		}
	}
}

func (r *run[C, A]) those(ids []ID) (candidates []C) {
	for _, id := range ids {
		candidates = append(candidates, r.states[id].candidate)
	}
	return candidates
}

func (r *run[C, A]) ask(id ID) {
	st := &r.states[id]
	st.out, st.since = true, r.now()
	st.asked++
	c := st.candidate
	r.spawn(id, func(ctx context.Context) result[A] {
		answer, err := r.Ask(ctx, c)
		return result[A]{id: id, answer: answer, err: err}
	})
}

func (r *run[C, A]) prove(id ID) {
	st := &r.states[id]
	c, answer := st.candidate, st.answer
	r.spawn(id, func(ctx context.Context) result[A] {
		return result[A]{id: id, proof: true, err: r.Prove(ctx, c, answer)}
	})
}

// spawn runs f in a goroutine and delivers its result, unless the search ends first.
func (r *run[C, A]) spawn(id ID, f func(context.Context) result[A]) {
	ctx, cancel := context.WithCancel(r.ctx)
	r.states[id].cancel = cancel
	asked := r.states[id].asked
	r.Go(func() {
		defer cancel()
		got := f(ctx)
		got.asked = asked
		select {
		case r.results <- got:
		case <-r.ctx.Done():
		}
	})
}
