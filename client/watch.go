package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	rpcclient "github.com/cometbft/cometbft/rpc/client"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/internal/sleep"
)

// Token is a position in the event stream, where a watch continues: the event with this number in
// the block of this height. It is valid at any node of the chain.
type Token = event.Token

// ParseToken parses the text form of a token, HEIGHT.INDEX.
func ParseToken(s string) (Token, error) { return event.ParseToken(s) }

// Event is a change of one key by one operation of a transaction. A node may forge, change or omit
// events: see WatchVerified.
type Event struct {
	Height int64
	Index  uint32 // in the order of all events of its block
	TxHash []byte
	Key    []byte // of a grant, validator or admin: the key of its record, which starts with 0x00
	Kind   string // put, delete, or the kind of an admin's operation, such as grant
	Value  []byte // nil: the key was deleted

	// Previous is the value before the operation, with WatchPrevious. nil: there was none, or it is
	// Omitted, because the previous values of the block are too large in total, or because the node
	// does not have it: a node whose state is on storage nodes does not fetch long values that are
	// only written over.
	Previous []byte
	Omitted  bool

	// Proved, with WatchVerified: after the block the key has this value, or is absent. It does not
	// cover Previous, and is never set for an event that a later one of the block replaces.
	Proved bool
}

// Token returns the position after e.
func (e *Event) Token() Token { return (&event.Event{Height: e.Height, Index: e.Index}).Token() }

// CompactedError means that no node has the events from Token on any more. A program with a copy of
// the keys must read them again, at a height H, and watch from height H+1 on.
type CompactedError struct {
	Token Token
	Least int64 // lowest height from which one of the asked nodes has all events
}

func (e *CompactedError) Error() string {
	return fmt.Sprintf("the events from %v on are compacted: the lowest available height is %d", e.Token, e.Least)
}

// FutureError means that a watch was to begin more than 1,000 blocks above the newest one, or, with
// a token, more than a million.
type FutureError struct {
	Token  Token
	Newest int64 // highest height that a node reports
}

func (e *FutureError) Error() string {
	return fmt.Sprintf("no node has a block near %v, where the watch is to begin: the newest block is %d", e.Token, e.Newest)
}

// WatchOption changes what to watch, and how.
type WatchOption func(*Watcher)

// WatchFrom continues at a token: that of a Watcher, or of the last event seen.
func WatchFrom(t Token) WatchOption {
	return func(w *Watcher) { w.request.From, w.ahead = t, maxTokenAhead }
}

// WatchFromHeight begins with the events of the block at this height, which need not exist yet: see
// FutureError.
func WatchFromHeight(height int64) WatchOption {
	return func(w *Watcher) { w.request.From, w.ahead = Token{Height: height}, maxAhead }
}

// WatchRange watches the keys in [start, end), instead of a prefix; an empty bound is open.
func WatchRange(start, end []byte) WatchOption {
	return func(w *Watcher) { w.request.Keys = event.Keys{Start: start, End: end} }
}

// WatchKey watches one key.
func WatchKey(key []byte) WatchOption {
	return WatchRange(key, append(append([]byte(nil), key...), 0))
}

// WatchPrevious delivers previous values.
func WatchPrevious() WatchOption { return func(w *Watcher) { w.request.Previous = true } }

// WatchVerified verifies events as far as possible: the last event of each key in a block is
// delivered only if it agrees with a proved read at that height; otherwise another node is asked.
// An event is delivered without Proved if no node answers reads at its height any more, or if the
// node does not send the rest of the block within 64 MiB. Events do not prove that none is missing:
// use a Cache for that.
func WatchVerified() WatchOption { return func(w *Watcher) { w.verified = true } }

const (
	// pollWait is how long a node may wait for an event, and silence how long it may be silent
	// before another node is asked.
	pollWait = 5 * time.Second
	silence  = 9 * time.Second
	// standstill is how long a watch stays at a node whose height does not change while that of
	// another node increases.
	standstill = 10 * time.Second
	// leadsAway is how long a watch stays at a node that reports to be ahead of all others.
	leadsAway = 30 * time.Second
	// maxAhead is how far above the newest block a watch from a height may begin: the nodes may be
	// behind the one that named the height. maxTokenAhead is that of a token, which comes from a
	// node: all others may have stalled since.
	maxAhead, maxTokenAhead = 1000, 1_000_000
	// statusTimeout limits the request for the height of another node.
	statusTimeout = 3 * time.Second

	firstPause = 100 * time.Millisecond
	longPause  = 5 * time.Second
	// verifiedBytes limits the size of an answer when each event is verified.
	verifiedBytes = 64 << 10
)

