package join

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

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

// Peer is an address of Options.Addresses.
type Peer struct {
	Address transport.Address
	ID      transport.ID // of the node that last answered a request at the address; "": none
	Answer  string       // what it last answered, in one line
	Err     error        // why it is of no use; nil: Answer is not a failure
	// Final reports that waiting does not help: the peer is banned, or is not the node that the
	// operator named.
	Final bool
}

// PeersError is the error of a join that no peer could help.
type PeersError struct {
	Err   error  // ErrNothing, ErrStale, ErrStalled or ErrNoPeers
	Peers []Peer // in the order of Options.Addresses
}

// Unwrap returns Err.
func (e *PeersError) Unwrap() error { return e.Err }

func (e *PeersError) Error() string { return e.Err.Error() + table(e.Peers) }

// table returns a line for each peer, each after a line break.
func table(peers []Peer) string {
	width := 0
	for _, p := range peers {
		width = max(width, len(p.Address.String()))
	}
	var b strings.Builder
	for _, p := range peers {
		fmt.Fprintf(&b, "\n  %-*s  %s", width, p.Address, p.Answer)
	}
	return b.String()
}

// maxReason limits the length of an error in Peer.Answer, in bytes.
const maxReason = 300

var dialled = regexp.MustCompile(`^dial \S+: `)

// reason returns an error in one line, without the address that was dialled.
func reason(err error) string {
	var op *net.OpError
	text := dialled.ReplaceAllString(err.Error(), "")
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.As(err, &op):
		text = op.Err.Error()
	}
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

// heights describes the heights of offers, which ascend.
func heights(o iavlsync.Offers) string {
	switch len(o) {
	case 0:
		return "no state"
	case 1:
		return fmt.Sprintf("height %d", o[0])
	}
	return fmt.Sprintf("%d heights, %d to %d", len(o), o[0], o[len(o)-1])
}

// answered records the last answer of a peer, and why it is of no use. Addresses with one ID are
// one peer.
func (j *joiner) answered(id transport.ID, answer string, err error) {
	for i := range j.known {
		if p := &j.known[i]; p.ID == id && !p.Final {
			p.Answer, p.Err = answer, err
		}
	}
}

// failed records a failed request to a peer.
func (j *joiner) failed(id transport.ID, what string, err error) {
	j.answered(id, what+": "+reason(err), err)
}

// useless returns ErrNoPeers if no peer can be of use anymore.
func (j *joiner) useless() error {
	if slices.ContainsFunc(j.known, func(p Peer) bool { return !p.Final }) {
		return nil
	}
	return ErrNoPeers
}

// connect keeps a connection to an address until the join ends or the peer is banned. n is the
// number of the address.
func (j *joiner) connect(n int, a transport.Address) {
	pause := firstPause
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-j.ctx.Done():
			return
		case <-timer.C:
		}
		switch used, banned := j.visit(n, a); {
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
func (j *joiner) visit(n int, a transport.Address) (used, banned bool) {
	ctx, cancel := context.WithTimeout(j.ctx, partTimeout)
	defer cancel()
	conn, err := j.o.Dialer.Dial(ctx, a)
	if err != nil {
		wrong := errors.Is(err, transport.ErrWrongChain) || errors.Is(err, transport.ErrWrongID) || errors.Is(err, transport.ErrWrongVersion)
		j.missed(n, "", err, wrong)
		return false, false
	}
	defer conn.Close() //nolint:errcheck // the connection is no longer needed
	b, err := call(j.ctx, conn, iavlsync.MethodOffers, nil, iavlsync.MaxOffersBytes)
	var offers iavlsync.Offers
	if err == nil {
		offers, err = iavlsync.DecodeOffers(b)
	}
	if err != nil {
		j.missed(n, conn.Remote().ID, err, isLie(err))
		return false, isLie(err)
	}
	refused := make(chan bool, 1)
	j.loop.Post(func() { j.up(n, &peer{conn: conn, offers: offers}, refused) })
	select {
	case <-j.ctx.Done():
	case <-conn.Done():
	case banned := <-refused:
		return false, banned
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

// missed handles a failure before a peer was registered. final: it will not be different later.
func (j *joiner) missed(n int, id transport.ID, err error, final bool) {
	j.loop.Post(func() {
		p := &j.known[n]
		p.Answer, p.Err, p.Final = reason(err), err, final
		if final && id != "" {
			p.ID, p.Answer = id, "banned: "+p.Answer
		}
		j.say("%s: %s", p.Address, p.Answer)
	})
}

// up registers a connected peer. It sends to refused if the peer is banned (true), or connected at
// another address (false).
func (j *joiner) up(n int, p *peer, refused chan bool) {
	id := scheduler.PeerID(p.conn.Remote().ID)
	k := &j.known[n]
	k.ID, k.Err = transport.ID(id), nil
	switch {
	case j.banned[k.ID]:
		k.Answer, k.Err, k.Final = "banned: it has the id of a banned peer", ErrNoPeers, true
		refused <- true
		return
	case j.peers[id] != nil:
		k.Answer = "the same node, or a copy with the same key, is at " + j.peers[id].conn.Remote().HostPort
		refused <- false
		return
	}
	k.Answer, k.Final = "it offers "+heights(p.offers), false
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
	} else {
		j.absent(id, j.state.m.Height)
	}
}

// absent records that a connected peer does not offer a height.
func (j *joiner) absent(id scheduler.PeerID, height int64) {
	j.answered(transport.ID(id), fmt.Sprintf("no state of height %d: it offers %s", height, heights(j.peers[id].offers)), nil)
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
