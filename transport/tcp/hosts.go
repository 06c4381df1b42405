package tcp

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/starling-kv/starling/transport"
)

const (
	burstSeconds = 4    // of AcceptRate
	maxHosts     = 4096 // whose accept rates are remembered; new ones are refused where so many come at once
)

// gate counts connections, and says which more may come in. Who wants to crowd others out needs as many hosts as there is room: where all is
// taken, a host's connection takes the place of one of a host that has at least two more.
type gate struct {
	o  *Options
	mu struct {
		sync.Mutex
		pending, conns int
		hosts          map[string]*host
		peers          map[transport.ID]*peer
		swept          time.Time
	}
}

// host is what is known of an address: kept while it has connections, or its rate is used up.
type host struct {
	pending int
	guests  []*guest // the oldest first
	accepts *rate.Limiter
}

// guest is an authenticated connection.
type guest struct {
	host *host
	id   transport.ID
	peer *peer
	drop func() // closes it, without waiting
}

// peer is what the connections of an ID share.
type peer struct {
	conns int
	rate  *rate.Limiter // nil: no cap
}

func newGate(o *Options) *gate {
	g := &gate{o: o}
	g.mu.hosts, g.mu.peers = make(map[string]*host), make(map[transport.ID]*peer)
	return g
}

// hostOf is an address without its port, and the key that limits go by: a /64 of IPv6 is one customer.
func hostOf(a net.Addr) (name, key string) {
	name, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String(), a.String()
	}
	ip, err := netip.ParseAddr(name)
	if err != nil {
		return name, name
	}
	if ip = ip.Unmap(); ip.Is6() {
		prefix, _ := ip.Prefix(64) //nolint:errcheck // 64 bits are what IPv6 has
		return name, prefix.String()
	}
	return ip.String(), ip.String()
}

// knock lets a connection try to authenticate, until pass or leave.
func (g *gate) knock(key string, now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.mu.hosts[key]
	if h == nil {
		if len(g.mu.hosts) >= maxHosts && now.Sub(g.mu.swept) >= time.Second {
			g.sweep(now)
		}
		if len(g.mu.hosts) >= maxHosts {
			return ErrAcceptRate
		}
		h = &host{accepts: rate.NewLimiter(rate.Limit(g.o.AcceptRate), int(burstSeconds*g.o.AcceptRate)+1)}
		g.mu.hosts[key] = h
	}
	if !h.accepts.AllowN(now, 1) {
		return ErrAcceptRate
	}
	if g.mu.pending >= g.o.MaxPending || h.pending >= (g.o.MaxPending+1)/2 {
		return ErrTooManyPending
	}
	g.mu.pending++
	h.pending++
	return nil
}

// sweep forgets hosts of which nothing is left to remember.
func (g *gate) sweep(now time.Time) {
	g.mu.swept = now
	for key, h := range g.mu.hosts {
		if h.pending == 0 && len(h.guests) == 0 && h.accepts.TokensAt(now) >= float64(h.accepts.Burst()) {
			delete(g.mu.hosts, key)
		}
	}
}

// pass makes a connection that knocked a guest.
func (g *gate) pass(key string, id transport.ID, drop func()) (*guest, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.mu.hosts[key]
	if len(h.guests) >= g.o.MaxConnsPerHost || g.mu.conns >= g.o.MaxConns && !g.makeRoom(len(h.guests)) {
		return nil, ErrTooManyConns
	}
	p := g.mu.peers[id]
	if p == nil {
		p = &peer{rate: newRate(g.o.RatePerPeer)}
		g.mu.peers[id] = p
	}
	v := &guest{host: h, id: id, peer: p, drop: drop}
	g.mu.conns++
	p.conns++
	h.guests = append(h.guests, v)
	return v, nil
}

// makeRoom drops the newest connection of the host that has most, if that has two more than the host that wants in.
func (g *gate) makeRoom(has int) bool {
	most := &host{}
	for _, h := range g.mu.hosts {
		if len(h.guests) > len(most.guests) {
			most = h
		}
	}
	if len(most.guests) < has+2 {
		return false
	}
	v := most.guests[len(most.guests)-1]
	g.remove(v)
	v.drop()
	return true
}

// settled ends knocking, whether it passed or not.
func (g *gate) settled(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.pending--
	g.mu.hosts[key].pending--
}

// leave undoes pass.
func (g *gate) leave(v *guest) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.remove(v)
}

// remove counts a guest out, once.
func (g *gate) remove(v *guest) {
	at := slices.Index(v.host.guests, v)
	if at < 0 {
		return
	}
	v.host.guests = slices.Delete(v.host.guests, at, at+1)
	g.mu.conns--
	if v.peer.conns--; v.peer.conns == 0 {
		delete(g.mu.peers, v.id)
	}
}

// newRate caps bytes a second; nil: no cap. A piece always fits its burst.
func newRate(bytes int64) *rate.Limiter {
	if bytes <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytes), int(max(bytes/8, 2*maxPiece)))
}