// Watcher delivers changes of keys in the order of the chain, each once. It keeps no state at a
// node: it requests more events when Next is called. Its methods must not be called concurrently.
type Watcher struct {
	c        *Client
	request  event.Request // From is the position after ready
	verified bool
	token    Token
	ready    []Event // not delivered yet
	at       *endpoint
	ahead    int64     // how far above the newest block it may begin
	head     int64     // height of the last block of which that node had the events
	mover    *endpoint // node whose answer changed request.From last
	since    time.Time // when request.From changed last
	seen     map[*endpoint]int64
	trusted  trusted
	// compacted is the time since when nodes report that the events are compacted. unsure: another
	// node, which may have them, was asked and did not answer.
	compacted time.Time
	unsure    bool
}

// trusted prevents a node from moving the watch past the end of the chain: see turnBack.
type trusted struct {
	covered   Token     // another node's height has reached it, or the caller has set it
	delivered Token     // position after the last event that Next returned
	mark      Token     // request.From at since; not covered yet
	marker    *endpoint // node whose answer moved request.From there
	since     time.Time // time of mark
	height    int64     // highest height of other nodes at that time; 0: unknown
}

// Watch watches the keys with a prefix (empty: all keys), from now on unless an option says
// otherwise. The error is that of all nodes, a *CompactedError or a *FutureError. The watch then
// continues as long as Next is called, at another node if its own is lost, silent or behind. A
// Watcher need not be closed.
func (c *Client) Watch(ctx context.Context, prefix []byte, options ...WatchOption) (*Watcher, error) {
	w := &Watcher{c: c, since: time.Now()}
	w.request.Keys = event.Keys{Start: prefix, End: PrefixEnd(prefix)}
	for _, o := range options {
		o(w)
	}
	if w.verified {
		if c.verifier == nil {
			return nil, errors.New("client: WatchVerified needs a client that verifies: see WithVerification")
		}
		w.request.MaxBytes = verifiedBytes
	}
	w.token = w.request.From
	w.trusted.covered = w.request.From
	from := w.request.From
	if err := w.poll(ctx, 0); err != nil {
		return nil, err
	}
	if err := w.checkFuture(ctx, from); err != nil {
		return nil, err
	}
	return w, nil
}

// checkFuture returns a *FutureError if from, where the caller wants to begin, is more than
// w.ahead above the newest block that a node has. A node that catches up may have such a block
// later, so there is no error then.
func (w *Watcher) checkFuture(ctx context.Context, from Token) error {
	least := from.Height - w.ahead
	if w.head >= least {
		return nil
	}
	newest := w.head
	for _, e := range w.c.pool.order(nil, nil) {
		height, err := w.c.heightOf(ctx, e)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			continue
		}
		if newest = max(newest, height); newest >= least || e.record().catchUp {
			return nil
		}
	}
	return &FutureError{Token: from, Newest: newest}
}

// Token returns the position where the watch continues: after the last event that Next returned, or
// later if there is no event in between.
func (w *Watcher) Token() Token { return w.token }

// Next returns the next event. It waits for one until ctx ends. Errors: that of ctx, and
// *CompactedError, which ends the watch. If a node does not answer, which may still have the
// events, Next waits for it for a while.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	for wait := firstPause; len(w.ready) == 0; {
		err := w.poll(ctx, pollWait)
		switch {
		case ctx.Err() != nil:
			return Event{}, ctx.Err()
		case errors.As(err, new(*CompactedError)):
			if w.compacted.IsZero() {
				w.compacted = time.Now()
			}
			if !w.unsure || time.Since(w.compacted) >= standstill {
				return Event{}, err
			}
		case err == nil:
			wait = firstPause
			continue
		}
		if err := sleep.For(ctx, wait); err != nil {
			return Event{}, err
		}
		wait = min(2*wait, longPause)
	}
	e := w.ready[0]
	w.ready = w.ready[1:]
	w.trusted.delivered = e.Token()
	if w.token = e.Token(); len(w.ready) == 0 {
		w.token = w.request.From
	}
	return e, nil
}

// poll requests more events once: from the node that answered last, or from others if that fails.
func (w *Watcher) poll(ctx context.Context, wait time.Duration) error {
	w.c.pool.refresh(ctx)
	w.turnBack()
	w.leave(ctx)
	t := newTally("watch")
	var compacted *CompactedError
	w.unsure = false
	nodes := w.c.pool.order(nil, []*endpoint{w.at})
	if w.at != nil {
		nodes = append([]*endpoint{w.at}, nodes...)
	}
	for _, e := range nodes {
		t.asked(e)
		err := w.pollAt(ctx, e, wait)
		if err == nil {
			w.compacted = time.Time{}
			return nil
		}
		t.failed(e, err)
		var c *CompactedError
		switch {
		case !errors.As(err, &c):
			w.unsure = true
		case compacted == nil || c.Least < compacted.Least:
			compacted = c
		}
		if w.at == e {
			w.at = nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	if compacted != nil {
		return compacted
	}
	return t.error(ctx.Err())
}

// query sends one request to a node.
func (w *Watcher) query(ctx context.Context, e *endpoint, r event.Request) (event.Answer, error) {
	return call(ctx, w.c.pool, e, false, func(ctx context.Context, e *endpoint) (event.Answer, error) {
		result, err := queryWaiting(ctx, e, event.Path, r.Encode())
		if err != nil {
			return event.Answer{}, err
		}
		answer, err := event.DecodeAnswer(result.Response.Value, &r)
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrUnproved, err)
		}
		return answer, err
	})
}

