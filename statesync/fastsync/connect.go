package fastsync

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

const (
	dialTimeout = 5 * time.Second
	askTimeout  = 5 * time.Second // of a small answer
	// statusEvery is the time between two questions to a peer which snapshots it has; peersEvery,
	// for more addresses.
	statusEvery = 2 * time.Second
	peersEvery  = 20 * time.Second
	firstRetry  = 500 * time.Millisecond
	lastRetry   = 15 * time.Second
	lookEvery   = time.Second // while told nodes wait
)

// look wakes recruit.
func (p *Peers) look() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// recruit dials whom the book names, and has others make room, until Peers is closed.
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

// draw reports whether told nodes wait.
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

// refused reports whether a node is not to be dialled. The caller holds p.mu.
func (p *Peers) refused(id transport.ID) bool {
	_, banned := p.mu.banned[id]
	return banned || id == p.o.Self || p.mu.up[id] != nil
}

// skips reports whether a told node is of no use.
func (p *Peers) skips(id transport.ID) bool { return p.o.Skip != nil && p.o.Skip(id) }

// visit dials a told node, and returns when it is not connected any more.
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
	_, banned := p.mu.banned[a.ID]
	p.mu.book.left(time.Now(), a.ID, banned)
	p.look()
}

// unreachable tells the book that nobody, or somebody else, has answered. The caller holds p.mu.
func (p *Peers) unreachable(a transport.Address, err error) {
	p.o.Logger.Debug("Cannot reach a peer that another one has told", "address", a, "err", err)
	p.mu.book.unreachable(time.Now(), a, foreign(err) || errors.Is(err, transport.ErrWrongID))
}

// foreign reports that a node is not one of this network, which will not change during a join.
func foreign(err error) bool {
	return errors.Is(err, transport.ErrWrongChain) || errors.Is(err, transport.ErrWrongVersion)
}

// keep stays connected to an address of the operator, even if another node answers there for a
// while.
func (p *Peers) keep(a transport.Address) {
	wait := firstRetry
	for {
		began := time.Now()
		conn, err := p.dial(a)
		if err == nil {
			id := conn.Remote().ID
			p.attend(conn, true)
			if p.over(id) {
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
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRetry)
	}
}

// over reports whether a node is banned, or this one.
func (p *Peers) over(id transport.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, banned := p.mu.banned[id]
	return banned || id == p.o.Self
}

func (p *Peers) dial(a transport.Address) (transport.Conn, error) {
	ctx, cancel := context.WithTimeout(p.ctx, dialTimeout)
	defer cancel()
	return p.o.Dialer.Dial(ctx, a)
}

func (p *Peers) failed(a transport.Address, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, told := p.mu.failures[a.HostPort]; !told {
		p.o.Logger.Info("Cannot reach a peer", "address", a, "err", err)
	}
	p.mu.failures[a.HostPort] = err.Error()
}

// attend is the life of a connection. It returns another one to the same peer, which takes its
// place, or nil. A peer that is already connected at another address is not needed twice; but an
// address of the operator replaces a told one, which may lead through a liar.
func (p *Peers) attend(conn transport.Conn, own bool) transport.Conn {
	defer conn.Close()
	id := conn.Remote().ID
	p.mu.Lock()
	if own {
		delete(p.mu.failures, conn.Remote().HostPort)
	}
	for old := p.mu.up[id]; own && old != nil && !old.own; old = p.mu.up[id] {
		p.mu.Unlock()
		_ = old.Close() // its error does not matter any more
		<-old.gone
		p.mu.Lock()
	}
	if p.refused(id) || p.ctx.Err() != nil || !own && p.mu.book.leaves(id) {
		p.mu.Unlock()
		return nil
	}
	if !own {
		p.mu.book.connected(time.Now(), conn.Remote())
	}
	gone := make(chan struct{})
	defer close(gone)
	p.mu.up[id] = &peer{Conn: conn, own: own, gone: gone}
	for _, w := range p.mu.watchers {
		w.up(conn)
	}
	p.mu.Unlock()
	next := p.ask(id, conn, own)
	p.mu.Lock()
	defer p.mu.Unlock() // before gone is closed
	delete(p.mu.up, id)
	for _, w := range p.mu.watchers {
		w.down(id)
	}
	return next
}

// ask asks a peer repeatedly what it has and which other nodes it knows, until the connection ends,
// or there is a better one, which it returns.
func (p *Peers) ask(id transport.ID, conn transport.Conn, own bool) transport.Conn {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	var asked time.Time
	mayHaveParts := true
	for {
		status, err := AskStatus(ctx, conn)
		if err == nil && mayHaveParts && len(status.Snapshots) == 0 {
			status.Parts, mayHaveParts, err = partsOf(func(c transport.Call) ([]byte, error) { return call(ctx, conn, c) })
		}
		if err == nil {
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
				p.told(id, own, list)
			} else if errors.Is(err, errMessage) {
				p.Ban(id, statesync.BanMessage, err.Error())
			}
		}
		if !own {
			if next := p.elsewhere(id); next != nil {
				return next
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-conn.Done():
			return nil
		case <-time.After(statusEvery):
		}
	}
}

// told hands the book what a peer has told, but for addresses that are dialled anyway.
func (p *Peers) told(by transport.ID, own bool, list []transport.Address) {
	list = slices.DeleteFunc(list, func(a transport.Address) bool {
		return slices.Contains(p.o.Addresses, a) || slices.Contains(p.o.Addresses, transport.Address{HostPort: a.HostPort})
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.mu.book.as(by, own)
	refused := func(id transport.ID) bool {
		_, banned := p.mu.banned[id]
		return banned || id == p.o.Self || p.skips(id)
	}
	if ok && p.mu.book.tell(time.Now(), t, list, refused) {
		p.look()
	}
	if at := slices.IndexFunc(list, func(a transport.Address) bool { return !public(a.HostPort) }); at >= 0 && p.o.Strict && !p.mu.strict {
		p.mu.strict = true
		p.o.Logger.Info("Peers tell addresses that are not public, which are not dialled; in a private network, set p2p.addr_book_strict = false", "address", list[at], "told_by", by)
	}
}

// elsewhere dials a told peer where it may be faster. nil: there is no such address, or nobody
// answers.
func (p *Peers) elsewhere(id transport.ID) transport.Conn {
	p.mu.Lock()
	a, ok := p.mu.book.better(time.Now(), id)
	p.mu.Unlock()
	if !ok {
		return nil
	}
	conn, err := p.dial(a)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.ctx.Err() == nil {
			p.unreachable(a, err)
		}
		return nil
	}
	return conn
}

// call makes a call with a small answer.
func call(ctx context.Context, conn transport.Conn, c transport.Call) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return conn.Call(ctx, c)
}

// AskStatus asks a node what it has. The answer is a claim.
func AskStatus(ctx context.Context, conn transport.Conn) (Status, error) {
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
