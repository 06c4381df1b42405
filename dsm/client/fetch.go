package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client/ask"
	"github.com/starling-kv/starling/transport"
)

// maxMultiproof limits an answer, in bytes. A storage node's own limit can be lower.
const maxMultiproof = 8 << 20

var (
	// ErrUnserved is wrapped by the errors of Fetch and Upper: no replica answered.
	ErrUnserved = errors.New("no replica answers")
	// ErrTooLarge is wrapped by the errors of Fetch: the answer to a single want would be too
	// large.
	ErrTooLarge  = errors.New("the answer to a single want would be too large")
	errElsewhere = errors.New("the storage nodes have no matching nodes at their heights")
	errLate      = errors.New("it did not arrive in time")
)

// asking wraps an ask.Machine with its timer, and the fetches and requests in flight. All of them
// use one layout.
type asking struct {
	c  *Client
	l  *layout
	mu struct {
		sync.Mutex
		machine *ask.Machine
		timer   *time.Timer
		last    ask.FetchID
		fetches map[ask.FetchID]*fetching
		cancels map[ask.RequestID]context.CancelFunc
		silent  map[int]Wait // by range: the ranges whose last fetch no replica answered
		closed  bool
	}
}

// fetching is a fetch in progress. asking.mu guards its results until ended is closed.
type fetching struct {
	height  int64
	depth   uint8
	held    map[int][][32]byte // by number of the range
	helpers map[dsm.NodeID]transport.Conn
	upper   *upper // nil: a fetch of witnesses

	multiproofs []*avlstar.Multiproof
	came        map[int]bool // ranges that have received an answer
	errs        []error
	ended       chan struct{}
}

func newAsking(c *Client, l *layout) *asking {
	a := &asking{c: c, l: l}
	a.mu.machine = ask.New(l.Ranges, c.o.Ask)
	a.mu.fetches, a.mu.cancels, a.mu.silent = map[ask.FetchID]*fetching{}, map[ask.RequestID]context.CancelFunc{}, map[int]Wait{}
	a.mu.timer = time.AfterFunc(math.MaxInt64, func() { a.step(ask.Tick{}) })
	for n, p := range l.peers {
		if claims := p.latest(); len(claims) > 0 {
			a.step(ask.Claimed{Node: n, Claims: claims})
		}
	}
	return a
}

// isIdle reports whether no fetch is in progress.
func (a *asking) isIdle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.mu.fetches) == 0
}

func (a *asking) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.closed = true
	a.mu.timer.Stop()
	for _, f := range a.mu.fetches {
		f.errs = append(f.errs, ErrClosed)
		close(f.ended)
	}
	clear(a.mu.fetches)
	for _, cancel := range a.mu.cancels {
		cancel()
	}
}

// step passes an event to the machine and performs its actions.
func (a *asking) step(e ask.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.locked(e)
}

// locked is step for a caller that holds mu.
func (a *asking) locked(e ask.Event) {
	if a.mu.closed {
		return
	}
	for _, action := range a.mu.machine.Step(a.c.now(), e) {
		a.perform(action)
	}
	if at, ok := a.mu.machine.Next(); ok {
		a.mu.timer.Reset(max(at-a.c.now(), 0))
	} else {
		a.mu.timer.Stop()
	}
}

func (a *asking) perform(action ask.Action) {
	switch action := action.(type) {
	case ask.Ask:
		ctx, cancel := context.WithCancel(a.c.ctx) //nolint:gosec // forget calls it
		a.mu.cancels[action.Request] = cancel
		if action.Kind == ask.Neighbor {
			a.c.o.Metrics.Elsewhere.Inc()
		}
		f := a.mu.fetches[action.Fetch]
		a.c.wg.Go(func() { a.request(ctx, f, action) })
	case ask.Cancel:
		a.forget(action.Request)
	case ask.Lied:
		a.lied(action.Node, action.Shard, action.Verdict, (action.Until - a.c.now()).Round(time.Second))
	case ask.Missed:
		if f := a.mu.fetches[action.Fetch]; f != nil {
			a.missed(f, action)
		}
	case ask.Done:
		if f := a.mu.fetches[action.Fetch]; f != nil {
			delete(a.mu.fetches, action.Fetch)
			close(f.ended)
		}
	}
}

func (a *asking) forget(id ask.RequestID) {
	if cancel := a.mu.cancels[id]; cancel != nil {
		cancel()
		delete(a.mu.cancels, id)
	}
}