// queryWaiting queries a node that may wait for pollWait before it answers.
func queryWaiting(ctx context.Context, e *endpoint, path string, data []byte) (*ctypes.ResultABCIQuery, error) {
	limited, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	result, err := queryOne(limited, e, path, data, rpcclient.ABCIQueryOptions{})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w for %v", errSilent, silence)
	}
	return result, err
}

func eventOf(a *event.Event) Event {
	return Event{
		Height: a.Height, Index: a.Index, TxHash: a.Tx, Key: a.Key, Kind: a.Kind, Value: a.Value, Previous: a.Previous, Omitted: a.Omitted,
	}
}

// pollAt asks a node. If it answers, the watch stays at it.
func (w *Watcher) pollAt(ctx context.Context, e *endpoint, wait time.Duration) error {
	r := w.request
	r.WaitMS = uint32(wait / time.Millisecond)
	began := time.Now()
	answer, err := w.query(ctx, e, r)
	if err != nil {
		return err
	}
	if answer.Compacted(r.From) {
		return &CompactedError{r.From, answer.Least}
	}
	events := make([]Event, len(answer.Events))
	for i := range answer.Events {
		events[i] = eventOf(&answer.Events[i])
	}
	if w.verified {
		if err := w.prove(ctx, e, events, answer.Next); err != nil {
			if errors.Is(err, ErrUnproved) {
				e.isDoubted()
			}
			return err
		}
	}
	w.at, w.head = e, answer.Head
	w.ready = events
	if answer.Next != w.request.From {
		w.request.From, w.since, w.seen = answer.Next, time.Now(), nil
		w.mover = e
	}
	if len(events) == 0 {
		w.token = answer.Next
		if wait > 0 && answer.Next == r.From && time.Since(began) < wait/2 {
			return sleep.For(ctx, firstPause) // the node does not wait for events
		}
	}
	return nil
}

// leave makes the watch leave its node if no block has arrived from it for standstill, while the
// height of another node has increased.
func (w *Watcher) leave(ctx context.Context) {
	if w.at == nil || w.c.pool.nodes == 1 || time.Since(w.since) < standstill/2 {
		return
	}
	first := w.seen == nil
	if first {
		w.seen = map[*endpoint]int64{}
	}
	grew := false
	for _, other := range w.c.pool.others(w.at) {
		height, err := w.c.heightOf(ctx, other)
		before, seen := w.seen[other]
		switch {
		case err != nil:
		case !seen:
			w.seen[other] = height
		case height > before:
			grew = true
		}
	}
	if grew && time.Since(w.since) >= standstill {
		w.at.isBehind()
		w.at, w.since, w.seen = nil, time.Now(), nil
	}
}

// turnBack undoes an answer that has moved the watch past a block that no other node has reached
// after leadsAway, although their heights have increased: no more events would arrive. It uses the
// heights that nodes report to the pool from time to time.
func (w *Watcher) turnBack() {
	t := &w.trusted
	highest := int64(0)
	for _, other := range w.c.pool.others(t.marker) {
		highest = max(highest, other.record().height)
	}
	switch {
	case t.mark == (Token{}) || highest > 0 && t.mark.Height <= highest+1:
		if t.covered.Before(t.mark) {
			t.covered = t.mark
		}
		t.mark, t.marker, t.since, t.height = w.request.From, w.mover, time.Now(), 0
		return
	case t.height == 0: // highest excluded the previous marker, not this one
		t.height = highest
		return
	case time.Since(t.since) < leadsAway || highest <= t.height:
		return
	}
	safe := t.covered
	if safe.Before(t.delivered) && t.delivered.Height <= highest+1 {
		safe = t.delivered
	}
	if safe.Height == 0 {
		safe.Height = highest + 1
	}
	t.mark = Token{}
	if t.marker != nil && safe.Before(w.request.From) {
		w.request.From, w.token = safe, safe
		t.marker.isDoubted()
		if w.since, w.seen = time.Now(), nil; w.at == t.marker {
			w.at = nil
		}
	}
}

// heightOf requests the height of a node.
func (c *Client) heightOf(ctx context.Context, e *endpoint) (int64, error) {
	limited, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return call(limited, c.pool, e, true, func(ctx context.Context, e *endpoint) (int64, error) {
		status, err := e.Status(ctx)
		if err != nil {
			return 0, err
		}
		e.update(func(r *record) { r.catchUp = status.SyncInfo.CatchingUp })
		return status.SyncInfo.LatestBlockHeight, nil
	})
}
