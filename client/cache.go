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
	"github.com/starling-kv/starling/internal/sleep"
)

// Cache is a copy of a range of keys that trusts no node: a range read with proofs at one height
// supplied its whole contents. Events only tell the cache when to read again.
//
//	Watch ──► some key has changed in block H ──► Range at a later height, proved ──► the copy
//
// A node that omits events delays the copy until the next event or the next call of Refresh; it
// cannot falsify the copy. The methods must not be called concurrently.
type Cache struct {
	c          *Client
	start, end []byte
	watcher    *Watcher // nil: read again, regardless of events
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

// Refresh reads the whole range again, regardless of events.
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
	// Always a new watcher: the old one may be past an event that this state does not include.
	w, err := k.c.Watch(ctx, nil, WatchRange(k.start, k.end), WatchFromHeight(state.Height+1))
	if err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	k.watcher = w
	return nil
}

// Wait waits for a change of the range and reads the range again. After an error, the next Wait
// reads without waiting, so that a change is not lost when reading it failed.
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
			continue // already read
		}
		began := time.Now()
		for wait := firstPoll; ; wait = min(2*wait, longPoll) {
			if err := k.Refresh(ctx); err != nil {
				k.watcher = nil // the event is consumed
				return err
			}
			// The node may be behind, or the event may belong to a block that does not exist.
			if k.state.Height >= e.Height || time.Since(began) > behindPatience {
				return nil
			}
			if err := sleep.For(ctx, wait); err != nil {
				return err
			}
		}
	}
}

// State returns the proved state of the copy.
func (k *Cache) State() State { return k.state }

// Get returns the value of a key of the range.
func (k *Cache) Get(key []byte) (value []byte, ok bool) {
	value, ok = k.values[string(key)]
	return bytes.Clone(value), ok
}

// Entries returns all keys and values, in ascending order. The caller must not modify them.
func (k *Cache) Entries() []avlstar.KV {
	entries := make([]avlstar.KV, 0, len(k.values))
	for _, key := range slices.Sorted(maps.Keys(k.values)) {
		entries = append(entries, avlstar.KV{Key: []byte(key), Value: k.values[key]})
	}
	return entries
}
