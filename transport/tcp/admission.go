package tcp

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/starling-kv/starling/transport"
)

const (
	burstSeconds = 4    // of acceptRate
	maxNets      = 4096 // number of networks remembered; beyond it, new ones are refused
	// unused is how long a connection without requests keeps its slot when a newcomer needs one.
	unused = 10 * time.Second
)

// admission counts connections and decides which ones to admit:
//
//	knock ──► pending ──pass──► guest ──leave──►
//	             └──────settled, whether it has passed or not
//
// If all slots are taken, a connection of the network with the most connections is closed to make
// room, or an unused one: see crowd.
type admission struct {
	o  *Options
	mu struct {
		sync.Mutex
		pending, guests crowd
		nets            map[string]*network // by name, as in origin.nets
		swept           time.Time           // time of the last sweep
	}
}

// network is the state kept for a network of any width. It is kept while the network has
// connections or has not recovered its rates.
type network struct {
	accepts *rate.Limiter // of knock; guarded by admission.mu
	sent    *rate.Limiter // bytes of answers to a host, over all its connections; nil: no cap
}

// knocker is a connection that is not authenticated yet.
type knocker struct {
	member
	since  time.Time
	first  time.Duration // how long it may stay silent
	heard  atomic.Int64  // arrival of the ClientHello, in nanoseconds after since; 0: not arrived
	ousted atomic.Bool   // it was closed to make room
}

// guest is an authenticated connection.
type guest struct {
	member
	sent *rate.Limiter // of the host; nil: no cap
	use  use
}

// use records the activity of a connection. The zero value has made no request.
type use struct {
	sync.Mutex
	open int       // requests under way
	last time.Time // begin or end of the latest one; initially, the time of admission
}

func (u *use) count(requests int) {
	u.Lock()
	defer u.Unlock()
	u.open += requests
	u.last = time.Now()
}

// unused returns how long the connection has had no requests; 0: it has some.
func (u *use) unused(now time.Time) time.Duration {
	u.Lock()
	defer u.Unlock()
	if u.open > 0 {
		return 0
	}
	return now.Sub(u.last)
}

func newAdmission(o *Options) *admission {
	a := &admission{o: o}
	a.mu.pending = crowd{places: o.maxPending, perHost: (o.maxPending + 1) / 2}
	a.mu.guests = crowd{places: o.MaxConns, perHost: o.MaxConnsPerHost}
	a.mu.nets = make(map[string]*network)
	return a
}

// knock lets a connection try to authenticate, until settled. drop is called, under the lock, if
// the connection must make room. The errors are ErrAcceptRate and ErrTooManyPending.
func (a *admission) knock(from origin, now time.Time, drop func()) (*knocker, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, net := range from.nets { // a network above its rate takes no new entry
		if n := a.mu.nets[net]; n != nil && n.accepts.TokensAt(now) < 1 {
			return nil, ErrAcceptRate
		}
	}
	if !a.remember(from, now) {
		return nil, ErrAcceptRate
	}
	for _, net := range from.nets {
		a.mu.nets[net].accepts.AllowN(now, 1)
	}
	k := &knocker{since: now, first: a.o.firstTimeout}
	k.member = member{from: from, spare: k.silent, drop: func() {
		k.ousted.Store(true)
		drop()
	}}
	if !a.mu.pending.enter(&k.member, now) {
		return nil, ErrTooManyPending
	}
	return k, nil
}

// hear records the arrival of the ClientHello.
func (k *knocker) hear(now time.Time) { k.heard.Store(max(1, int64(now.Sub(k.since)))) }

// silent is member.spare: a connection without a ClientHello can be spared. An honest dialer's
// ClientHello comes with the last packet of its TCP handshake, or right after it.
func (k *knocker) silent(now time.Time) time.Duration {
	age := now.Sub(k.since)
	if heard := time.Duration(k.heard.Load()); heard != 0 {
		return age - heard - k.first
	}
	return age + k.first
}

// remember adds the networks of an origin to nets; it returns false if there is no room. A wider
// network may open more connections than a host, but fewer than its hosts together.
func (a *admission) remember(from origin, now time.Time) bool {
	for i, net := range from.nets {
		if a.mu.nets[net] != nil {
			continue
		}
		if len(a.mu.nets) >= maxNets && now.Sub(a.mu.swept) >= time.Second {
			a.sweep(now)
		}
		if len(a.mu.nets) >= maxNets {
			return false
		}
		rest := len(from.nets) - 1 - i
		accepts := a.o.acceptRate * math.Pow(4, float64(rest))
		n := &network{accepts: rate.NewLimiter(rate.Limit(accepts), int(burstSeconds*accepts)+1)}
		if rest == 0 {
			n.sent = newRate(a.o.RatePerPeer)
		}
		a.mu.nets[net] = n
	}
	return true
}

// sweep forgets networks that have no connections and have recovered their rates. The caller holds
// a.mu.
func (a *admission) sweep(now time.Time) {
	a.mu.swept = now
	full := func(l *rate.Limiter) bool { return l == nil || l.TokensAt(now) >= float64(l.Burst()) }
	for net, n := range a.mu.nets {
		if a.mu.pending.of[net] == 0 && a.mu.guests.of[net] == 0 && full(n.accepts) && full(n.sent) {
			delete(a.mu.nets, net)
		}
	}
}

// pass makes a pending connection a guest. drop is called, under the lock, if the guest must make
// room. It fails with ErrTooManyConns, or with ErrTooManyPending if the pending connection was
// closed to make room.
func (a *admission) pass(k *knocker, id transport.ID, now time.Time, drop func()) (*guest, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if k.ousted.Load() { // its host may be forgotten
		return nil, ErrTooManyPending
	}
	g := &guest{sent: a.mu.nets[k.from.host()].sent}
	g.use.last = now
	g.member = member{
		from: k.from, isNamed: func() bool { return a.o.Named != nil && a.o.Named(id) }, drop: drop,
		spare: func(now time.Time) time.Duration { return g.use.unused(now) - unused },
	}
	if !a.mu.guests.enter(&g.member, now) {
		return nil, ErrTooManyConns
	}
	return g, nil
}

// settled ends the pending state that knock began.
func (a *admission) settled(k *knocker) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.pending.leave(&k.member)
}

// leave undoes pass.
func (a *admission) leave(g *guest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.guests.leave(&g.member)
}

// newRate returns a limiter of bytes per second; nil: no cap. Its burst exceeds the largest piece.
func newRate(bytes int64) *rate.Limiter {
	if bytes <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytes), int(max(bytes/8, 2*maxPiece)))
}
