package clientbench

import (
	"context"
	"fmt"
	"sync"

	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/client"
)

// crowd is a set of watchers. Each watcher checks that no event is missing or out of order.
type crowd struct {
	load   *changes
	cancel context.CancelCauseFunc
	ctx    context.Context //nolint:containedctx // ends with the first failure
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		seen    []int // the next change that each watcher expects
		events  int
		changed chan struct{} // closed and replaced when a watcher sees an event
	}
}

// gather starts watchers of the changes that load writes from now on. load must not be writing.
func gather(ctx context.Context, o WatchOptions, load *changes) (*crowd, error) {
	c := &crowd{load: load}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.mu.changed = make(chan struct{})
	var shared *client.Client
	for i := range o.Watchers + o.All {
		own := shared
		if own == nil {
			var err error
			if own, err = client.Dial(ctx, load.n.RPCs(), client.WithChainID(network.ChainID)); err != nil {
				c.dismiss()
				return nil, err
			}
			if o.Shared {
				shared = own
			}
		}
		option, next, step := client.WatchKey(Key(i)), i, o.Watchers
		if i >= o.Watchers {
			option, next, step = client.WatchRange([]byte(keyPrefix), client.PrefixEnd([]byte(keyPrefix))), 0, 1
		}
		if behind := load.next - next; behind > 0 {
			next += (behind + step - 1) / step * step
		}
		w, err := own.Watch(ctx, nil, option)
		if err != nil {
			c.dismiss()
			return nil, err
		}
		c.mu.seen = append(c.mu.seen, next)
		c.wg.Go(func() {
			if err := c.watch(w, i, next, step); err != nil {
				c.cancel(fmt.Errorf("watcher %d: %w", i, err))
			}
		})
	}
	return c, nil
}

// watch takes events until the crowd is dismissed.
func (c *crowd) watch(w *client.Watcher, i, next, step int) error {
	for {
		e, err := w.Next(c.ctx)
		if c.ctx.Err() != nil {
			return nil //nolint:nilerr // the crowd was dismissed
		}
		if err != nil {
			return err
		}
		got, err := number(e.Value)
		if err != nil {
			return err
		}
		if got != next {
			return fmt.Errorf("got change %d, want change %d", got, next)
		}
		next += step
		c.mu.Lock()
		c.mu.seen[i] = next
		c.mu.events++
		close(c.mu.changed)
		c.mu.changed = make(chan struct{})
		c.mu.Unlock()
	}
}

// wait waits until all watchers have seen all changes, and returns the number of events.
func (c *crowd) wait(ctx context.Context) (int, error) {
	for {
		c.mu.Lock()
		done, changed := true, c.mu.changed
		for _, next := range c.mu.seen {
			done = done && next >= c.load.next
		}
		events := c.mu.events
		c.mu.Unlock()
		if done {
			return events, nil
		}
		select {
		case <-changed:
		case <-c.ctx.Done():
			return 0, context.Cause(c.ctx)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// dismiss stops all watchers.
func (c *crowd) dismiss() {
	c.cancel(nil)
	c.wg.Wait()
}
