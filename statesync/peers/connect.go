package peers

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/internal/wake"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

const (
	dialTimeout = 5 * time.Second
	askTimeout  = 5 * time.Second // for a small answer
	// StatusEvery is the interval of asking a peer for its snapshots, and peersEvery for addresses.
	StatusEvery = 2 * time.Second
	peersEvery  = 20 * time.Second
	firstRetry  = 500 * time.Millisecond
	lastRetry   = 15 * time.Second
	lookEvery   = time.Second // while discovered nodes wait for a slot
)

// look wakes recruit.
func (p *Peers) look() { wake.Up(p.wake) }

// recruit dials the nodes that the book draws, and closes the connections of nodes that make room,
// until Peers is closed.
func (p *Peers) recruit() {
	for {
		var later <-chan time.Time
		if p.draw() {
			later = time.After(lookEvery)
		}
		select {
		case <-p.ctx.Done():
			return
		case <-p.wake:
		case <-later:
		}
	}
}

// draw reports whether discovered nodes wait for a slot.
func (p *Peers) draw() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for {
		a, ok, waiting := p.mu.book.next(now, p.refused)
		if !ok {
			for _, id := range p.mu.book.leaving(now, waiting) {
				if c := p.mu.up[id]; c != nil && !c.own {
					_ = c.Close() // its visit ends
				}
			}
			return p.mu.book.waits()
		}
		p.wg.Go(func() { p.visit(a) })
	}
}

// refused reports whether a node must not be dialled. The caller holds p.mu.
func (p *Peers) refused(id transport.ID) bool {
	_, banned := p.mu.banned.Get(id)
	return banned || id == p.o.Self || p.mu.up[id] != nil
}

// skips reports whether Options.Skip excludes a discovered node.
func (p *Peers) skips(id transport.ID) bool { return p.o.Skip != nil && p.o.Skip(id) }

// visit dials a discovered node and returns when it is disconnected.
func (p *Peers) visit(a transport.Address) {
	conn, err := p.dial(a)
	for next := conn; next != nil; {
		next = p.attend(next, false)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && p.ctx.Err() == nil {
		p.unreachable(a, err)
	}
	_, banned := p.mu.banned.Get(a.ID)
	p.mu.book.left(time.Now(), a.ID, banned)
	p.look()
}

// unreachable records that no node, or a different node, answered at an address. The caller holds
// p.mu.
func (p *Peers) unreachable(a transport.Address, err error) {
	p.o.Logger.Debug("Cannot reach a discovered peer", "address", a, "err", err)
	p.mu.book.unreachable(time.Now(), a, foreign(err) || errors.Is(err, transport.ErrWrongID))
}

// foreign reports that a node is not of this network, which will not change during a join.
func foreign(err error) bool {
	return errors.Is(err, transport.ErrWrongChain) || errors.Is(err, transport.ErrWrongVersion)
}

// keep keeps a connection to an address of the operator, even if another node answers there for a
// while.
func (p *Peers) keep(a transport.Address) {
	wait := firstRetry
	for {
		began := time.Now()
		conn, err := p.dial(a)
		if err == nil {
			id := conn.Remote().ID
			p.attend(conn, true)
			if p.over(id, a) {
				return
			}
		}
		switch {
		case p.ctx.Err() != nil:
			return
		case err != nil:
			p.failed(a, err)
			if foreign(err) {
				return
			}
		case time.Since(began) > lastRetry:
			wait = firstRetry
		}
		if sleep.For(p.ctx, wait) != nil {
			return
		}
		wait = min(2*wait, lastRetry)
	}
}

// over reports whether the node at an address is banned, or is this node. Then it is no longer
// awaited.
func (p *Peers) over(id transport.ID, a transport.Address) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, banned := p.mu.banned.Get(id)
	over := banned || id == p.o.Self
	if over {
		delete(p.mu.awaited, a.HostPort)
	}
	return over
}

func (p *Peers) dial(a transport.Address) (transport.Conn, error) {
	ctx, cancel := context.WithTimeout(p.ctx, dialTimeout)
	defer cancel()
	return p.o.Dialer.Dial(ctx, a)
}

func (p *Peers) failed(a transport.Address, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, logged := p.mu.failures[a.HostPort]; !logged {
		p.o.Logger.Info("Cannot reach a peer", "address", a, "err", err)
	}
	p.mu.failures[a.HostPort] = err.Error()
	delete(p.mu.awaited, a.HostPort)
}

// attend runs a connection until it ends. It returns another connection to the same peer that
// replaces it, or nil. A peer has one connection only, but an address of the operator replaces an
// advertised one, which may be a Byzantine proxy.
func (p *Peers) attend(conn transport.Conn, own bool) transport.Conn {
	defer conn.Close()
	id := conn.Remote().ID
	p.mu.Lock()
	for old := p.mu.up[id]; own && old != nil && !old.own; old = p.mu.up[id] {
		p.mu.Unlock()
		_ = old.Close() // its error no longer matters
		<-old.gone
		p.mu.Lock()
	}
	at := conn.Remote().HostPort
	if own {
		delete(p.mu.failures, at)
	}
	if p.refused(id) || p.ctx.Err() != nil || !own && p.mu.book.leaves(id) {
		delete(p.mu.awaited, at)
		p.mu.Unlock()
		return nil
	}
	if !own {
		p.mu.book.connected(time.Now(), conn.Remote())
	}
	gone, again := make(chan struct{}), make(chan struct{}, 1)
	defer close(gone)
	p.mu.up[id] = &peer{Conn: conn, own: own, gone: gone, again: again}
	for _, w := range p.mu.watchers {
		w.up(conn)
	}
	p.mu.Unlock()
	next := p.ask(id, conn, own, again)
	p.mu.Lock()
	defer p.mu.Unlock() // before gone is closed
	delete(p.mu.up, id)
	for _, w := range p.mu.watchers {
		w.down(id)
	}
	return next
}

