package fastsync

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

// PeersOptions are the options of NewPeers.
type PeersOptions struct {
	Logger    log.Logger
	Dialer    transport.Dialer
	Addresses []transport.Address                     // the operator's
	Self      transport.ID                            // the node's own: not dialled
	Banned    func(transport.ID, statesync.BanReason) // called once per peer; may be nil
	// Skip reports whether a node that peers tell of is of no use, and not dialled; nil: none is.
	// It is called under a lock.
	Skip func(transport.ID) bool
	// Strict refuses addresses that peers tell unless they are public: names, and loopback, private
	// and other addresses that are not of the Internet. It is CometBFT's p2p.addr_book_strict.
	Strict bool
	Random rand.Source // for draws; it is used under a lock. nil: one with a random seed
}

// Peers keeps connections to as many nodes as it finds. Watch reports who comes and goes. Close
// ends it. Its methods may be called concurrently.
//
// The operator's addresses are dialled until Peers is closed. What peers tell is in a book, which
// decides who of it is dialled, and when: nobody who tells much can keep another out.
type Peers struct {
	o      PeersOptions
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wake   chan struct{} // the book may have somebody to dial

	mu struct {
		sync.Mutex
		book     *book                   // what peers have told
		strict   bool                    // it was logged that Strict refuses an address
		failures map[string]string       // by host:port, why the operator's peer cannot be reached
		up       map[transport.ID]*peer  // connected
		banned   map[transport.ID]string // with the reason
		watchers []*Watcher
	}
}

// peer is a connected node. Guarded by Peers.mu, but for Conn.
type peer struct {
	transport.Conn
	own    bool          // dialled at an address of the operator
	gone   chan struct{} // closed when it is not connected any more
	status Status        // its last one
	known  bool          // status is set
}

// Watcher is called when peers come and go: one call at a time, under a lock of Peers, so its
// functions must neither block nor call Peers. nil functions are not called.
type Watcher struct {
	Up     func(transport.Conn)
	Status func(transport.ID, Status) // what it claims to have, every statusEvery
	Down   func(transport.ID)
}

func (w *Watcher) up(c transport.Conn) {
	if w.Up != nil {
		w.Up(c)
	}
}

func (w *Watcher) status(id transport.ID, s Status) {
	if w.Status != nil {
		w.Status(id, s)
	}
}

func (w *Watcher) down(id transport.ID) {
	if w.Down != nil {
		w.Down(id)
	}
}

// NewPeers begins to connect to the addresses of o.
func NewPeers(o PeersOptions) *Peers {
	p := &Peers{o: o, wake: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if o.Random == nil {
		o.Random = rand.NewPCG(rand.Uint64(), rand.Uint64()) //nolint:gosec // a peer cannot guess it either
	}
	p.mu.book, p.mu.failures = newBook(rand.New(o.Random), o.Strict), map[string]string{} //nolint:gosec // as above
	p.mu.up, p.mu.banned = map[transport.ID]*peer{}, map[transport.ID]string{}
	var seen []transport.Address
	for _, a := range o.Addresses {
		if !slices.Contains(seen, a) && (a.ID == "" || a.ID != o.Self) {
			seen = append(seen, a)
			p.wg.Go(func() { p.keep(a) })
		}
	}
	p.wg.Go(p.recruit)
	return p
}

// Watch calls w for every peer that is connected, now and later, until stop is called. After stop
// has returned, w is not called any more.
func (p *Peers) Watch(w Watcher) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.watchers = append(p.mu.watchers, &w)
	for _, id := range p.ids() {
		c := p.mu.up[id]
		w.up(c.Conn)
		if c.known {
			w.status(id, c.status)
		}
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mu.watchers = slices.DeleteFunc(p.mu.watchers, func(o *Watcher) bool { return o == &w })
	}
}

// ids lists the connected peers, in order. The caller holds p.mu.
func (p *Peers) ids() []transport.ID {
	ids := make([]transport.ID, 0, len(p.mu.up))
	for id := range p.mu.up {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Count returns how many peers are connected, and how many were banned.
func (p *Peers) Count() (connected, banned int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.up), len(p.mu.banned)
}

// conns returns copies of the connected peers, in the order of their IDs.
func (p *Peers) conns() []*peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*peer
	for _, id := range p.ids() {
		copied := *p.mu.up[id]
		list = append(list, &copied)
	}
	return list
}

// statusOf returns what a peer said last that it has; nothing if it is not connected.
func (p *Peers) statusOf(id transport.ID) Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.mu.up[id]; c != nil {
		return c.status
	}
	return Status{}
}

// Conns returns the connections to the peers, in random order. nil Peers have none.
func (p *Peers) Conns() []transport.Conn {
	if p == nil {
		return nil
	}
	var conns []transport.Conn
	for _, peer := range p.conns() {
		conns = append(conns, peer.Conn)
	}
	rand.Shuffle(len(conns), func(i, j int) { conns[i], conns[j] = conns[j], conns[i] })
	return conns
}

// Newest asks n peers, drawn at random, for their newest block, and returns the greatest height
// that is claimed within limit; 0: nobody answers. nil Peers have none.
func (p *Peers) Newest(ctx context.Context, n int, limit time.Duration) (height int64) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conns := p.Conns()
	conns = conns[:min(n, len(conns))]
	heights := make(chan int64, len(conns))
	for _, conn := range conns {
		go func() {
			s, _ := AskStatus(ctx, conn) // who does not answer claims nothing
			heights <- s.Height
		}()
	}
	for range conns {
		height = max(height, <-heights)
	}
	return height
}

// Failures returns, for each address that cannot be reached, "host:port: reason", in order.
func (p *Peers) Failures() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []string
	for host, why := range p.mu.failures {
		list = append(list, fmt.Sprintf("%s: %s", host, why))
	}
	slices.Sort(list)
	return list
}

// addresses returns the addresses of the connected peers, and the reasons of bans.
func (p *Peers) addresses() (connected, banned map[transport.ID]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	connected = make(map[transport.ID]string, len(p.mu.up))
	for id, c := range p.mu.up {
		connected[id] = c.Remote().HostPort
	}
	return connected, maps.Clone(p.mu.banned)
}

// Ban closes the connection to a peer that was proved to have lied, and bans it for the life of
// Peers. about is the kind of lie, reason the proof for the log.
func (p *Peers) Ban(id transport.ID, about statesync.BanReason, reason string) {
	p.mu.Lock()
	conn := p.mu.up[id]
	_, already := p.mu.banned[id]
	p.mu.banned[id] = reason
	if !already && (conn == nil || !conn.own) {
		p.mu.book.lied(time.Now(), id)
	}
	p.mu.Unlock()
	if !already {
		p.o.Logger.Error("Banned a peer that lied", "peer", id, "reason", reason)
		if p.o.Banned != nil {
			p.o.Banned(id, about)
		}
	}
	if conn != nil {
		_ = conn.Close() // its error does not matter any more
	}
}

// Close ends all connections and returns when they have ended.
func (p *Peers) Close() {
	p.cancel()
	p.wg.Wait()
}

// Useful notes that a peer has given true bytes. Whoever gives most keeps its place.
func (p *Peers) Useful(id transport.ID, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.mu.up[id]; c != nil && !c.own && p.mu.book.useful(time.Now(), id, bytes) {
		p.look()
	}
}
