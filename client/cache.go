package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/starling-kv/starling/avlstar"
)

// Cache is a copy of a range of keys that believes no node: what it holds was proved, all of it, by
// the pages of a range at one height. Events only say when it is time to read again.
//
//	Watch ──► some key has changed in block H ──► Range at a later height, proved ──► the copy
//
// A node that leaves out events delays the copy until the next one, or the next call with refresh;
// it cannot make it false. Its methods must not be called concurrently.
type Cache struct {
	c          *Client
	start, end []byte
	watcher    *Watcher // nil: it is to be read anew, whatever events say
	values     map[string][]byte
	state      State
}

// NewCache reads the range [start, end), which should fit into memory several times. The client
// must verify.
func (c *Client) NewCache(ctx context.Context, start, end []byte) (*Cache, error) {
	if c.verifier == nil {
		return nil, errors.New("client: a cache needs a client that verifies: see WithVerification")
	}
	k := &Cache{c: c, start: start, end: end}
	return k, k.Refresh(ctx)
}

// Refresh reads the whole range anew, whether or not events say that it has changed.
func (k *Cache) Refresh(ctx context.Context) error {
	values := map[string][]byte{}
	var state State
	for start, options := k.start, []ReadOption(nil); ; {
		page, err := k.c.Range(ctx, start, k.end, options...)
		if err != nil {
			return fmt.Errorf("cache: %w", err)
		}
		for _, e := range page.Entries {
			values[string(e.Key)] = e.Value
		}
		if state = page.State; page.Next == nil {
			break
		}
		start, options = page.Next, []ReadOption{AtHeight(page.Height)}
	}
	k.values, k.state = values, state
	// Always anew: the watcher may be past an event that this state does not have yet.
	w, err := k.c.Watch(ctx, nil, WatchRange(k.start, k.end), WatchFromHeight(state.Height+1))
	if err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	k.watcher = w
	return nil
}

// Wait waits for a change of the range, and reads it anew. After an error it does that without
// waiting, so that the change is not lost whose reading has failed.
func (k *Cache) Wait(ctx context.Context) error {
	if k.watcher == nil {
		return k.Refresh(ctx)
	}
	for {
		e, err := k.watcher.Next(ctx)
		switch {
		case errors.As(err, new(*CompactedError)):
			k.watcher = nil
		case err != nil:
			return err
		case e.Height <= k.state.Height:
			continue // it was read already
		}
		began := time.Now()
		for wait := firstPoll; ; wait = min(2*wait, longPoll) {
			if err := k.Refresh(ctx); err != nil {
				k.watcher = nil // the event is consumed
				return err
			}
			// A node may be behind, or the event of a block that does not exist.
			if k.state.Height >= e.Height || time.Since(began) > behindPatience {
				return nil
			}
			if err := pause(ctx, wait); err != nil {
				return err
			}
		}
	}
}

// State returns the proved state that the copy is of.
func (k *Cache) State() State { return k.state }

// Get returns the value of a key of the range.
func (k *Cache) Get(key []byte) (value []byte, ok bool) {
	value, ok = k.values[string(key)]
	return bytes.Clone(value), ok
}

// Entries returns all keys and values, in ascending order. They are the cache's own.
func (k *Cache) Entries() []avlstar.KV {
	entries := make([]avlstar.KV, 0, len(k.values))
	for _, key := range slices.Sorted(maps.Keys(k.values)) {
		entries = append(entries, avlstar.KV{Key: []byte(key), Value: k.values[key]})
	}
	return entries
}