// ask repeatedly asks a peer for its status and for other nodes. It returns when the connection
// ends, or returns a better connection to the peer.
func (p *Peers) ask(id transport.ID, conn transport.Conn, own bool, again <-chan struct{}) transport.Conn {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	var asked time.Time
	mayHaveParts, early := true, again
	for {
		// A slow proxy can delay each answer until the call's time limit. So the loop looks for
		// another address before and after each call, and dials at most one in a round.
		move := !own
		elsewhere := func() (next transport.Conn) {
			if move {
				next, move = p.elsewhere(id)
			}
			return next
		}
		if next := elsewhere(); next != nil {
			return next
		}
		select {
		case <-again: // answered by this status
		default:
		}
		status, err := AskStatus(ctx, conn)
		if err == nil && mayHaveParts && len(status.Snapshots) == 0 {
			status.Parts, mayHaveParts, err = partsOf(func(c transport.Call) ([]byte, error) { return call(ctx, conn, c) })
		}
		if err == nil {
			p.mu.Lock()
			if c := p.mu.up[id]; c != nil {
				c.status, c.known = status, true
			}
			delete(p.mu.awaited, conn.Remote().HostPort)
			for _, w := range p.mu.watchers {
				w.status(id, status)
			}
			p.mu.Unlock()
		} else if errors.Is(err, protocol.ErrMessage) {
			p.Ban(id, statesync.BanMessage, err.Error())
		}
		if next := elsewhere(); next != nil {
			return next
		}
		if asked.IsZero() || time.Since(asked) > peersEvery {
			asked = time.Now()
			if list, err := askPeers(ctx, conn); err == nil {
				p.advertised(id, own, list)
			} else if errors.Is(err, protocol.ErrMessage) {
				p.Ban(id, statesync.BanMessage, err.Error())
			}
			if next := elsewhere(); next != nil {
				return next
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-conn.Done():
			return nil
		case <-early:
			early = nil // until the next regular time
		case <-time.After(StatusEvery):
			early = again
		}
	}
}

// advertised adds a peer's advertised addresses to the book, except addresses that are dialled
// anyway.
func (p *Peers) advertised(by transport.ID, own bool, list []transport.Address) {
	list = slices.DeleteFunc(list, func(a transport.Address) bool {
		return slices.Contains(p.o.Addresses, a) || slices.Contains(p.o.Addresses, transport.Address{HostPort: a.HostPort})
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.mu.book.advertiser(by, own)
	refused := func(id transport.ID) bool {
		_, banned := p.mu.banned.Get(id)
		return banned || id == p.o.Self || p.skips(id)
	}
	if ok && p.mu.book.learn(time.Now(), t, list, refused) {
		p.look()
	}
	if at := slices.IndexFunc(list, func(a transport.Address) bool { return !public(a.HostPort) }); at >= 0 && p.o.Strict && !p.mu.strict {
		p.mu.strict = true
		p.o.Logger.Info("Ignoring advertised addresses that are not public; in a private network, set p2p.addr_book_strict = false", "address", list[at], "advertised_by", by)
	}
}

// elsewhere dials a discovered peer at another address that may be faster. It returns nil if there
// is none, or if dialling fails. none: it has dialled no address.
func (p *Peers) elsewhere(id transport.ID) (next transport.Conn, none bool) {
	p.mu.Lock()
	a, ok := p.mu.book.better(time.Now(), id)
	p.mu.Unlock()
	if !ok {
		return nil, true
	}
	conn, err := p.dial(a)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.ctx.Err() == nil {
			p.unreachable(a, err)
		}
		return nil, false
	}
	return conn, false
}

// call makes a call with a small answer.
func call(ctx context.Context, conn transport.Conn, c transport.Call) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return conn.Call(ctx, c)
}

// AskStatus requests a node's status. The answer is unverified.
func AskStatus(ctx context.Context, conn transport.Conn) (protocol.Status, error) {
	b, err := call(ctx, conn, transport.Call{Method: protocol.MethodStatus, Max: protocol.MaxStatusBytes})
	if err != nil {
		return protocol.Status{}, err
	}
	return protocol.DecodeStatus(b)
}

func askPeers(ctx context.Context, conn transport.Conn) ([]transport.Address, error) {
	b, err := call(ctx, conn, transport.Call{Method: protocol.MethodPeers, Max: protocol.MaxPeersBytes})
	if err != nil {
		return nil, err
	}
	return protocol.DecodePeers(b)
}

// partsOf asks a peer without complete snapshots for its parts. asks is false if the peer need not
// be asked again.
func partsOf(ask func(transport.Call) ([]byte, error)) (parts []statesync.Part, asks bool, err error) {
	b, err := ask(transport.Call{Method: protocol.MethodParts, Max: protocol.MaxPartsBytes})
	if err != nil {
		return nil, !errors.Is(err, transport.ErrRefused), nil //nolint:nilerr // then it has none
	}
	parts, err = protocol.DecodeParts(b)
	return parts, true, err
}