// missed records why a part of a fetch did not arrive, for its caller and for operators.
func (a *asking) missed(f *fetching, m ask.Missed) {
	r := a.l.Ranges.Shard(m.Shard).Range
	why := map[ask.Why]error{ask.Unserved: ErrUnserved, ask.Elsewhere: errElsewhere, ask.Oversized: ErrTooLarge, ask.Late: errLate}[m.Why]
	err := fmt.Errorf("range %v at height %d: %w", r, m.Height, why)
	if len(m.Tried) > 0 {
		tried := make([]string, len(m.Tried))
		for i, t := range m.Tried {
			tried[i] = fmt.Sprintf("%s: %s", t.Node, t.Why)
		}
		err = fmt.Errorf("%w (%s)", err, strings.Join(tried, "; "))
	}
	f.errs = append(f.errs, err)
	if m.Oldest > 0 {
		a.c.gone.add(f.height, r, m.Oldest)
	}
	if m.Why != ask.Unserved || f.came[m.Shard] {
		return
	}
	w, was := a.mu.silent[m.Shard]
	if !was {
		w = Wait{Range: r, Since: time.Now()}
	}
	w.Height, w.Tried = m.Height, m.Tried
	a.mu.silent[m.Shard] = w
	a.c.o.Metrics.Unserved.WithLabelValues(r.String()).Inc()
}

