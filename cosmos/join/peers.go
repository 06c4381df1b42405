package join

import (
	"context"
	"slices"
	"time"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

// Pause between two attempts to connect to an address. It doubles from the first to the second
// value.
const (
	firstPause = 250 * time.Millisecond
	maxPause   = 15 * time.Second
)

// connect keeps a connection to an address until the join ends or the peer is banned.
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
		j.missed(a, err)
		return false, false
	}
	defer conn.Close() //nolint:errcheck // the connection is no longer needed
	b, err := call(j.ctx, conn, iavlsync.MethodOffers, nil, iavlsync.MaxOffersBytes)
	var offers iavlsync.Offers
	if err == nil {
		offers, err = iavlsync.DecodeOffers(b)
	}
	if err != nil {
		j.missed(a, err)
		return false, isLie(err)
	}
	refused := make(chan struct{})
	j.loop.Post(func() { j.up(&peer{conn: conn, offers: offers}, refused) })
	select {
	case <-j.ctx.Done():
	case <-conn.Done():
	case <-refused:
		return true, true
	}
	left := make(chan bool, 1)
	j.loop.Post(func() { j.down(conn, left) })
	select {
	case <-j.ctx.Done():
		return true, true
	case banned := <-left:
		return true, banned
	}
}

func (j *joiner) missed(a transport.Address, err error) {
	j.loop.Post(func() { j.say("%s: %v", a, err) })
}

// up registers a connected peer. It closes refused if the peer is banned, or already connected.
func (j *joiner) up(p *peer, refused chan struct{}) {
	id := scheduler.PeerID(p.conn.Remote().ID)
	if j.banned[transport.ID(id)] || j.peers[id] != nil {
		close(refused)
		return
	}
	j.peers[id] = p
	if j.o.Up != nil {
		j.o.Up(p.conn)
	}
	if j.state != nil {
		j.present(id)
	}
}

// present registers a connected peer with the scheduler.
func (j *joiner) present(id scheduler.PeerID) {
	j.loop.Up(j.peers[id].conn)
	if slices.Contains(j.peers[id].offers, j.state.m.Height) {
		j.loop.Has(id, []scheduler.Group{group}, nil)
	}
}

// down handles the end of a connection. It sends to left whether the peer is banned.
func (j *joiner) down(conn transport.Conn, left chan bool) {
	id := scheduler.PeerID(conn.Remote().ID)
	if p := j.peers[id]; p != nil && p.conn == conn {
		delete(j.peers, id)
		if j.o.Down != nil {
			j.o.Down(transport.ID(id))
		}
		if j.state != nil {
			j.loop.Down(id)
		}
	}
	left <- j.banned[transport.ID(id)]
}
