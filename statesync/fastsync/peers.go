package fastsync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

const (
	// Addresses that peers tell are limited, so that a liar cannot fill the list alone; those of
	// the operator are not. maxConnections: told peers connected at a time. maxAddresses: told
	// addresses that are kept. maxFrom: of one peer. maxPerHost: of one host.
	maxConnections = 128
	maxAddresses   = 1024
	maxFrom        = 32
	maxPerHost     = 8
	// turn is how long a told peer that has given nothing keeps its place while others wait for
	// one.
	turn = 30 * time.Second

	dialTimeout = 5 * time.Second
	askTimeout  = 5 * time.Second // of a small answer
	// statusEvery is the time between two questions to a peer which snapshots it has; peersEvery,
	// for more addresses.
	statusEvery = 2 * time.Second
	peersEvery  = 20 * time.Second
	firstRetry  = 500 * time.Millisecond
	lastRetry   = 15 * time.Second
)

// PeersOptions are the options of NewPeers.
type PeersOptions struct {
	Logger    log.Logger
	Dialer    transport.Dialer
	Addresses []transport.Address                     // the operator's
	Self      transport.ID                            // the node's own: not dialled
	Banned    func(transport.ID, statesync.BanReason) // called once per peer; may be nil
}

// Peers keeps connections to as many nodes as it finds. Watch reports who comes and goes. Close
// ends it. Its methods may be called concurrently.
type Peers struct {
	o      PeersOptions
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{} // one element for each told peer that has a place

	mu struct {
		sync.Mutex
		known    map[string]bool         // addresses, with ids, that a goroutine keeps
		hosts    map[string]int          // told addresses of a host in known
		told     map[transport.ID]int    // addresses that were taken from a peer
		useful   map[transport.ID]bool   // see Useful
		waiting  int                     // told addresses that wait for a place
		failures map[string]string       // by host:port, why it cannot be reached
		up       map[transport.ID]*peer  // connected
		banned   map[transport.ID]string // with the reason
		watchers []*Watcher
	}
}

// peer is a connected node. Guarded by Peers.mu, but for Conn.
type peer struct {
	transport.Conn
	own    bool   // dialled at an address of the operator
	status Status // its last one
	known  bool   // status is set
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
	p := &Peers{o: o, slots: make(chan struct{}, maxConnections)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.mu.known, p.mu.hosts, p.mu.failures = map[string]bool{}, map[string]int{}, map[string]string{}
	p.mu.told, p.mu.useful = map[transport.ID]int{}, map[transport.ID]bool{}
	p.mu.up, p.mu.banned = map[transport.ID]*peer{}, map[transport.ID]string{}
	for _, a := range o.Addresses {
		p.add(a, true)
	}
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

// Useful marks a peer that has given something true. It keeps its place.
func (p *Peers) Useful(id transport.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.useful[id] = true
}

// add begins to keep a connection to an address, unless that is done already, or there are too
// many. own: it is the operator's, and needs no place, so that no crowd can keep it out.
func (p *Peers) add(a transport.Address, own bool) bool {
	host, _, err := net.SplitHostPort(a.HostPort)
	if err != nil {
		host = a.HostPort
	}
	key := a.String()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.known[key] || a.ID != "" && a.ID == p.o.Self || p.ctx.Err() != nil {
		return false
	}
	if _, banned := p.mu.banned[a.ID]; banned || !own && (len(p.mu.known) >= maxAddresses || p.mu.hosts[host] >= maxPerHost) {
		return false
	}
	p.mu.known[key] = true
	if !own {
		p.mu.hosts[host]++
	}
	p.wg.Go(func() {
		p.keep(a, own)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.mu.known, key) // from now on it may be told anew
		if !own {
			p.mu.hosts[host]--
		}
	})
	return true
}

// told adds addresses that a peer has told, up to maxFrom of each peer.
func (p *Peers) told(by transport.ID, list []transport.Address) {
	for _, a := range list {
		p.mu.Lock()
		full := p.mu.told[by] >= maxFrom
		p.mu.Unlock()
		if full {
			return
		}
		if p.add(a, false) {
			p.mu.Lock()
			p.mu.told[by]++
			p.mu.Unlock()
		}
	}
}

// keep stays connected to an address until its owner is banned, or it has turned out to be of no
// use. An address of the operator is retried even if another node answers there.
func (p *Peers) keep(a transport.Address, own bool) {
	wait := firstRetry
	for {
		if !own && !p.place() {
			return
		}
		began := time.Now()
		over, err := p.visit(a, own)
		if !own {
			<-p.slots
		}
		switch {
		case p.ctx.Err() != nil || over:
			return
		case err != nil:
			p.failed(a, err)
			wrong := errors.Is(err, transport.ErrWrongChain) || errors.Is(err, transport.ErrWrongVersion)
			if wrong || !own && errors.Is(err, transport.ErrWrongID) {
				return // that will not change during the join
			}
		case time.Since(began) > lastRetry:
			wait = firstRetry
		}
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRetry)
	}
}

