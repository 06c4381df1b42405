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
	// maxConnections bounds the told peers that are talked to at a time, maxAddresses those that are remembered, maxFrom how many one
	// peer may tell, maxPerHost how many a host may have: a liar cannot fill the list alone. Addresses of the operator's do not count.
	maxConnections = 128
	maxAddresses   = 1024
	maxFrom        = 32
	maxPerHost     = 8
	// turn is how long a told peer that was of no use may keep its place while others wait for one.
	turn = 30 * time.Second

	dialTimeout = 5 * time.Second
	askTimeout  = 5 * time.Second // for a small answer
	// statusEvery is the time between two questions which snapshots a peer has, peersEvery for further addresses.
	statusEvery = 2 * time.Second
	peersEvery  = 20 * time.Second
	firstRetry  = 500 * time.Millisecond
	lastRetry   = 15 * time.Second
)

// PeersOptions say whom to connect to.
type PeersOptions struct {
	Logger    log.Logger
	Dialer    transport.Dialer
	Addresses []transport.Address                     // known from the start
	Self      transport.ID                            // not dialled
	Banned    func(transport.ID, statesync.BanReason) // called once for each; nil: not
}

// Peers keeps connections to as many nodes as it finds. Watch tells who comes and goes. Close ends it.
type Peers struct {
	o      PeersOptions
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{}

	mu struct {
		sync.Mutex
		known    map[string]bool // by address, id and all: somebody is in charge of it
		hosts    map[string]int  // told addresses of a host that somebody is in charge of
		told     map[transport.ID]int
		useful   map[transport.ID]bool // has given something that was verified
		waiting  int                   // told addresses that wait for a place
		failures map[string]string     // why a host cannot be reached, for the error at the end
		up       map[transport.ID]*peer
		banned   map[transport.ID]string
		watchers []*Watcher
	}
}

// peer is a connected node.
type peer struct {
	transport.Conn
	own    bool // dialled at an address of the operator's
	status Status
	known  bool // its status came
}

// Watcher hears of peers. Its functions are called one at a time, while a lock is held: they must not block, nor call back. nil: it does
// not want to hear that.
type Watcher struct {
	Up     func(transport.Conn)
	Status func(transport.ID, Status) // what it says that it has, again and again
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

// NewPeers begins to connect.
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

// Watch tells w who is connected, now and later, until stop is called.
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

// ids lists who is connected, in order. The caller holds p.mu.
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

// Conns returns the connections, in order of the IDs, with what each said of itself.
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

// Failures says of each address that cannot be reached why.
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

// addresses returns the addresses of those that are connected, and why others were banned.
func (p *Peers) addresses() (connected, banned map[transport.ID]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	connected = make(map[transport.ID]string, len(p.mu.up))
	for id, c := range p.mu.up {
		connected[id] = c.Remote().HostPort
	}
	return connected, maps.Clone(p.mu.banned)
}

// Ban ends the connection to a peer that was proved to lie, about what, and by what. It is not talked to again.
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
		_ = conn.Close() // it is over
	}
}

// Close ends all connections and waits for that.
func (p *Peers) Close() {
	p.cancel()
	p.wg.Wait()
}

// Useful marks a peer as one that has given something that was verified.
func (p *Peers) Useful(id transport.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.useful[id] = true
}

// add takes charge of an address. The operator's own need no place, so that nobody can keep them out by being many.
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
		delete(p.mu.known, key) // it may be told again
		if !own {
			p.mu.hosts[host]--
		}
	})
	return true
}

// told adds the addresses that a peer told, as far as it may.
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

// keep stays connected to an address, until its owner is banned, or it turned out to be of no use. An address of the operator's that
// somebody else answers at is tried on.
func (p *Peers) keep(a transport.Address, own bool) {
	wait := firstRetry
	for {
		if !own && !p.place() {
			return
		}
		began := time.Now()
		over, err := p.connected(a, own)
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
				return // that does not change while we join
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

// place waits for a place among the told peers.
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

// connected dials an address and is the connection's life; over: the address is of no use any more.
func (p *Peers) connected(a transport.Address, own bool) (over bool, _ error) {
	ctx, cancel := context.WithTimeout(p.ctx, dialTimeout)
	conn, err := p.o.Dialer.Dial(ctx, a)
	cancel()
	if err != nil {
		return false, err
	}
	return p.run(conn, own), nil
}

func (p *Peers) failed(a transport.Address, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, told := p.mu.failures[a.HostPort]; !told {
		p.o.Logger.Info("Cannot reach a peer", "address", a, "err", err)
	}
	p.mu.failures[a.HostPort] = err.Error()
}

// run is the life of a connection. It returns true when the address is of no use any more. A peer that is connected at another address already
// is not needed twice, but what the operator has named is better than what somebody told: that may lead through a liar.
func (p *Peers) run(conn transport.Conn, own bool) bool {
	defer conn.Close()
	id := conn.Remote().ID
	p.mu.Lock()
	delete(p.mu.failures, conn.Remote().HostPort)
	_, banned := p.mu.banned[id]
	old, twice := p.mu.up[id]
	if banned || twice || id == p.o.Self {
		if own && twice && !old.own {
			_ = old.Close() // and we come back
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

// ask asks a peer now and then what it has and whom it knows, until the connection is over.
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

// makesRoom says that a told peer was of no use so far, and others wait.
func (p *Peers) makesRoom(id transport.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.waiting > 0 && !p.mu.useful[id]
}

// call asks for a small answer.
func call(ctx context.Context, conn transport.Conn, c transport.Call) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return conn.Call(ctx, c)
}

func askStatus(ctx context.Context, conn transport.Conn) (Status, error) {
	b, err := call(ctx, conn, transport.Call{Method: transport.MethodStatus, Max: maxStatusBytes})
	if err != nil {
		return Status{}, err
	}
	return decodeStatus(b)
}

func askPeers(ctx context.Context, conn transport.Conn) ([]transport.Address, error) {
	b, err := call(ctx, conn, transport.Call{Method: transport.MethodPeers, Max: maxPeersBytes})
	if err != nil {
		return nil, err
	}
	return decodePeers(b)
}
