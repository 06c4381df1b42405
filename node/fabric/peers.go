package fabric

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/starling-kv/starling/statuspage"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// maxPeers limits the peers that are remembered: those of a trusted network can be many.
const maxPeers = 1024

// peer is what is known of the paths to and from a peer.
type peer struct {
	sent, received uint64 // bytes by RDMA
	// reason is why it has no path that was dialled from here; "": it has one, or none was tried.
	// It may name addresses of this host: for the log only.
	reason string
	// fallback is one of rdma.Reasons: why the last path ended, or was not made, at fallbackTime;
	// "": that never happened.
	fallback     string
	fallbackTime time.Time
	noted        uint64 // Paths.mu.noted when something of it was noted last
}

// note changes what is remembered of a peer.
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

// forget forgets the peer of which nothing was noted for the longest time, one that is not
// connected if there is one: a peer with a path is connected. The caller holds p.mu.
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

// sides count the connections of each peer.
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

// Proposed implements tcp.Sides. A connection whose peer proposes again counts once.
func (s *sides) Proposed(ctx context.Context, l tcp.Link, body []byte) ([]byte, tcp.Writer, error) {
	if p := s.paths; p.serves(ctx, l.Peer) {
		context.AfterFunc(ctx, func() { p.ended(ctx, l.Peer) })
	}
	return s.Sides.Proposed(ctx, l, body)
}

// lender is that of a connection which is counted until it is closed.
type lender struct {
	tcp.Lender
	closed func()
}

// Close implements tcp.Lender.
func (l *lender) Close() {
	l.Lender.Close()
	l.closed()
}

// connected counts connections of a peer.
func (p *Paths) connected(id transport.ID, by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connect(id, by)
}

// connect counts connections of a peer. The caller holds p.mu.
func (p *Paths) connect(id transport.ID, by int) {
	if p.mu.connected[id] += by; p.mu.connected[id] <= 0 {
		delete(p.mu.connected, id)
	}
}

// serves counts a connection that is served, whose context is ctx, and reports whether it was not
// counted before.
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

// ended uncounts a connection that was served.
func (p *Paths) ended(ctx context.Context, id transport.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.served, ctx)
	p.connect(id, -1)
}

// Status returns what a status page shows of paths; nil: they are off. The peers whose IDs are in
// private are left out: a page may be public.
func (p *Paths) Status(private string) *statuspage.RDMA {
	if p == nil {
		return nil
	}
	if p.lacking != nil {
		return &statuspage.RDMA{Lacking: p.lacking.Public(), Mend: p.lacking.Finding.Mend, Peers: []statuspage.RDMAPeer{}}
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
	// Those that matter most first: paths that are up, peers that are connected, then bytes.
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
