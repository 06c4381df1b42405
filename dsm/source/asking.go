package source

import (
	"bytes"
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
	"github.com/starling-kv/starling/dsm/ask"
	"github.com/starling-kv/starling/transport"
)

// asking is what surrounds an ask.Machine: its timer, and the requests in flight.
type asking struct {
	s  *Source
	mu struct {
		sync.Mutex
		machine *ask.Machine
		timer   *time.Timer
		last    ask.FetchID
		fetches map[ask.FetchID]*question
		cancels map[ask.RequestID]context.CancelFunc
		silent  map[int]Wait // by range: those that nobody answered lately
		closed  bool
	}
}

// question is what one range is asked at one height, as one fetch of the machine.
type question struct {
	shard  int
	height int64
	depth  uint8
	held   [][32]byte
	most   int             // bytes of an answer
	took   func(bytes int) // is called for each bag; nil: they do not count

	// Guarded by asking.mu until ended is closed.
	bags    []*avlstar.Bag
	nothing []dsm.Node // replicas that opened nothing
	tried   []ask.Trial
	gaveUp  bool
	large   bool // a want is more than an answer can have
	closed  bool // the Source was closed before the end

	began chan struct{} // closed when the first bag has come
	ended chan struct{}
}

func (a *asking) begin(s *Source) {
	a.s = s
	a.mu.machine = ask.New(s.o.Ranges, s.o.Ask)
	a.mu.fetches, a.mu.cancels, a.mu.silent = map[ask.FetchID]*question{}, map[ask.RequestID]context.CancelFunc{}, map[int]Wait{}
	a.mu.timer = time.AfterFunc(math.MaxInt64, func() { a.step(ask.Tick{}) })
}

func (a *asking) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.closed = true
	a.mu.timer.Stop()
	for _, q := range a.mu.fetches {
		q.closed = true
		close(q.ended)
	}
	clear(a.mu.fetches)
	for _, cancel := range a.mu.cancels {
		cancel()
	}
}

// step gives the machine an event, and does what follows.
func (a *asking) step(e ask.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.locked(e)
}

// locked is step for who holds mu.
func (a *asking) locked(e ask.Event) {
	if a.mu.closed {
		return
	}
	for _, action := range a.mu.machine.Step(a.s.now(), e) {
		a.perform(action)
	}
	if at, ok := a.mu.machine.Next(); ok {
		a.mu.timer.Reset(max(at-a.s.now(), 0))
	} else {
		a.mu.timer.Stop()
	}
}

func (a *asking) perform(action ask.Action) {
	switch action := action.(type) {
	case ask.Ask:
		ctx, cancel := context.WithCancel(a.s.ctx) //nolint:gosec // forget calls it
		a.mu.cancels[action.Request] = cancel
		q := a.mu.fetches[action.Fetch]
		a.s.wg.Go(func() { a.request(ctx, q, action) })
	case ask.Cancel:
		a.forget(action.Request)
	case ask.Lied:
		a.s.o.Metrics.lied(action.Node, action.Range, action.Verdict)
		a.s.o.Logger.Error("a storage node sent what no honest one sends; it is not asked for a while",
			"node", action.Node, "range", action.Range, "reason", action.Verdict, "for", (action.Until - a.s.now()).Round(time.Second))
		a.s.liars.add(action.Node, action.Range, action.Verdict)
	case ask.Unserved:
		if q := a.mu.fetches[action.Fetch]; q != nil {
			q.tried = append(q.tried, action.Tried...)
		}
	case ask.Oversized:
		if q := a.mu.fetches[action.Fetch]; q != nil {
			q.large = true
		}
	case ask.Done:
		a.finish(action.Fetch, false)
	case ask.GaveUp:
		a.finish(action.Fetch, true)
	}
}

func (a *asking) forget(id ask.RequestID) {
	if cancel := a.mu.cancels[id]; cancel != nil {
		cancel()
		delete(a.mu.cancels, id)
	}
}

