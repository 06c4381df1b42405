package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client/ask"
	"github.com/starling-kv/starling/dsm/client/feed"
	"github.com/starling-kv/starling/transport"
)

// Options configure a Client.
type Options struct {
	Logger  log.Logger // nil: nothing is logged
	Map     Map
	Dialer  transport.Dialer
	Ask     ask.Policy  // zero: ask.DefaultPolicy
	Feed    feed.Policy // zero: feed.DefaultPolicy
	Metrics *Metrics    // nil: NopMetrics
	// Helpers returns connections to validators and full-state nodes, in order of preference. They
	// answer Witness and Upper from their own state. They are asked when storage nodes have no
	// answer or are slow. nil: there are none.
	Helpers func() []transport.Conn
}

// Client implements app.Source with storage nodes, and sends them block updates. Its methods may be
// called concurrently, except Begin and Committed, which the caller must serialize.
type Client struct {
	o     Options
	began time.Time // time 0 of all machines
	ctx   context.Context
	end   context.CancelFunc
	wg    sync.WaitGroup
	liars liars
	gone  gone

	current  atomic.Pointer[layout]
	next     atomic.Pointer[Map] // set by SetMap until a version has its edges
	edges    atomic.Pointer[[][]byte]
	changing sync.Mutex // held while current, next or edges change
	feeding  feeding
}

// Map says which nodes keep which ranges.
type Map struct {
	Ranges *dsm.Ranges
	// Next are ranges that will replace some of Ranges, as (*dsm.Ranges).CheckNext accepts them.
	// Their nodes get updates, but no block waits for them, and they are not asked for witnesses.
	Next      []dsm.Placement
	Addresses map[dsm.NodeID]transport.Address // of all nodes
}

// layout is what follows from a Map. Its maps do not change.
type layout struct {
	Map
	peers  map[dsm.NodeID]*peer
	asking *asking
	before *layout // the previous one, until its fetches have ended; guarded by Client.changing
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
	if o.Dialer == nil {
		return nil, errors.New("storage nodes: a dialer is needed")
	}
	c := &Client{o: o, began: time.Now()}
	c.ctx, c.end = context.WithCancel(context.Background())
	c.feeding.begin(c)
	if err := c.SetMap(o.Map); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// SetMap replaces the map of the ranges, while blocks are made and fetches run. If the map has new
// edges (Edges), it counts from the first block whose version has the paths to them; until then
// another call replaces it. Fetches in progress end with the previous map, and the updates of
// ranges that stay are kept. An error changes nothing; it wraps feed.ErrPolicy, dsm.ErrRanges or
// ErrClosed, or names a node without an address.
func (c *Client) SetMap(m Map) error {
	if err := c.check(m); err != nil {
		return fmt.Errorf("storage nodes: %w", err)
	}
	c.changing.Lock()
	defer c.changing.Unlock()
	if c.ctx.Err() != nil {
		return ErrClosed
	}
	c.next.Store(nil)
	if old := c.layout(); old != nil && c.feeding.hasBegun() {
		edges := old.edges()
		have := len(edges)
		if edges = dsm.AscendingKeys(append(edges, m.edges()...)); len(edges) > have {
			c.next.Store(&m)
			c.edges.Store(&edges)
			return nil
		}
	}
	c.use(m)
	return nil
}

// check reports whether a map is valid.
func (c *Client) check(m Map) error {
	if m.Ranges == nil {
		return errors.New("no ranges")
	}
	if err := m.Ranges.CheckNext(m.Next); err != nil {
		return err
	}
	if err := c.o.Feed.Check(m.Ranges, m.Next); err != nil {
		return err
	}
	for _, n := range m.nodes() {
		if _, has := m.Addresses[n]; !has {
			return fmt.Errorf("no address of storage node %s", n)
		}
	}
	return nil
}

// nodes returns the names of all nodes, in order.
func (m Map) nodes() []dsm.NodeID {
	names := m.Ranges.Nodes()
	for _, s := range m.Next {
		names = append(names, s.Replicas...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// edges returns the keys at which ranges begin or end, ascending.
func (m Map) edges() [][]byte { return m.Ranges.Edges(m.Next) }

// due returns the map that waits for the paths to its edges, if a version has them.
func (c *Client) due(v *avlstar.Version) *Map {
	m := c.next.Load()
	if m == nil {
		return nil
	}
	var wants []avlstar.Want
	for _, edge := range m.edges() {
		wants = append(wants, avlstar.Want{Key: edge})
	}
	if _, held := v.Missing(wants); len(held) > 0 {
		return nil
	}
	return m
}

// useDue replaces the map by one that was due, unless SetMap has replaced it meanwhile.
func (c *Client) useDue(m *Map) {
	c.changing.Lock()
	defer c.changing.Unlock()
	if c.ctx.Err() == nil && c.next.CompareAndSwap(m, nil) {
		c.use(*m)
	}
}

// use replaces the map. The caller holds changing.
func (c *Client) use(m Map) {
	old := c.layout()
	l := &layout{Map: m, peers: map[dsm.NodeID]*peer{}, before: old}
	var added []*peer
	for _, n := range m.nodes() {
		if old != nil && old.peers[n] != nil && old.peers[n].address == m.Addresses[n] {
			l.peers[n] = old.peers[n]
			continue
		}
		l.peers[n] = newPeer(c, n, m.Addresses[n])
		added = append(added, l.peers[n])
	}
	l.asking = newAsking(c, l)
	edges := m.edges()
	c.edges.Store(&edges)
	c.current.Store(l)
	c.feeding.change(m)
	for _, p := range added {
		c.wg.Go(p.run)
	}
	for at := l; at.before != nil; {
		if at.before.asking.isIdle() {
			at.before.asking.close()
			at.before = at.before.before
		} else {
			at = at.before
		}
	}
	if old == nil {
		return
	}
	for n, p := range old.peers {
		if l.peers[n] != p {
			p.end()
		}
	}
}

// layout returns the current layout.
func (c *Client) layout() *layout { return c.current.Load() }

// Close ends all fetches, stops sending, closes the connections and waits for its goroutines.
func (c *Client) Close() error {
	c.end()
	c.changing.Lock()
	for l := c.layout(); l != nil; l = l.before {
		l.asking.close()
	}
	c.changing.Unlock()
	c.feeding.close()
	c.wg.Wait()
	return nil
}

// now is the machines' time.
func (c *Client) now() time.Duration { return time.Since(c.began) }
