package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/starling-kv/starling/tx"
)

// proveAtOnce is how many events are proved at a time.
const proveAtOnce = 16

// proveEvents marks those events as Proved that proved reads agree with. ErrUnproved: one says what
// is false.
func (c *Client) proveEvents(ctx context.Context, events []Event) error {
	type state struct {
		height int64
		key    string
	}
	last := map[state]*Event{}
	for i := range events {
		last[state{events[i].Height, string(events[i].Key)}] = &events[i]
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
			if err := c.proveEvent(ctx, e); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func (c *Client) proveEvent(ctx context.Context, e *Event) error {
	v, err := c.Get(ctx, e.Key, AtHeight(e.Height))
	switch {
	case errors.Is(err, &tx.Error{Code: tx.CodeUnknownHeight}):
		return nil // it is too old
	case err != nil:
		return err
	case !bytes.Equal(v.Value, e.Value):
		return fmt.Errorf("%w: event %d.%d says of key %q what the state after block %d disproves", ErrUnproved, e.Height, e.Index, shorten(e.Key), e.Height)
	}
	e.Proved = true
	return nil
}