// place waits for a place among the told peers. It returns false if Peers is closed.
func (p *Peers) place() bool {
	p.waits(1)
	defer p.waits(-1)
	select {
	case p.slots <- struct{}{}:
		return true
	case <-p.ctx.Done():
		return false
	}
}

func (p *Peers) waits(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.waiting += n
}

// visit dials an address and returns when the connection has ended. over reports that the address
// is of no further use.
func (p *Peers) visit(a transport.Address, own bool) (over bool, _ error) {
	ctx, cancel := context.WithTimeout(p.ctx, dialTimeout)
	conn, err := p.o.Dialer.Dial(ctx, a)
	cancel()
	if err != nil {
		return false, err
	}
	return p.attend(conn, own), nil
}

func (p *Peers) failed(a transport.Address, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, told := p.mu.failures[a.HostPort]; !told {
		p.o.Logger.Info("Cannot reach a peer", "address", a, "err", err)
	}
	p.mu.failures[a.HostPort] = err.Error()
}

// attend is the life of a connection. It reports whether the address is of no further use. A peer
// that is already connected at another address is not needed twice; but an address of the operator
// replaces a told one, which may lead through a liar.
func (p *Peers) attend(conn transport.Conn, own bool) bool {
	defer conn.Close()
	id := conn.Remote().ID
	p.mu.Lock()
	delete(p.mu.failures, conn.Remote().HostPort)
	_, banned := p.mu.banned[id]
	old, twice := p.mu.up[id]
	if banned || twice || id == p.o.Self {
		if own && twice && !old.own {
			_ = old.Close() // keep retries this address
		}
		p.mu.Unlock()
		return banned || !own || id == p.o.Self
	}
	p.mu.up[id] = &peer{Conn: conn, own: own}
	for _, w := range p.mu.watchers {
		w.up(conn)
	}
	p.mu.Unlock()
	p.ask(id, conn, own)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.up, id)
	for _, w := range p.mu.watchers {
		w.down(id)
	}
	_, banned = p.mu.banned[id]
	return banned
}

// ask asks a peer repeatedly what it has and which other nodes it knows, until the connection ends.
func (p *Peers) ask(id transport.ID, conn transport.Conn, own bool) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	var asked time.Time
	began := time.Now()
	for {
		if !own && time.Since(began) > turn && p.makesRoom(id) {
			return
		}
		if status, err := askStatus(ctx, conn); err == nil {
			p.mu.Lock()
			if c := p.mu.up[id]; c != nil {
				c.status, c.known = status, true
			}
			for _, w := range p.mu.watchers {
				w.status(id, status)
			}
			p.mu.Unlock()
		} else if errors.Is(err, errMessage) {
			p.Ban(id, statesync.BanMessage, err.Error())
		}
		if asked.IsZero() || time.Since(asked) > peersEvery {
			asked = time.Now()
			if list, err := askPeers(ctx, conn); err == nil {
				p.told(id, list)
			} else if errors.Is(err, errMessage) {
				p.Ban(id, statesync.BanMessage, err.Error())
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-conn.Done():
			return
		case <-time.After(statusEvery):
		}
	}
}

// makesRoom reports whether a told peer has been of no use while others wait for its place.
func (p *Peers) makesRoom(id transport.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.waiting > 0 && !p.mu.useful[id]
}

// call makes a call with a small answer.
func call(ctx context.Context, conn transport.Conn, c transport.Call) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return conn.Call(ctx, c)
}

func askStatus(ctx context.Context, conn transport.Conn) (Status, error) {
	b, err := call(ctx, conn, transport.Call{Method: MethodStatus, Max: maxStatusBytes})
	if err != nil {
		return Status{}, err
	}
	return decodeStatus(b)
}

func askPeers(ctx context.Context, conn transport.Conn) ([]transport.Address, error) {
	b, err := call(ctx, conn, transport.Call{Method: MethodPeers, Max: maxPeersBytes})
	if err != nil {
		return nil, err
	}
	return decodePeers(b)
}
