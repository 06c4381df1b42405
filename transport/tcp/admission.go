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
	burstSeconds = 4    // of acceptRate
	maxHosts     = 4096 // hosts that are remembered; if there are more, new ones are refused
)

// admission counts connections and decides which are let in:
//
//	knock ──► pending ──pass──► guest ──leave──►
//	             └──────settled, whether it has passed or not
//
// To crowd others out takes as many hosts as there are places: where all are taken, a host's
// connection takes the place of one of a host that has at least two more.
type admission struct {
	o  *Options
	mu struct {
		sync.Mutex
		pending, conns int                    // connections: not yet settled; guests
		hosts          map[string]*host       // by the key of hostOf
		peers          map[transport.ID]*peer // that have guests
		swept          time.Time              // when sweep was called last
	}
}

// host is what is known of an address. It is kept while it has connections, or has used up its
// rate. Guarded by admission.mu.
type host struct {
	pending int
	guests  []*guest      // the oldest first
	accepts *rate.Limiter // of knock
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
	conns int           // guarded by admission.mu
	rate  *rate.Limiter // nil: no cap
}

func newAdmission(o *Options) *admission {
	a := &admission{o: o}
	a.mu.hosts, a.mu.peers = make(map[string]*host), make(map[transport.ID]*peer)
	return a
}

// hostOf is an address without its port, and the key that limits go by: a /64 of IPv6 is one
// customer.
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

// knock lets a connection try to authenticate, until settled. Its errors are ErrAcceptRate and
// ErrTooManyPending.
func (a *admission) knock(key string, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.mu.hosts[key]
	if h == nil {
		if len(a.mu.hosts) >= maxHosts && now.Sub(a.mu.swept) >= time.Second {
			a.sweep(now)
		}
		if len(a.mu.hosts) >= maxHosts {
			return ErrAcceptRate
		}
		h = &host{accepts: rate.NewLimiter(rate.Limit(a.o.acceptRate), int(burstSeconds*a.o.acceptRate)+1)}
		a.mu.hosts[key] = h
	}
	if !h.accepts.AllowN(now, 1) {
		return ErrAcceptRate
	}
	if a.mu.pending >= a.o.maxPending || h.pending >= (a.o.maxPending+1)/2 {
		return ErrTooManyPending
	}
	a.mu.pending++
	h.pending++
	return nil
}

// sweep forgets hosts of which nothing is left to remember. The caller holds a.mu.
func (a *admission) sweep(now time.Time) {
	a.mu.swept = now
	for key, h := range a.mu.hosts {
		if h.pending == 0 && len(h.guests) == 0 && h.accepts.TokensAt(now) >= float64(h.accepts.Burst()) {
			delete(a.mu.hosts, key)
		}
	}
}

// pass makes a pending connection a guest. drop is called, under the lock, if the guest has to make
// room. It fails with ErrTooManyConns.
func (a *admission) pass(key string, id transport.ID, drop func()) (*guest, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.mu.hosts[key]
	if len(h.guests) >= a.o.MaxConnsPerHost || a.mu.conns >= a.o.MaxConns && !a.makeRoom(len(h.guests)) {
		return nil, ErrTooManyConns
	}
	p := a.mu.peers[id]
	if p == nil {
		p = &peer{rate: newRate(a.o.RatePerPeer)}
		a.mu.peers[id] = p
	}
	v := &guest{host: h, id: id, peer: p, drop: drop}
	a.mu.conns++
	p.conns++
	h.guests = append(h.guests, v)
	return v, nil
}

// makeRoom drops the newest connection of the host that has most, if that has two more than has,
// those of the host that wants in. The caller holds a.mu.
func (a *admission) makeRoom(has int) bool {
	most := &host{}
	for _, h := range a.mu.hosts {
		if len(h.guests) > len(most.guests) {
			most = h
		}
	}
	if len(most.guests) < has+2 {
		return false
	}
	v := most.guests[len(most.guests)-1]
	a.remove(v)
	v.drop()
	return true
}

// settled ends what knock began.
func (a *admission) settled(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.pending--
	a.mu.hosts[key].pending--
}

// leave undoes pass.
func (a *admission) leave(v *guest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remove(v)
}

// remove counts a guest out, once. The caller holds a.mu.
func (a *admission) remove(v *guest) {
	at := slices.Index(v.host.guests, v)
	if at < 0 {
		return
	}
	v.host.guests = slices.Delete(v.host.guests, at, at+1)
	a.mu.conns--
	if v.peer.conns--; v.peer.conns == 0 {
		delete(a.mu.peers, v.id)
	}
}

// newRate caps bytes a second; nil: no cap. Its burst is long enough for every piece.
func newRate(bytes int64) *rate.Limiter {
	if bytes <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytes), int(max(bytes/8, 2*maxPiece)))
}
