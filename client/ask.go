package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/starling-kv/starling/internal/hedge"
)

const (
	// hedgeAfter is how long a call waits for one node before another is asked as well.
	hedgeAfter = 200 * time.Millisecond
	// answerGrace is how long a call waits for silent nodes once another node has answered
	// unsuccessfully, for example because it has pruned the height. If the remaining nodes were
	// slow before, the wait is only hedgeAfter.
	answerGrace = 2 * time.Second
)

// question is a call that any node can answer.
type question[A any] struct {
	what string // names the call in errors
	// call asks one node. If the node is alive, the error must be one that heard recognizes.
	call  func(ctx context.Context, e *endpoint) (A, error)
	short bool             // the duration of the call measures the distance of the node
	first *endpoint        // asked first if it is prompt; optional
	avoid []*endpoint      // not asked
	also  []*endpoint      // asked after all others
	final func(error) bool // whether every node would refuse for the same reason; optional
}

// ask asks the best node, and the next one after hedgeAfter or as soon as a node fails. It returns
// the first answer and its node. The error is a node's if it is final, otherwise a *CallError.
//
// Usually the first node answers. It is asked on the caller's goroutine, because a goroutine and a
// search cost a third of a read.
func ask[A any](ctx context.Context, p *pool, q question[A]) (answer A, from *endpoint, err error) {
	p.refresh(ctx)
	a := &asking[A]{pool: p, question: q, candidates: append(p.order(q.first, q.avoid), q.also...), tally: newTally(q.what)}
	if len(a.candidates) == 0 {
		return answer, nil, a.tally.error(ctx.Err())
	}
	patient, giveUp := context.WithCancel(ctx)
	defer giveUp()
	a.giveUp = giveUp
	calling, overtake := context.WithCancel(patient)
	defer overtake()
	first, others := a.candidates[0], a.candidates[1:]
	done := make(chan struct{})
	searching := time.AfterFunc(hedgeAfter, func() {
		defer close(done)
		if a.search(patient, time.Now(), others); a.from != nil || a.final() != nil {
			overtake()
		}
	})
	began := time.Now()
	a.tally.asked(first)
	answer, err = call(calling, p, first, q.short, q.call)
	alone := searching.Stop()
	if err == nil {
		if !alone {
			giveUp()
			<-done
			a.stopGrace()
			a.tally.silent(first, hedgeAfter)
		}
		return answer, first, nil
	}
	overtaken := calling.Err() != nil
	if !overtaken {
		a.failed(first, err)
	}
	switch {
	case a.final() != nil:
		giveUp()
	case alone && patient.Err() == nil:
		a.search(patient, began, others)
	}
	if !alone {
		<-done
	}
	a.stopGrace()
	switch final := a.final(); {
	case a.from != nil:
		if overtaken {
			a.tally.unheard(first, time.Since(began))
		}
		return a.answer, a.from, nil
	case final != nil:
		return answer, nil, final
	case patient.Err() != nil:
		a.tally.silent(nil, hedgeAfter/4)
	}
	return answer, nil, a.tally.error(ctx.Err())
}

// asking is the state of an ask.
type asking[A any] struct {
	pool       *pool
	question   question[A]
	candidates []*endpoint
	tally      *tally
	giveUp     context.CancelFunc // ends the wait for silent nodes

	answer A // set by search
	from   *endpoint

	mu struct {
		sync.Mutex
		final error
		grace []*time.Timer // call giveUp
	}
}

// failed records that a node has not answered the question.
func (a *asking[A]) failed(e *endpoint, err error) {
	a.tally.failed(e, err)
	a.mu.Lock()
	defer a.mu.Unlock()
	if heard(err) {
		a.mu.grace = append(a.mu.grace, time.AfterFunc(a.tally.grace(a.candidates), a.giveUp))
	}
	if a.question.final != nil && a.question.final(err) {
		a.mu.final = err
	}
}

