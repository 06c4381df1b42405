package join

import (
	"context"
	"slices"
	"time"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

// event is something that another goroutine reports to the loop, which alone calls handle.
type event interface{ handle(j *joiner) }

// The pause between two attempts to connect to an address, which doubles up to the second.
const (
	firstPause = 250 * time.Millisecond
	maxPause   = 15 * time.Second
)

// connect keeps a connection to an address until the join ends, or the peer is banned.
func (j *joiner) connect(a transport.Address) {
	pause := firstPause
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-j.ctx.Done():
			return
		case <-timer.C:
		}
		switch used, banned := j.visit(a); {
		case banned:
			return
		case used:
			pause = firstPause
		default:
			pause = min(2*pause, maxPause)
		}
		timer.Reset(pause)
	}
}

// visit connects once, and returns when the connection has ended.
func (j *joiner) visit(a transport.Address) (used, banned bool) {
	ctx, cancel := context.WithTimeout(j.ctx, partTimeout)
	defer cancel()
	conn, err := j.o.Dialer.Dial(ctx, a)
	if err != nil {
		j.mail.Put(missed{a, err})
		return false, false
	}
	defer conn.Close() //nolint:errcheck // it is to end
	b, err := call(j.ctx, conn, iavlsync.MethodOffers, nil, iavlsync.MaxOffersBytes)
	var offers iavlsync.Offers
	if err == nil {
		offers, err = iavlsync.DecodeOffers(b)
	}
	if err != nil {
		j.mail.Put(missed{a, err})
		return false, isLie(err)
	}
	refused := make(chan struct{})
	j.mail.Put(up{&peer{conn: conn, offers: offers}, refused})
	select {
	case <-j.ctx.Done():
	case <-conn.Done():
	case <-refused:
		return true, true
	}
	left := make(chan bool, 1)
	j.mail.Put(down{conn, left})
	select {
	case <-j.ctx.Done():
		return true, true
	case banned := <-left:
		return true, banned
	}
}

type (
	missed struct {
		a   transport.Address
		err error
	}
	up struct {
		p       *peer
		refused chan struct{} // closed if the peer is banned, or connected already
	}
	down struct {
		conn transport.Conn
		left chan bool // gets whether the peer is banned
	}
)

func (e missed) handle(j *joiner) { j.say("%s: %v", e.a, e.err) }

func (e up) handle(j *joiner) {
	id := scheduler.PeerID(e.p.conn.Remote().ID)
	if j.banned[transport.ID(id)] || j.peers[id] != nil {
		close(e.refused)
		return
	}
	j.peers[id] = e.p
	if j.o.Up != nil {
		j.o.Up(e.p.conn)
	}
	if j.state != nil {
		j.present(id)
	}
}

// present tells the scheduler of a connected peer.
func (j *joiner) present(id scheduler.PeerID) {
	j.step(scheduler.PeerUp{Peer: id})
	if slices.Contains(j.peers[id].offers, j.state.m.Height) {
		j.step(scheduler.PeerHas{Peer: id, Groups: []scheduler.Group{group}})
	}
}

func (e down) handle(j *joiner) {
	id := scheduler.PeerID(e.conn.Remote().ID)
	if p := j.peers[id]; p != nil && p.conn == e.conn {
		delete(j.peers, id)
		if j.o.Down != nil {
			j.o.Down(transport.ID(id))
		}
		if j.state != nil {
			j.step(scheduler.PeerDown{Peer: id})
		}
	}
	e.left <- j.banned[transport.ID(id)]
}