// fetch runs a fetch. Its results may be read once it has returned. The error says why some of them
// are missing.
func (a *asking) fetch(ctx context.Context, f *fetching, e ask.Fetch) error {
	f.came, f.ended, f.helpers = map[int]bool{}, make(chan struct{}), map[dsm.NodeID]transport.Conn{}
	f.height = e.Height
	if a.c.o.Helpers != nil {
		for _, conn := range a.c.o.Helpers() {
			id := dsm.NodeID(conn.Remote().ID)
			f.helpers[id] = conn
			e.Helpers = append(e.Helpers, id)
		}
	}
	a.mu.Lock()
	if a.mu.closed {
		a.mu.Unlock()
		return ErrClosed
	}
	a.mu.last++
	e.ID = a.mu.last
	a.mu.fetches[e.ID] = f
	a.locked(e)
	a.mu.Unlock()
	select {
	case <-f.ended:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.fetches[e.ID] == f { // ctx has ended
		a.locked(ask.Drop{ID: e.ID})
		delete(a.mu.fetches, e.ID)
		f.errs = append(f.errs, context.Cause(ctx))
	}
	return errors.Join(f.errs...)
}

// request sends a request to a node and reports the outcome.
func (a *asking) request(ctx context.Context, f *fetching, action ask.Ask) {
	var body []byte
	method, held, depth := transport.Method(dsm.MethodWitness), f.heldIn(action.Ranges()), f.depth
	if action.Kind == ask.Path {
		held, depth = nil, 0
	}
	if f.upper != nil {
		method, body = dsm.MethodUpper, dsm.UpperRequest{Height: action.Height, Depth: f.depth}.Encode()
	} else {
		var err error
		if body, err = (dsm.Witness{Height: action.Height, Depth: depth, MaxBytes: maxMultiproof, Held: held, Wants: action.Wants}).Encode(); err != nil {
			a.c.o.Logger.Error("a request for a witness cannot be encoded", "err", err)
			a.report(f, action, ask.Failed{Request: action.Request, Reason: ask.Refused}, nil)
			return
		}
	}
	b, err := a.call(ctx, f, action.Node, method, body)
	switch {
	case ctx.Err() != nil: // cancelled
	case f.upper != nil:
		a.report(f, action, f.upper.judge(action, b, err), nil)
	default:
		e, multiproof := judge(action, held, depth, b, err)
		var nothing []int
		if multiproof != nil && len(action.Also) > 0 && depth == math.MaxUint8 {
			nothing = f.openedNothing(action, multiproof)
		}
		switch of := e.(type) {
		case ask.Proved:
			of.Nothing = nothing
			e = of
		case ask.Refuted:
			of.Nothing = nothing
			e = of
		}
		a.report(f, action, e, multiproof, nothing...)
	}
}

// heldIn returns the hashes of the stubs to ask below in ranges, ascending.
func (f *fetching) heldIn(ranges []int) (held [][32]byte) {
	if len(ranges) == 1 {
		return f.held[ranges[0]]
	}
	for _, of := range ranges {
		held = append(held, f.held[of]...)
	}
	slices.SortFunc(held, compareHashes)
	return slices.Compact(held) // a stub may lie in several ranges
}

// openedNothing returns the ranges of a request in which its answer opens none of the stubs.
func (f *fetching) openedNothing(action ask.Ask, multiproof *avlstar.Multiproof) (nothing []int) {
	roots := multiproof.Roots()
	for _, of := range action.Ranges() {
		held := f.held[of]
		if len(held) > 0 && !slices.ContainsFunc(roots, func(root avlstar.Stub) bool {
			_, is := slices.BinarySearchFunc(held, [32]byte(root.Hash), compareHashes)
			return is
		}) {
			nothing = append(nothing, of)
		}
	}
	return nothing
}

// call sends a request to a storage node or a helper.
func (a *asking) call(ctx context.Context, f *fetching, n dsm.NodeID, method transport.Method, body []byte) ([]byte, error) {
	if p := a.l.peers[n]; p != nil {
		return p.call(ctx, method, body, maxMultiproof)
	}
	b, err := f.helpers[n].Call(ctx, transport.Call{Method: method, Body: body, Max: maxMultiproof})
	a.c.o.Metrics.called(otherNodes, method, len(body), len(b), err)
	return b, err
}

// report passes an outcome to the machine. The multiproof opens nothing in the ranges nothing.
func (a *asking) report(f *fetching, action ask.Ask, e ask.Event, multiproof *avlstar.Multiproof, nothing ...int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.cancels[action.Request] == nil {
		return // cancelled meanwhile
	}
	a.forget(action.Request)
	if multiproof != nil && action.Kind != ask.Path {
		f.multiproofs = append(f.multiproofs, multiproof)
		for _, of := range action.Ranges() {
			if !slices.Contains(nothing, of) {
				f.came[of] = true
				a.c.gone.remove(f.height, a.l.Ranges.Shard(of).Range)
			}
		}
	}
	if failed, is := e.(ask.Failed); !is || failed.Reason == ask.Nothing {
		for _, shard := range append([]int{action.Shard}, action.Also...) {
			delete(a.mu.silent, shard)
		}
	}
	a.locked(e)
}

// Fetch implements app.Source. It asks the replicas of each range at the newest height that they
// claim, up to height, and a node for several ranges at once. It returns once everything has
// arrived, once below.MaxBytes have arrived, or when the time to the first answer has passed again
// since that answer. The error says why something is missing: it wraps ErrUnserved, ErrTooLarge,
// ErrClosed or the error of ctx.
func (c *Client) Fetch(ctx context.Context, height int64, wants []avlstar.Want, below avlstar.Below) ([]*avlstar.Multiproof, error) {
	l := c.layout()
	parts, err := l.route(wants)
	if err != nil {
		return nil, err
	}
	if len(below.Held) == 0 && below.Depth >= math.MaxUint8 {
		return nil, nil // the caller has the whole tree
	}
	f := &fetching{depth: uint8(min(below.Depth, math.MaxUint8)), held: map[int][][32]byte{}}
	e := ask.Fetch{Height: height, Parts: parts, MaxBytes: below.MaxBytes}
	for i, held := range l.held(below, parts) {
		f.held[parts[i].Shard] = held
		e.Held = append(e.Held, len(held))
	}
	if err := l.asking.fetch(ctx, f, e); err != nil {
		return f.multiproofs, fmt.Errorf("storage nodes: %w", err)
	}
	return f.multiproofs, nil
}

// route assigns each want to the range that has it. The least key above another one may be the
// first of the next range, so the path to that key is added to the wants.
func (l *layout) route(wants []avlstar.Want) ([]dsm.Part, error) {
	all := make([]avlstar.Want, 0, len(wants))
	for _, w := range wants {
		all = append(all, w)
		if !w.Next {
			continue
		}
		if after := l.Ranges.Shard(l.Ranges.Index(w.Least())).Range.After; after != nil {
			all = append(all, avlstar.Want{Key: after}, avlstar.Want{Key: after, Next: true})
		}
	}
	return l.Ranges.Route(all)
}

// held returns, for each part (parts ascend), the hashes of the stubs to ask below, ascending: the
// stubs that may lie in its range, or all if none does. A request holds up to dsm.MaxHeld of them.
// If there are more, each call picks a different subset, so later calls ask for the rest.
func (l *layout) held(below avlstar.Below, parts []dsm.Part) [][][32]byte {
	held := make([][][32]byte, len(parts))
	add := func(i int, h avlstar.Hash) {
		if len(held[i]) < dsm.MaxHeld { // map order is random: another subset each time
			held[i] = append(held[i], h)
		}
	}
	for h, span := range below.Held {
		from, to := l.Ranges.Index(span.From), l.Ranges.Len()-1
		if span.To != nil {
			to = l.Ranges.Index(span.To)
		}
		i, _ := slices.BinarySearchFunc(parts, from, func(p dsm.Part, shard int) int { return p.Shard - shard })
		for ; i < len(parts) && parts[i].Shard <= to; i++ {
			add(i, h)
		}
	}
	for i := range held {
		if len(held[i]) == 0 {
			for h := range below.Held {
				add(i, h)
			}
		}
		slices.SortFunc(held[i], compareHashes)
	}
	return held
}
