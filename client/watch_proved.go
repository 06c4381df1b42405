package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

const (
	// proveAtOnce is the number of events that are verified concurrently.
	proveAtOnce = 16
	// If an answer ends inside a block, the rest of the block is requested, in up to restAnswers
	// answers of restBytes, to see whether its keys change again.
	restBytes, restAnswers = 512 << 10, 128
)

// prove marks the events that agree with proved reads as Proved. They are the answer of a node, up
// to next. It fails with ErrUnproved if an event is false.
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

// rest requests the events that follow in the block inside which the answer ends, because a proved
// read shows a key's value after the whole block. For each key of the answer's events in that block
// it returns the last later event. whole: the node has sent the whole block.
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

// proveEvents marks the events that agree with proved reads as Proved. rest contains later events
// of their keys in the same block. It fails with ErrUnproved if an event is false. The block at
// height cut (0: none) was not received completely, so there a disagreeing read proves nothing:
// such events are only not marked.
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
		return fmt.Errorf("%w: event %d.%d of key %q contradicts the state after block %d", errDisproved, e.Height, e.Index, shorten(e.Key), e.Height)
	}
	e.Proved = true
	return nil
}

// after reads the key of an event at its height; nil: no node has that state any more. Nodes refuse
// a height that they have not reached with the same error, so the latest state is read to
// distinguish the two cases.
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
			return nil, fmt.Errorf("%w: event %d.%d is in a later block than %d, the latest that is proved", errBehind, e.Height, e.Index, latest.Height)
		}
	}
}
