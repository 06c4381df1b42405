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

	// Missed stands alone: the connection was lost and is there again, and events between may never be delivered. Whoever keeps a
	// copy of the keys reads them anew.
	Missed bool
}

const (
	eventType = "starling"
	attrKey   = eventType + ".key"

	firstPause = 100 * time.Millisecond
	longPause  = 5 * time.Second
	// maxQueryPrefix keeps the subscription's query below CometBFT's limit of 512 bytes (rpc/core/events.go, maxQueryLength).
	maxQueryPrefix = 200
)

// Watch delivers changes of keys that start with prefix (empty: all), from now on, in the order of the chain. When the node is
// lost it subscribes again, as often as it takes, and says so by an event with Missed. The channel is closed when ctx ends. The
// caller must keep receiving: a node drops subscribers that do not.
func (c *Client) Watch(ctx context.Context, prefix []byte) (<-chan Event, error) {
	query := watchQuery(prefix)
	source, err := c.primary.Events(ctx, query)
	if err != nil {
		return nil, err
	}
	out := make(chan Event)
	go func() {
		defer close(out)
		for {
			if !forward(ctx, source, prefix, out) {
				return
			}
			if source = c.resubscribe(ctx, query); source == nil {
				return
			}
			if !send(ctx, out, Event{Missed: true}) {
				return
			}
		}
	}()
	return out, nil
}

// watchQuery lets the node filter what it can: it knows "contains", not "starts with".
func watchQuery(prefix []byte) string {
	if len(prefix) == 0 {
		return attrKey + " EXISTS"
	}
	return fmt.Sprintf("%s CONTAINS '%x'", attrKey, prefix[:min(len(prefix), maxQueryPrefix)])
}

// forward passes events on until the source ends (true) or ctx does (false).
func forward(ctx context.Context, source <-chan ctypes.ResultEvent, prefix []byte, out chan<- Event) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case event, ok := <-source:
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

func send(ctx context.Context, out chan<- Event, event Event) bool {
	select {
	case out <- event:
		return true
	case <-ctx.Done():
		return false
	}
}

// resubscribe tries until it succeeds; nil when ctx ends.
func (c *Client) resubscribe(ctx context.Context, query string) <-chan ctypes.ResultEvent {
	for wait := firstPause; ; wait = min(2*wait, longPause) {
		if source, err := c.primary.Events(ctx, query); err == nil {
			return source
		}
		if pause(ctx, wait) != nil {
			return nil
		}
	}
}

// changes reads a transaction's events. What is not as our application writes it is left out: events carry no proof anyway.
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

// pause waits, or returns ctx's error as soon as it ends.
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