// final returns the error that every node would give; nil: there is none.
func (a *asking[A]) final() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.final
}

func (a *asking[A]) stopGrace() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, timer := range a.mu.grace {
		timer.Stop()
	}
}

// search asks other nodes than the first, as if it had begun then.
func (a *asking[A]) search(ctx context.Context, began time.Time, others []*endpoint) {
	search := hedge.Search[*endpoint, A]{
		Began:  began,
		Policy: hedge.Policy{Pace: hedge.Doubling, Start: 1, Most: max(len(others), 1), After: hedgeAfter},
		Go:     func(f func()) { go f() },
		More:   func() ([]*endpoint, <-chan struct{}) { return others, nil },
		Ask: func(ctx context.Context, e *endpoint) (A, error) {
			a.tally.asked(e)
			return call(ctx, a.pool, e, a.question.short, a.question.call)
		},
		Proved:  func(e *endpoint, answer A) { a.answer, a.from = answer, e },
		Unheard: func(e *endpoint, since time.Duration) { a.tally.unheard(e, since) },
		Failed: func(e *endpoint, err error) bool {
			a.failed(e, err)
			return a.final() != nil
		},
	}
	_ = search.Run(ctx) // the caller finds out whether ctx has ended
}

// call admits a node, asks it, and records how it answers.
func call[A any](ctx context.Context, p *pool, e *endpoint, short bool, f func(context.Context, *endpoint) (A, error)) (A, error) {
	var none A
	if err := p.admit(ctx, e); err != nil {
		return none, err
	}
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	began := time.Now()
	a, err := f(limited, e)
	// rpc/core/mempool.go, ErrEndpointClosedCatchingUp
	if answered(err) && strings.Contains(err.Error(), "catching up") || callMissing(err) && p.catchesUp(ctx, e) {
		err = fmt.Errorf("%w: %w", errCatchingUp, err)
	}
	if err == nil || ctx.Err() == nil {
		e.note(time.Since(began), err, short && err == nil)
	}
	return a, err
}

// tally records the result of each node that was asked.
type tally struct {
	what string
	mu   struct {
		sync.Mutex
		nodes []*nodeTally // in the order of asking
	}
}

type nodeTally struct {
	node  *endpoint
	since time.Time
	err   error // nil: no answer yet
}

func newTally(what string) *tally { return &tally{what: what} }

func (t *tally) asked(e *endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.nodes = append(t.mu.nodes, &nodeTally{node: e, since: time.Now()})
}

func (t *tally) failed(e *endpoint, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.mu.nodes {
		if n.node == e {
			n.err = err
		}
	}
}

// grace returns how long to wait for the nodes that have not answered.
func (t *tally) grace(all []*endpoint) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range all {
		failed := slices.ContainsFunc(t.mu.nodes, func(n *nodeTally) bool { return n.node == e && n.err != nil })
		if !failed && e.prompt() {
			return answerGrace
		}
	}
	return hedgeAfter
}

// unheard records that another node answered first.
func (t *tally) unheard(e *endpoint, since time.Duration) {
	if since >= hedgeAfter {
		e.overtaken(since)
	}
}

// silent records which nodes, other than the one that answered, have not answered for that long.
func (t *tally) silent(answered *endpoint, least time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.mu.nodes {
		if since := time.Since(n.since); n.node != answered && n.err == nil && since >= least {
			n.node.overtaken(since)
		}
	}
}

// error returns the results as an error. ended is the error of the caller's context.
func (t *tally) error(ended error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	call := &CallError{What: t.what, Err: ended}
	for _, n := range t.mu.nodes {
		err := n.err
		if err == nil {
			err = fmt.Errorf("%w for %v", errSilent, time.Since(n.since).Round(time.Millisecond))
		}
		call.Nodes = append(call.Nodes, NodeError{n.node.Remote(), err})
	}
	return call
}

var errSilent = errors.New("no answer")
