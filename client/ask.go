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
func ask[A any](ctx context.Context, p *pool, q question[A]) (answer A, from *endpoint, err error) {
	p.refresh(ctx)
	candidates := append(p.order(q.first, q.avoid), q.also...)
	t := newTally(q.what)
	var last error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	patient, giveUp := context.WithCancel(ctx)
	defer giveUp()
	search := hedge.Search[*endpoint, A]{
		Policy: hedge.Policy{Pace: hedge.Doubling, Start: 1, Most: max(len(candidates), 1), After: hedgeAfter},
		Go:     func(f func()) { go f() },
		More:   func() ([]*endpoint, <-chan struct{}) { return candidates, nil },
		Ask: func(ctx context.Context, e *endpoint) (A, error) {
			t.asked(e)
			return call(ctx, p, e, q.short, q.call)
		},
		Proved:  func(e *endpoint, a A) { answer, from = a, e },
		Unheard: func(e *endpoint, since time.Duration) { t.unheard(e, since) },
		Failed: func(e *endpoint, err error) bool {
			t.failed(e, err)
			if heard(err) {
				timer := time.AfterFunc(t.grace(candidates), giveUp)
				context.AfterFunc(ctx, func() { timer.Stop() })
			}
			if q.final != nil && q.final(err) {
				last = err
			}
			return last != nil
		},
	}
	if err := search.Run(patient); err != nil {
		t.abandoned()
	}
	switch {
	case from != nil:
		return answer, from, nil
	case last != nil:
		return answer, nil, last
	default:
		return answer, nil, t.error(ctx.Err())
	}
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
	if answered(err) && strings.Contains(err.Error(), "catching up") {
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

// abandoned records that the call was given up before all nodes had answered.
func (t *tally) abandoned() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.mu.nodes {
		if since := time.Since(n.since); n.err == nil && since >= hedgeAfter/4 {
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
