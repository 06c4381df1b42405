package peers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/internal/bounded"
	"github.com/starling-kv/starling/internal/wake"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// Options are the options of New.
type Options struct {
	Logger    log.Logger
	Dialer    transport.Dialer
	Addresses []transport.Address                     // configured by the operator
	Self      transport.ID                            // this node's ID: not dialled
	Banned    func(transport.ID, statesync.BanReason) // called once per peer; may be nil
	// Skip reports whether a discovered node is useless and must not be dialled; nil: all are
	// dialled. It is called under a lock.
	Skip func(transport.ID) bool
	// Strict accepts only public IP addresses from advertisers: no names, no loopback or private
	// addresses. It is CometBFT's p2p.addr_book_strict.
	Strict bool
	Random rand.Source // for draws, under a lock; nil: randomly seeded
}

// Peers keeps connections to as many nodes as it finds. Watch reports connections and
// disconnections. Close ends it. Its methods may be called concurrently.
//
// Peers dials the operator's addresses until it is closed. A book holds the advertised addresses
// and decides which nodes are dialled, and when.
type Peers struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wake   chan struct{} // the book may have a node to dial

	mu struct {
		sync.Mutex
		book     *book                              // what peers have advertised
		strict   bool                               // an address refused by Strict has been logged
		failures map[string]string                  // by host:port of the operator's peers
		awaited  map[string]bool                    // likewise, until the first status or failure
		up       map[transport.ID]*peer             // connected
		banned   *bounded.Map[transport.ID, string] // with the reason
		bans     int                                // includes forgotten bans
		watchers []*Watcher
	}
}

const (
	// maxBanned limits the remembered bans. A peer whose ban is forgotten may be asked again, which
	// is no worse than a peer that changes its identity.
	maxBanned = 4096
	// maxReason limits the bytes kept of a reason, which may quote what a peer sent.
	maxReason = 256
)

// peer is a connected node. Guarded by Peers.mu, except Conn.
type peer struct {
	transport.Conn
	own    bool            // dialled at an address of the operator
	gone   chan struct{}   // closed on disconnection
	again  chan struct{}   // receives one element when the status has probably changed
	status protocol.Status // latest status
	known  bool            // status is set
}

// Watcher is called when peers come and go. The calls are serialized under a lock of Peers, so the
// functions must neither block nor call Peers. nil functions are not called.
type Watcher struct {
	Up     func(transport.Conn)
	Status func(transport.ID, protocol.Status) // claims, every StatusEvery or after AskAgain
	Down   func(transport.ID)
}

func (w *Watcher) up(c transport.Conn) {
	if w.Up != nil {
		w.Up(c)
	}
}

func (w *Watcher) status(id transport.ID, s protocol.Status) {
	if w.Status != nil {
		w.Status(id, s)
	}
}

func (w *Watcher) down(id transport.ID) {
	if w.Down != nil {
		w.Down(id)
	}
}

// New starts to connect to the addresses of o.
func New(o Options) *Peers {
	p := &Peers{o: o, wake: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if o.Random == nil {
		o.Random = rand.NewPCG(rand.Uint64(), rand.Uint64()) //nolint:gosec // a peer cannot guess it either
	}
	p.mu.book = newBook(rand.New(o.Random), o.Strict) //nolint:gosec // as above
	p.mu.awaited, p.mu.failures = map[string]bool{}, map[string]string{}
	p.mu.up, p.mu.banned = map[transport.ID]*peer{}, bounded.New[transport.ID, string](maxBanned)
	var seen []transport.Address
	for _, a := range o.Addresses {
		if !slices.Contains(seen, a) && (a.ID == "" || a.ID != o.Self) {
			seen = append(seen, a)
			p.mu.awaited[a.HostPort] = true
		}
	}
	for _, a := range seen {
		p.wg.Go(func() { p.keep(a) })
	}
	p.wg.Go(p.recruit)
	return p
}

// Watch calls w for all peers, connected now or later, until stop is called. w is not called after
// stop has returned.
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

// ids returns the IDs of the connected peers, sorted. The caller holds p.mu.
func (p *Peers) ids() []transport.ID {
	ids := make([]transport.ID, 0, len(p.mu.up))
	for id := range p.mu.up {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Count returns the number of connected peers and the number of bans.
func (p *Peers) Count() (connected, banned int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.up), p.mu.bans
}

// Peer is a connected node with its claims.
type Peer struct {
	transport.Conn
	Status protocol.Status // latest status
	Known  bool            // Status is set
}

// Connected returns the connected peers, sorted by ID.
func (p *Peers) Connected() []Peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]Peer, 0, len(p.mu.up))
	for _, id := range p.ids() {
		c := p.mu.up[id]
		list = append(list, Peer{c.Conn, c.status, c.known})
	}
	return list
}

