package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client/ask"
	"github.com/starling-kv/starling/dsm/client/feed"
	"github.com/starling-kv/starling/transport"
)

// Options configure a Client.
type Options struct {
	Logger    log.Logger // nil: nothing is logged
	Ranges    *dsm.Ranges
	Addresses map[dsm.NodeID]transport.Address // of all nodes of Ranges
	Dialer    transport.Dialer
	Ask       ask.Policy  // zero: ask.DefaultPolicy
	Feed      feed.Policy // zero: feed.DefaultPolicy
	Metrics   *Metrics    // nil: NopMetrics
	// Helpers returns connections to validators and full-state nodes, in order of preference. They
	// answer Witness and Upper from their own state. They are asked when storage nodes have no
	// answer or are slow. nil: there are none.
	Helpers func() []transport.Conn
}

// Client implements app.Source with storage nodes, and sends them block updates. Its methods may be
// called concurrently, except Begin and Committed, which the caller must serialize.
type Client struct {
	o     Options
	began time.Time // time 0 of both machines
	ctx   context.Context
	end   context.CancelFunc
	wg    sync.WaitGroup
	peers map[dsm.NodeID]*peer
	liars liars
	gone  gone

	asking  asking
	feeding feeding
}

// ErrClosed: the Client was closed.
var ErrClosed = errors.New("the connections to the storage nodes are closed")

// New returns a Client that starts to connect to all nodes. The caller must call Close.
func New(o Options) (*Client, error) {
	if o.Logger == nil {
		o.Logger = log.NewNopLogger()
	}
	if o.Metrics == nil {
		o.Metrics = NopMetrics()
	}
	if o.Ask == (ask.Policy{}) {
		o.Ask = ask.DefaultPolicy()
	}
	if o.Feed == (feed.Policy{}) {
		o.Feed = feed.DefaultPolicy()
	}
	if o.Ranges == nil || o.Dialer == nil {
		return nil, errors.New("storage nodes: ranges and a dialer are needed")
	}
	c := &Client{o: o, began: time.Now(), peers: map[dsm.NodeID]*peer{}}
	for _, n := range o.Ranges.Nodes() {
		a, has := o.Addresses[n]
		if !has {
			return nil, fmt.Errorf("storage nodes: no address of storage node %s", n)
		}
		c.peers[n] = newPeer(c, n, a)
	}
	if err := c.feeding.check(c); err != nil {
		return nil, fmt.Errorf("storage nodes: %w", err)
	}
	c.ctx, c.end = context.WithCancel(context.Background())
	c.asking.begin(c)
	for _, n := range o.Ranges.Nodes() {
		c.wg.Go(c.peers[n].run)
	}
	return c, nil
}

// Close ends all fetches, stops sending, closes the connections and waits for its goroutines.
func (c *Client) Close() error {
	c.end()
	c.asking.close()
	c.feeding.close()
	c.wg.Wait()
	return nil
}

// now is the machines' time.
func (c *Client) now() time.Duration { return time.Since(c.began) }