// finish ends a question, and keeps note of ranges that nobody answers.
func (a *asking) finish(id ask.FetchID, gaveUp bool) {
	q := a.mu.fetches[id]
	delete(a.mu.fetches, id)
	if q == nil {
		return
	}
	q.gaveUp = gaveUp
	if len(q.bags)+len(q.nothing) > 0 || !gaveUp {
		delete(a.mu.silent, q.shard)
	} else {
		w, was := a.mu.silent[q.shard]
		if !was {
			w = Wait{Range: a.s.o.Ranges.Shard(q.shard).Range, Since: time.Now()}
		}
		w.Height, w.Tried = q.height, q.tried
		a.mu.silent[q.shard] = w
		a.s.o.Metrics.Unserved.WithLabelValues(w.Range.String()).Inc()
	}
	close(q.ended)
}

// ask asks the replicas of a range, each once at most, and returns the bags that came. The error
// says why not all is there; errNothing: a replica had the height, and nothing was to be opened.
func (a *asking) ask(ctx context.Context, q *question, wants []dsm.Want, began func()) ([]*avlstar.Bag, error) {
	q.began, q.ended = make(chan struct{}), make(chan struct{})
	f := ask.Fetch{Height: q.height, Rounds: 1}
	for _, run := range dsm.Split(wants, a.s.o.Ask.Wants, len(q.held)) {
		f.Parts = append(f.Parts, dsm.Part{Shard: q.shard, Wants: run})
	}
	a.mu.Lock()
	if a.mu.closed {
		a.mu.Unlock()
		return nil, ErrClosed
	}
	a.mu.last++
	f.ID = a.mu.last
	a.mu.fetches[f.ID] = q
	a.locked(f)
	a.mu.Unlock()
	first := q.began
	for {
		select {
		case <-first:
			began()
			first = nil
			continue
		case <-q.ended:
		case <-ctx.Done():
		}
		break
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.fetches[f.ID] == q { // ctx has ended
		a.locked(ask.Drop{ID: f.ID})
		delete(a.mu.fetches, f.ID)
		return q.bags, context.Cause(ctx)
	}
	return q.bags, q.failure(a.s.o.Ranges.Shard(q.shard).Range)
}

var (
	errNothing = errors.New("nothing of it is where the storage nodes are")
	// ErrUnserved is wrapped by the errors of Fetch: no replica of a range answered.
	ErrUnserved = errors.New("no replica answers")
	// ErrTooLarge is wrapped by the errors of Fetch: one want is more than an answer can have.
	ErrTooLarge = errors.New("more is wanted at once than an answer can have")
)

// failure says what is wrong with a question that has ended.
func (q *question) failure(r dsm.Range) error {
	switch {
	case q.closed:
		return ErrClosed
	case q.large:
		return fmt.Errorf("range %v at height %d: %w", r, q.height, ErrTooLarge)
	case !q.gaveUp:
		return nil
	case len(q.nothing) > 0:
		return fmt.Errorf("range %v at height %d: %w", r, q.height, errNothing)
	}
	why := make([]string, len(q.tried))
	for i, t := range q.tried {
		why[i] = fmt.Sprintf("%s: %s", t.Node, t.Why)
	}
	return fmt.Errorf("range %v at height %d: %w (%s)", r, q.height, ErrUnserved, strings.Join(why, "; "))
}

// request asks a node, and reports what came of it.
func (a *asking) request(ctx context.Context, q *question, action ask.Ask) {
	body, err := dsm.Witness{Height: action.Height, Depth: q.depth, MaxBytes: uint32(q.most), Held: q.held, Wants: action.Wants}.Encode()
	if err != nil { // ours: no node is to blame
		a.s.o.Logger.Error("a request for a witness cannot be encoded", "err", err)
		a.report(q, action, answer{event: ask.Failed{Request: action.Request, Reason: ask.Refused}})
		return
	}
	b, err := a.s.peers[action.Node].call(ctx, dsm.MethodWitness, body, q.most)
	if ctx.Err() != nil {
		return // cancelled
	}
	a.report(q, action, q.judge(action, b, err))
}

// answer is what a node's answer comes to.
type answer struct {
	event   ask.Event
	bag     *avlstar.Bag // nil: nothing that is wanted
	nothing bool         // it has the height, and opened nothing
}

func (a *asking) report(q *question, action ask.Ask, got answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.cancels[action.Request] == nil {
		return // cancelled meanwhile
	}
	a.forget(action.Request)
	if got.bag != nil {
		if len(q.bags) == 0 {
			close(q.began)
		}
		q.bags = append(q.bags, got.bag)
		if q.took != nil {
			q.took(got.bag.Bytes())
		}
	}
	if got.nothing && !slices.Contains(q.nothing, action.Node) {
		q.nothing = append(q.nothing, action.Node)
	}
	a.locked(got.event)
}

// judge says what an answer is worth. A lie is what an honest node cannot send, whatever height it
// is at.
func (q *question) judge(action ask.Ask, b []byte, err error) answer {
	failed := func(r ask.Reason) answer { return answer{event: ask.Failed{Request: action.Request, Reason: r}} }
	lied := func(v ask.Verdict) answer { return answer{event: ask.Refuted{Request: action.Request, Verdict: v}} }
	switch {
	case errors.Is(err, transport.ErrTooLong):
		return lied(ask.TooLong)
	case errors.Is(err, transport.ErrGone):
		return failed(ask.Gone)
	case errors.Is(err, transport.ErrBusy):
		return failed(ask.Busy)
	case errors.Is(err, transport.ErrRefused):
		return failed(ask.Refused)
	case err != nil:
		return failed(ask.Broken)
	case len(b) == 0:
		return failed(ask.TooLarge)
	case len(b) > q.most:
		return lied(ask.TooLong)
	}
	bag, err := avlstar.DecodeBag(b)
	if err != nil {
		return lied(ask.Undecodable)
	}
	roots := len(bag.Roots())
	if roots == 0 {
		got := failed(ask.Gone) // perhaps another replica has more
		got.nothing = true
		return got
	}
	if unaskedLeaves(bag, action.Wants) {
		return lied(ask.Unasked)
	}
	if len(q.held) > 0 && q.depth == math.MaxUint8 {
		bag = bag.Only(func(root avlstar.Stub) bool { return q.holds(root.Hash) })
		switch left := len(bag.Roots()); {
		case left == 0:
			return lied(ask.OpensNothing)
		case left < roots:
			return answer{event: ask.Refuted{Request: action.Request, Verdict: ask.Unasked}, bag: bag}
		}
	}
	left := []dsm.Want{}
	for _, w := range action.Wants {
		if !w.Range && !w.Next && bag.Omits(w.Key) {
			left = append(left, w)
		}
	}
	if len(left) > 0 {
		return answer{event: ask.Refuted{Request: action.Request, Verdict: ask.Omits, Left: left}, bag: bag}
	}
	return answer{event: ask.Proved{Request: action.Request}, bag: bag}
}

// unaskedLeaves reports whether a bag has more leaves than that of an honest node can have. The way
// to a key ends at one, and a range may begin below one that is not in it: without a limit, a block
// could be made too large by what nobody asked for.
func unaskedLeaves(bag *avlstar.Bag, wants []dsm.Want) bool {
	beside := bag.Leaves()
	if beside <= len(wants) {
		return false
	}
	ranges := slices.DeleteFunc(slices.Clone(wants), func(w dsm.Want) bool { return !w.Range })
	if len(ranges) == 0 {
		return true
	}
	slices.SortFunc(ranges, func(a, b dsm.Want) int { return bytes.Compare(a.Key, b.Key) })
	var upTo []byte // all ranges that have begun end here, at most; they are open where that is nil
	begun := 0
	for key := range bag.LeafKeys() {
		for ; begun < len(ranges) && bytes.Compare(ranges[begun].Key, key) <= 0; begun++ {
			after := ranges[begun].After
			if begun == 0 || after == nil || upTo != nil && bytes.Compare(after, upTo) > 0 {
				upTo = after
			}
		}
		if begun > 0 && (upTo == nil || bytes.Compare(key, upTo) < 0) {
			beside--
		}
	}
	return beside > len(wants)
}

// holds reports whether a bag may begin at a stub. held ascends.
func (q *question) holds(h avlstar.Hash) bool {
	_, is := slices.BinarySearchFunc(q.held, [32]byte(h), compareHashes)
	return is
}

func compareHashes(a, b [32]byte) int { return bytes.Compare(a[:], b[:]) }

// askOf is a question of nobody in particular, to judge an answer by.
func askOf(wants []dsm.Want) ask.Ask { return ask.Ask{Wants: wants} }