// Status returns a peer's latest status, or a zero Status if it is not connected.
func (p *Peers) Status(id transport.ID) protocol.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.mu.up[id]; c != nil {
		return c.status
	}
	return protocol.Status{}
}

// AskAgain asks a peer for its status at once, because it has probably changed. That happens at
// most once between two regular requests.
func (p *Peers) AskAgain(id transport.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.mu.up[id]; c != nil {
		wake.Up(c.again)
	}
}

// Conns returns the connections to the peers in random order. A nil Peers has none.
func (p *Peers) Conns() []transport.Conn {
	if p == nil {
		return nil
	}
	var conns []transport.Conn
	for _, peer := range p.Connected() {
		conns = append(conns, peer.Conn)
	}
	rand.Shuffle(len(conns), func(i, j int) { conns[i], conns[j] = conns[j], conns[i] })
	return conns
}

// Newest asks n random peers for their newest block and returns the greatest height claimed within
// limit, or 0 if no peer answers. A nil Peers has no peers.
func (p *Peers) Newest(ctx context.Context, n int, limit time.Duration) (height int64) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conns := p.Conns()
	conns = conns[:min(n, len(conns))]
	heights := make(chan int64, len(conns))
	for _, conn := range conns {
		go func() {
			s, _ := AskStatus(ctx, conn) // a peer that does not answer claims nothing
			heights <- s.Height
		}()
	}
	for range conns {
		height = max(height, <-heights)
	}
	return height
}

// Awaited returns the number of the operator's addresses from which neither a status nor a failure
// has come yet, and of those where no node answers. A node that is connected at another address, or
// banned, counts in neither.
func (p *Peers) Awaited() (awaited, down int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.o.Addresses {
		_, failed := p.mu.failures[a.HostPort]
		switch {
		case a.ID != "" && p.refused(a.ID):
		case p.mu.awaited[a.HostPort]:
			awaited++
		case failed:
			down++
		}
	}
	return awaited, down
}

// Failures returns "host:port: reason" for each unreachable address of the operator, sorted.
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

// Addresses returns the addresses of the connected peers, and the reasons of the remembered bans.
func (p *Peers) Addresses() (connected, banned map[transport.ID]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	connected, banned = make(map[transport.ID]string, len(p.mu.up)), make(map[transport.ID]string, p.mu.banned.Len())
	for id, c := range p.mu.up {
		connected[id] = c.Remote().HostPort
	}
	for id, reason := range p.mu.banned.All {
		banned[id] = reason
	}
	return connected, banned
}

// Ban disconnects and bans a peer that provably is Byzantine: it is not dialled again. about is the
// kind of invalid data, reason the proof for the log.
func (p *Peers) Ban(id transport.ID, about statesync.BanReason, reason string) {
	p.mu.Lock()
	conn := p.mu.up[id]
	_, already := p.mu.banned.Get(id)
	p.mu.banned.Set(id, reason[:min(len(reason), maxReason)])
	if !already {
		p.mu.bans++
	}
	if !already && (conn == nil || !conn.own) {
		p.mu.book.lied(time.Now(), id)
	}
	p.mu.Unlock()
	if !already {
		p.o.Logger.Error("Banned a peer that sent invalid data", "peer", id, "reason", reason)
		if p.o.Banned != nil {
			p.o.Banned(id, about)
		}
	}
	if conn != nil {
		_ = conn.Close() // its error no longer matters
	}
}

// Close closes all connections and waits for them.
func (p *Peers) Close() {
	p.cancel()
	p.wg.Wait()
}

// Useful records that a peer sent valid bytes. The peers that send the most keep their slots.
func (p *Peers) Useful(id transport.ID, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.mu.up[id]; c != nil && !c.own && p.mu.book.useful(time.Now(), id, bytes) {
		p.look()
	}
}
