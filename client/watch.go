package client

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"time"

	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/cometbft/cometbft/types"
)

// Event is a change of one key by one transaction.
type Event struct {
	Height int64
	TxHash []byte
	Key    []byte // of a grant, validator or admin: the key of its record, which starts with 0x00
	Kind   string // put, delete, grant, revoke, validator or admin

	// Missed means that the connection was lost and restored, and events in between may be missing.
	// The other fields are empty. A caller that keeps a copy of the keys must read them again.
	Missed bool
}

const (
	eventType = "starling"
	attrKey   = eventType + ".key"

	firstPause = 100 * time.Millisecond
	longPause  = 5 * time.Second
	// subscribeTimeout limits a subscription at one node.
	subscribeTimeout = 3 * time.Second
	// The heights of nodes are compared at each interval of guardEvery. A node whose height has not
	// changed for standstill, while that of another has grown, is left.
	guardEvery = 3 * time.Second
	standstill = 10 * time.Second
	// maxQueryPrefix, in bytes, keeps the query of the subscription below CometBFT's limit of 512
	// bytes (rpc/core/events.go, maxQueryLength).
	maxQueryPrefix = 200
)

// Watch delivers all future changes of keys that start with prefix (empty: all keys), in the order
// of the chain. When its node is lost, falls silent or stops to follow the chain, it subscribes
// again, at another node if there is one, as often as necessary, and then delivers an event with
// Missed. The channel is closed when ctx ends. The caller must keep receiving: a node drops
// subscribers that do not.
func (c *Client) Watch(ctx context.Context, prefix []byte) (<-chan Event, error) {
	query := watchQuery(prefix)
	source, err := c.subscribe(ctx, query, nil)
	if err != nil {
		return nil, err
	}
	out := make(chan Event)
	go func() {
		defer close(out)
		for {
			more := forward(ctx, source, prefix, out)
			source.cancel()
			if !more {
				return
			}
			if source = c.resubscribe(ctx, query, source.from); source == nil {
				return
			}
			if !send(ctx, out, Event{Missed: true}) {
				source.cancel()
				return
			}
		}
	}()
	return out, nil
}

// feed is a subscription at a node.
type feed struct {
	from   *endpoint
	life   context.Context // ends with the subscription
	events <-chan ctypes.ResultEvent
	cancel context.CancelFunc
}

// subscribe subscribes at the best node that lets it; at last only if there is no other.
func (c *Client) subscribe(ctx context.Context, query string, last *endpoint) (*feed, error) {
	c.pool.refresh(ctx)
	t := newTally("subscribe")
	nodes := c.pool.order(nil, []*endpoint{last})
	if last != nil {
		nodes = append(nodes, last)
	}
	for _, e := range nodes {
		t.asked(e)
		f, err := c.subscribeAt(ctx, e, query)
		if err == nil {
			return f, nil
		}
		t.failed(e, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, t.error(ctx.Err())
}

func (c *Client) subscribeAt(ctx context.Context, e *endpoint, query string) (*feed, error) {
	life, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(subscribeTimeout, cancel)
	events, err := call(life, c.pool, e, false, func(_ context.Context, e *endpoint) (<-chan ctypes.ResultEvent, error) {
		return e.Events(life, query)
	})
	if !timer.Stop() && ctx.Err() == nil {
		err = fmt.Errorf("%w for %v", errSilent, subscribeTimeout)
		e.update(func(r *record) { r.lose(err) })
	}
	if err != nil {
		cancel()
		return nil, err
	}
	if c.pool.nodes > 1 {
		go c.guard(life, e, cancel)
	}
	return &feed{e, life, events, cancel}, nil
}

// guard ends a subscription, by cancel, when its node stops to follow the chain: the connection is
// up, but the node's height stays the same for longer than standstill, while that of another node
// has grown. It returns when ctx ends.
func (c *Client) guard(ctx context.Context, e *endpoint, cancel context.CancelFunc) {
	height, since := int64(0), time.Now()
	others := make(map[*endpoint]int64) // their heights when e was seen to grow last
	for pause(ctx, guardEvery) == nil {
		now, err := c.heightOf(ctx, e)
		if err == nil && now > height {
			height, since = now, time.Now()
			clear(others)
		}
		grew := false
		for _, other := range c.pool.others(e) {
			theirs, err := c.heightOf(ctx, other)
			before, seen := others[other]
			switch {
			case err != nil:
			case !seen:
				others[other] = theirs
			case theirs > before:
				grew = true
			}
		}
		if grew && time.Since(since) >= standstill {
			e.isBehind()
			cancel()
			return
		}
	}
}

// heightOf asks a node for its height.
func (c *Client) heightOf(ctx context.Context, e *endpoint) (int64, error) {
	limited, cancel := context.WithTimeout(ctx, guardEvery)
	defer cancel()
	return call(limited, c.pool, e, true, func(ctx context.Context, e *endpoint) (int64, error) {
		status, err := e.Status(ctx)
		if err != nil {
			return 0, err
		}
		return status.SyncInfo.LatestBlockHeight, nil
	})
}

// watchQuery returns a query that lets the node filter as far as it can: it knows "contains", but
// not "starts with".
func watchQuery(prefix []byte) string {
	if len(prefix) == 0 {
		return attrKey + " EXISTS"
	}
	return fmt.Sprintf("%s CONTAINS '%x'", attrKey, prefix[:min(len(prefix), maxQueryPrefix)])
}

// forward delivers the changes of a subscription until it is lost (true) or ctx ends (false).
func forward(ctx context.Context, source *feed, prefix []byte, out chan<- Event) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-source.life.Done():
			return ctx.Err() == nil
		case event, ok := <-source.events:
			if !ok {
				return ctx.Err() == nil
			}
			for _, change := range changes(event, prefix) {
				if !send(ctx, out, change) {
					return false
				}
			}
		}
	}
}

// send reports whether it could send before ctx ended.
func send(ctx context.Context, out chan<- Event, event Event) bool {
	select {
	case out <- event:
		return true
	case <-ctx.Done():
		return false
	}
}

// resubscribe subscribes again, with growing pauses, until it succeeds, at the node that was lost
// only if no other lets it. It returns nil when ctx ends.
func (c *Client) resubscribe(ctx context.Context, query string, from *endpoint) *feed {
	for wait := firstPause; ; wait = min(2*wait, longPause) {
		if f, err := c.subscribe(ctx, query, from); err == nil {
			return f
		}
		if pause(ctx, wait) != nil {
			return nil
		}
	}
}

// changes reads the events of a transaction. It skips those that are not as the application writes
// them, since events carry no proof anyway.
func changes(event ctypes.ResultEvent, prefix []byte) []Event {
	data, ok := event.Data.(types.EventDataTx)
	if !ok {
		return nil
	}
	var found []Event
	hash := types.Tx(data.Tx).Hash()
	for _, e := range data.Result.Events {
		if e.Type != eventType {
			continue
		}
		change := Event{Height: data.Height, TxHash: hash}
		for _, attribute := range e.Attributes {
			switch attribute.Key {
			case "key":
				key, err := hex.DecodeString(attribute.Value)
				if err != nil {
					key = nil
				}
				change.Key = key
			case "kind":
				change.Kind = attribute.Value
			}
		}
		if len(change.Key) > 0 && bytes.HasPrefix(change.Key, prefix) {
			found = append(found, change)
		}
	}
	return found
}

// pause waits for d, or until ctx ends, whose error it returns then.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func basicAuth(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}
