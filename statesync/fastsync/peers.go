package fastsync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/transport"
)

const (
	// maxConnections bounds the peers that are talked to at a time, maxAddresses those that are remembered, and maxFrom how many one
	// peer may tell: a liar cannot fill the list alone. Addresses of the operator's do not count.
	maxConnections = 128
	maxAddresses   = 1024
	maxFrom        = 32

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
	Addresses []transport.Address // known from the start
	Self      transport.ID        // not dialled
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
		known    map[string]bool // by HostPort: somebody is in charge of it
		told     map[transport.ID]int
		failures map[string]string // why a host cannot be reached, for the error at the end
		up       map[transport.ID]*peer
		banned   map[transport.ID]string
		watchers []*Watcher
	}
}

// peer is a connected node.
type peer struct {
	transport.Conn
	status Status
	known  bool // its status came
}

// Watcher hears of peers. Its functions are called one at a time, while a lock is held: they must not block, nor call back.
type Watcher struct {
	Up     func(transport.Conn)
	Status func(transport.ID, Status) // what it says that it has, again and again
	Down   func(transport.ID)
}

// NewPeers begins to connect.
func NewPeers(o PeersOptions) *Peers {
	p := &Peers{o: o, slots: make(chan struct{}, maxConnections)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.mu.known, p.mu.told, p.mu.failures = map[string]bool{}, map[transport.ID]int{}, map[string]string{}
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
		w.Up(c.Conn)
		if c.known {
			w.Status(id, c.status)
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

// Ban ends the connection to a peer that was proved to lie. It is not talked to again.
func (p *Peers) Ban(id transport.ID, reason string) {
	p.mu.Lock()
	conn := p.mu.up[id]
	_, already := p.mu.banned[id]
	p.mu.banned[id] = reason
	p.mu.Unlock()
	if !already {
		p.o.Logger.Error("Banned a peer that lied", "peer", id, "reason", reason)
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

// add takes charge of an address. The operator's own need no slot, so that nobody can keep them out by being many.
func (p *Peers) add(a transport.Address, own bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.known[a.HostPort] || a.ID != "" && a.ID == p.o.Self || p.ctx.Err() != nil || len(p.mu.known) >= maxAddresses {
		return
	}
	p.mu.known[a.HostPort] = true
	slots := p.slots
	if own {
		slots = make(chan struct{}, 1)
	}
	p.wg.Go(func() { p.keep(a, slots) })
}

// told adds the addresses that a peer told, as far as it may.
func (p *Peers) told(by transport.ID, list []transport.Address) {
	for _, a := range list {
		p.mu.Lock()
		full := p.mu.told[by] >= maxFrom
		_, banned := p.mu.banned[a.ID]
		if !full && !banned && !p.mu.known[a.HostPort] {
			p.mu.told[by]++
		}
		p.mu.Unlock()
		if full {
			return
		}
		if !banned {
			p.add(a, false)
		}
	}
}

// keep stays connected to an address, until its owner is banned.
func (p *Peers) keep(a transport.Address, slots chan struct{}) {
	wait := firstRetry
	for {
		conn, err := p.dial(a, slots)
		switch {
		case p.ctx.Err() != nil:
			if conn != nil {
				_ = conn.Close() // nobody uses it
			}
			return
		case err != nil:
			p.failed(a, err)
			if errors.Is(err, transport.ErrWrongChain) || errors.Is(err, transport.ErrWrongVersion) {
				return // that does not change while we join
			}
		default:
			began := time.Now()
			over := p.run(conn)
			<-slots
			if over {
				return
			}
			if time.Since(began) > lastRetry {
				wait = firstRetry
			}
		}
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRetry)
	}
}

// dial connects, and holds a slot when it has.
func (p *Peers) dial(a transport.Address, slots chan struct{}) (transport.Conn, error) {
	select {
	case slots <- struct{}{}:
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	}
	ctx, cancel := context.WithTimeout(p.ctx, dialTimeout)
	defer cancel()
	conn, err := p.o.Dialer.Dial(ctx, a)
	if err != nil {
		<-slots
		return nil, err
	}
	return conn, nil
}

func (p *Peers) failed(a transport.Address, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, told := p.mu.failures[a.HostPort]; !told {
		p.o.Logger.Info("Cannot reach a peer", "address", a, "err", err)
	}
	p.mu.failures[a.HostPort] = err.Error()
}

// run is the life of a connection. It returns true when the address is of no use any more.
func (p *Peers) run(conn transport.Conn) bool {
	defer conn.Close()
	id := conn.Remote().ID
	p.mu.Lock()
	delete(p.mu.failures, conn.Remote().HostPort)
	_, banned := p.mu.banned[id]
	if _, twice := p.mu.up[id]; banned || twice || id == p.o.Self {
		p.mu.Unlock()
		return true // known under another address, or not wanted
	}
	p.mu.up[id] = &peer{Conn: conn}
	for _, w := range p.mu.watchers {
		w.Up(conn)
	}
	p.mu.Unlock()
	p.ask(id, conn)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.up, id)
	for _, w := range p.mu.watchers {
		w.Down(id)
	}
	_, banned = p.mu.banned[id]
	return banned
}

// ask asks a peer now and then what it has and whom it knows, until the connection is over.
func (p *Peers) ask(id transport.ID, conn transport.Conn) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	var asked time.Time
	for {
		if status, err := askStatus(ctx, conn); err == nil {
			p.mu.Lock()
			if c := p.mu.up[id]; c != nil {
				c.status, c.known = status, true
			}
			for _, w := range p.mu.watchers {
				w.Status(id, status)
			}
			p.mu.Unlock()
		} else if errors.Is(err, errMessage) {
			p.Ban(id, err.Error())
		}
		if asked.IsZero() || time.Since(asked) > peersEvery {
			asked = time.Now()
			if list, err := askPeers(ctx, conn); err == nil {
				p.told(id, list)
			} else if errors.Is(err, errMessage) {
				p.Ban(id, err.Error())
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
