package source

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/ask"
	"github.com/starling-kv/starling/dsm/feed"
	"github.com/starling-kv/starling/transport"
)

// Options are what a Source is made with.
type Options struct {
	Logger    log.Logger // nil: nothing is logged
	Ranges    *dsm.Ranges
	Addresses map[dsm.Node]transport.Address // of all nodes of Ranges
	Dialer    transport.Dialer
	Ask       ask.Policy  // zero: ask.DefaultPolicy
	Feed      feed.Policy // zero: feed.DefaultPolicy
	Metrics   *Metrics    // nil: NopMetrics
	// Others returns connections to validators and nodes in local mode, which answer Witness and
	// Upper from what they hold, in the order in which they are to be asked. They are asked where
	// storage nodes bring nothing, or nothing soon. nil: there are none.
	Others func() []transport.Conn
}

// Source implements app.Source on storage nodes, and sends them the updates of blocks. Its methods
// may be called concurrently, but for Begin and Committed, which follow one another.
type Source struct {
	o     Options
	began time.Time // time 0 of both machines
	ctx   context.Context
	end   context.CancelFunc
	wg    sync.WaitGroup
	peers map[dsm.Node]*peer
	known *known
	liars liars
	gone  gone

	others  others
	asking  asking
	feeding feeding
}

// ErrClosed: the Source was closed.
var ErrClosed = errors.New("the connections to the storage nodes are closed")

// New returns a Source that begins to connect to all nodes. Close ends it.
func New(o Options) (*Source, error) {
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
		return nil, errors.New("source: ranges and a dialer are needed")
	}
	s := &Source{o: o, began: time.Now(), peers: map[dsm.Node]*peer{}, known: newKnown(o.Ranges)}
	for _, n := range o.Ranges.Nodes() {
		a, has := o.Addresses[n]
		if !has {
			return nil, fmt.Errorf("source: no address of storage node %s", n)
		}
		s.peers[n] = newPeer(s, n, a)
	}
	if err := s.feeding.check(s); err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	s.others.begin(s)
	s.ctx, s.end = context.WithCancel(context.Background())
	s.asking.begin(s)
	for _, n := range o.Ranges.Nodes() {
		s.wg.Go(s.peers[n].run)
	}
	return s, nil
}

// Close ends all fetches, sends nothing more, and closes the connections. It waits for all of that.
func (s *Source) Close() error {
	s.end()
	s.asking.close()
	s.feeding.close()
	s.wg.Wait()
	return nil
}

// now is the machines' time.
func (s *Source) now() time.Duration { return time.Since(s.began) }
