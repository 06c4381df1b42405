package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/event"
	"github.com/starling-kv/starling/tx"
)

const (
	// proveAtOnce is how many events are proved at a time.
	proveAtOnce = 16
	// restBytes of a block are asked for at once, restAnswers times, to see whether keys change
	// again in a block inside which an answer ends.
	restBytes, restAnswers = 512 << 10, 128
)

// prove marks those events as Proved that proved reads agree with. They are what a node answered,
// up to next. ErrUnproved: one says what is false.
func (w *Watcher) prove(ctx context.Context, e *endpoint, events []Event, next Token) error {
	rest, whole, err := w.rest(ctx, e, events, next)
	if err != nil {
		return err
	}
	cut := next.Height
	if whole {
		cut = 0
	}
	return w.c.proveEvents(ctx, events, rest, cut)
}

// rest asks the node for what follows in the block inside which its answer ends: a proved read
// shows what a key has after the whole block. It returns the last later event of each key that the
// answer has events of in that block. whole: the node has shown all of the block.
func (w *Watcher) rest(ctx context.Context, e *endpoint, events []Event, next Token) (rest []Event, whole bool, err error) {
	later := map[string]*Event{}
	var least, most []byte
	for i := len(events) - 1; i >= 0 && events[i].Height == next.Height; i-- {
		key := events[i].Key
		if later[string(key)] = nil; least == nil || bytes.Compare(key, least) < 0 {
			least = key
		}
		if bytes.Compare(key, most) > 0 {
			most = key
		}
	}
	if len(later) == 0 {
		return nil, true, nil
	}
	r := event.Request{From: next, Keys: event.Keys{Start: least, End: w.request.Keys.End}, MaxBytes: restBytes}
	if len(most) < avlstar.MaxKeyBytes {
		r.Keys.End = append(bytes.Clone(most), 0)
	}
	for range restAnswers {
		answer, err := w.query(ctx, e, r)
		switch {
		case err != nil:
			return nil, false, err
		case answer.Compacted(r.From):
			return nil, false, &CompactedError{w.request.From, answer.Least}
		case answer.Next == r.From:
			return nil, false, fmt.Errorf("%w: the events of block %d end at %v", ErrUnproved, next.Height, r.From)
		}
		for i := range answer.Events {
			a := &answer.Events[i]
			if _, asked := later[string(a.Key)]; asked && a.Height == next.Height {
				later[string(a.Key)] = &Event{Height: a.Height, Index: a.Index, Key: bytes.Clone(a.Key), Value: bytes.Clone(a.Value)}
			}
		}
		if whole = answer.Next.Height > next.Height; whole {
			break
		}
		r.From = answer.Next
	}
	for _, e := range later {
		if e != nil {
			rest = append(rest, *e)
		}
	}
	return rest, whole, nil
}

// proveEvents marks those events as Proved that proved reads agree with. rest is what follows them,
// as far as it is of their keys and of the same block. ErrUnproved: one says what is false. Of the
// block at height cut (0: none), which nobody has seen to its end, that does not follow: events
// that a read disagrees with are not marked, and that is all.
func (c *Client) proveEvents(ctx context.Context, events, rest []Event, cut int64) error {
	type state struct {
		height int64
		key    string
	}
	last := map[state]*Event{}
	for _, list := range [][]Event{events, rest} {
		for i := range list {
			last[state{list[i].Height, string(list[i].Key)}] = &list[i]
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	room := make(chan struct{}, proveAtOnce)
	var wg sync.WaitGroup
	for _, e := range last {
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			if ctx.Err() != nil {
				return
			}
			err := c.proveEvent(ctx, e)
			if err != nil && !(errors.Is(err, errDisproved) && e.Height == cut) {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

var errDisproved = fmt.Errorf("%w: a proved read disagrees", ErrUnproved)

func (c *Client) proveEvent(ctx context.Context, e *Event) error {
	v, err := c.after(ctx, e)
	switch {
	case err != nil:
		return err
	case v == nil:
		return nil
	case !bytes.Equal(v.Value, e.Value):
		return fmt.Errorf("%w: event %d.%d says of key %q what the state after block %d disproves", errDisproved, e.Height, e.Index, shorten(e.Key), e.Height)
	}
	e.Proved = true
	return nil
}

// after reads the key of an event at its height; nil: no node answers that any more. Nodes refuse a
// height that they do not have yet in the same way, so that the latest state tells which it is.
func (c *Client) after(ctx context.Context, e *Event) (*Value, error) {
	for again := false; ; again = true {
		v, err := c.Get(ctx, e.Key, AtHeight(e.Height))
		if !errors.Is(err, &tx.Error{Code: tx.CodeUnknownHeight}) {
			return v, err
		}
		if again {
			return nil, nil
		}
		latest, err := c.Get(ctx, e.Key)
		if err != nil {
			return nil, err
		}
		if latest.Height < e.Height {
			return nil, fmt.Errorf("%w: event %d.%d is of a later block than %d, the latest that is proved", errBehind, e.Height, e.Index, latest.Height)
		}
	}
}
