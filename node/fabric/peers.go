package fabric

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/starling-kv/starling/node/statuspage"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// maxPeers limits the peers that are remembered: a trusted network can have many.
const maxPeers = 1024

// peer is the state of the channels to and from a peer.
type peer struct {
	sent, received uint64 // bytes over RDMA
	// reason is why this node has no channel to the peer; "": it has one, or has not tried. It may
	// contain addresses of this host: for the log only.
	reason string
	// fallback is one of rdma.Reasons: why the last channel failed, or could not be established, at
	// fallbackTime; "": that never happened.
	fallback     string
	fallbackTime time.Time
	noted        uint64 // Paths.mu.noted at the last change of this peer
}

// note changes what is known about a peer.
func (p *Paths) note(id transport.ID, change func(*peer)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.mu.peers[id]
	if of == nil {
		if len(p.mu.peers) >= maxPeers {
			p.forget()
		}
		of = new(peer)
		p.mu.peers[id] = of
	}
	p.mu.noted++
	of.noted = p.mu.noted
	change(of)
}

// forget removes the peer whose last change is the oldest, preferably one that is not connected: a
// peer with a channel is connected. The caller holds p.mu.
func (p *Paths) forget() {
	var oldest transport.ID
	for id, of := range p.mu.peers {
		if oldest == "" {
			oldest = id
			continue
		}
		here, best := p.mu.connected[id] > 0, p.mu.connected[oldest] > 0
		if here != best && best || here == best && of.noted < p.mu.peers[oldest].noted {
			oldest = id
		}
	}
	delete(p.mu.peers, oldest)
}

// sides counts the connections of each peer.
type sides struct {
	tcp.Sides
	paths *Paths
}

// Dialled implements tcp.Sides.
func (s *sides) Dialled(c *tcp.Conn) tcp.Lender {
	id := c.Remote().ID
	s.paths.connected(id, 1)
	return &lender{Lender: s.Sides.Dialled(c), closed: sync.OnceFunc(func() { s.paths.connected(id, -1) })}
}

// Proposed implements tcp.Sides. A connection whose peer proposes again is counted once.
func (s *sides) Proposed(ctx context.Context, l tcp.Link, body []byte) ([]byte, tcp.Writer, error) {
	if p := s.paths; p.serves(ctx, l.Peer) {
		context.AfterFunc(ctx, func() { p.ended(ctx, l.Peer) })
	}
	return s.Sides.Proposed(ctx, l, body)
}

// lender counts its connection until it is closed.
type lender struct {
	tcp.Lender
	closed func()
}

// Close implements tcp.Lender.
func (l *lender) Close() {
	l.Lender.Close()
	l.closed()
}

// connected adds to a peer's number of connections.
func (p *Paths) connected(id transport.ID, by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connect(id, by)
}

// connect adds to a peer's number of connections. The caller holds p.mu.
func (p *Paths) connect(id transport.ID, by int) {
	if p.mu.connected[id] += by; p.mu.connected[id] <= 0 {
		delete(p.mu.connected, id)
	}
}

// serves counts a served connection, whose context is ctx, and reports whether it is a new one.
func (p *Paths) serves(ctx context.Context, id transport.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, is := p.mu.served[ctx]; is {
		return false
	}
	p.mu.served[ctx] = struct{}{}
	p.connect(id, 1)
	return true
}

// ended removes a served connection from the count.
func (p *Paths) ended(ctx context.Context, id transport.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.served, ctx)
	p.connect(id, -1)
}

// Status returns the RDMA section of the status page; nil: RDMA is off. Peers whose IDs are in
// private are omitted, because the page may be public.
func (p *Paths) Status(private string) *statuspage.RDMA {
	if p == nil {
		return nil
	}
	if p.missing != nil {
		return &statuspage.RDMA{Missing: p.missing.Public(), Fix: p.missing.Finding.Fix, Peers: []statuspage.RDMAPeer{}}
	}
	s := p.fabric.Stats()
	status := &statuspage.RDMA{PathsUp: s.Up, QueuePairs: s.QueuePairs, MemoryBytes: s.Memory, Peers: []statuspage.RDMAPeer{}}
	p.mu.Lock()
	for id, of := range p.mu.peers {
		if strings.Contains(private, string(id)) {
			continue
		}
		status.Peers = append(status.Peers, statuspage.RDMAPeer{
			ID: string(id), Connected: p.mu.connected[id] > 0, PathsUp: s.UpTo[id], SentBytes: of.sent, ReceivedBytes: of.received,
			Fallback: of.fallback, FallbackTime: of.fallbackTime,
		})
	}
	p.mu.Unlock()
	// Most relevant first: established channels, connected peers, then bytes.
	slices.SortFunc(status.Peers, func(a, b statuspage.RDMAPeer) int {
		return cmp.Or(cmp.Compare(b.PathsUp, a.PathsUp), compareBool(b.Connected, a.Connected), cmp.Compare(b.SentBytes+b.ReceivedBytes, a.SentBytes+a.ReceivedBytes), cmp.Compare(a.ID, b.ID))
	})
	status.Peers = status.Peers[:min(len(status.Peers), statuspage.MaxPeers)]
	return status
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
