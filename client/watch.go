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
	// maxQueryPrefix, in bytes, keeps the query of the subscription below CometBFT's limit of 512
	// bytes (rpc/core/events.go, maxQueryLength).
	maxQueryPrefix = 200
)

// Watch delivers all future changes of keys that start with prefix (empty: all keys), in the order
// of the chain. When the connection is lost it subscribes again, as often as necessary, and then
// delivers an event with Missed. The channel is closed when ctx ends. The caller must keep
// receiving: a node drops subscribers that do not.
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

// watchQuery returns a query that lets the node filter as far as it can: it knows "contains", but
// not "starts with".
func watchQuery(prefix []byte) string {
	if len(prefix) == 0 {
		return attrKey + " EXISTS"
	}
	return fmt.Sprintf("%s CONTAINS '%x'", attrKey, prefix[:min(len(prefix), maxQueryPrefix)])
}

// forward delivers the changes of source until it is closed (true) or ctx ends (false).
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

// send reports whether it could send before ctx ended.
func send(ctx context.Context, out chan<- Event, event Event) bool {
	select {
	case out <- event:
		return true
	case <-ctx.Done():
		return false
	}
}

// resubscribe subscribes again, with growing pauses, until it succeeds. It returns nil when ctx
// ends.
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
