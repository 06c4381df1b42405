package syncbench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/serve"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// JoinKinds are the attacks on a node that joins.
//
//	dawdle   40 peers that send the true manifest at 64 bytes per second
//	garbage  40 peers that send invalid responses, as in `byzantine`
//	sybils   128 peers that send one true chunk each, and are busy afterwards
//	proxy    a relay, listed first, that advertises the honest peer's ID at a proxy limited to 16 KB/s
var JoinKinds = []string{"dawdle", "garbage", "sybils", "proxy"}

const (
	dawdlers, garbagers, sybils = 40, 40, 128

	dawdleRate   = 64 // bytes per second
	proxyRate    = 16 << 10
	peersAHost   = 8
	toldByARelay = 60 // a response has room for 64 addresses
)

// besieger runs all attackers.
type besieger struct {
	version *avlstar.Version
	servers []*server
	proxies []io.Closer
	attack  func() // stops the attack on a server; nil: no attack
}

// besiege stops the attackers of the previous join, and starts those of r.Kind (empty: none). It
// returns the target of the next join: relays that advertise the honest peers of r.Target and the
// attackers.
func (b *besieger) besiege(r request) (a answer, err error) {
	if err := b.retreat(); err != nil || r.Kind == "" {
		return a, err
	}
	everybody := slices.Clone(r.Target.Peers)
	var first []string // peers advertised by the attackers' own relay
	for _, kind := range JoinKinds {
		if kind != r.Kind && r.Kind != mixed {
			continue
		}
		var more []string
		switch kind {
		case "dawdle":
			more, err = b.serve(dawdlers, tcp.Options{RatePerPeer: dawdleRate}, nil)
		case "garbage":
			more, err = b.serve(garbagers, tcp.Options{}, func(i int, h transport.Handler) transport.Handler {
				return liar{h, Lies[i%len(Lies)], b.version}
			})
		case "sybils":
			more, err = b.serve(sybils, tcp.Options{}, func(_ int, h transport.Handler) transport.Handler { return &oneChunk{Handler: h} })
		case "proxy":
			first, err = b.proxied(r.Target.Peers)
		}
		if err != nil {
			return a, err
		}
		everybody = append(everybody, more...)
	}
	rng := mathrand.New(mathrand.NewPCG(r.Seed, 0)) //nolint:gosec // reproducible by its seed
	rng.Shuffle(len(everybody), func(i, j int) { everybody[i], everybody[j] = everybody[j], everybody[i] })
	a.Target = r.Target
	a.Target.Peers, err = b.relays(first, everybody)
	return a, err
}

// serve starts n peers that serve the true state, peersAHost per loopback address.
func (b *besieger) serve(n int, o tcp.Options, wrap func(i int, h transport.Handler) transport.Handler) ([]string, error) {
	s := serveOnly(b.version)
	b.servers = append(b.servers, s)
	for i := range n {
		var of func(transport.Handler) transport.Handler
		if wrap != nil {
			of = func(h transport.Handler) transport.Handler { return wrap(i, h) }
		}
		if err := s.listenOn(loopback(10+i/peersAHost), o, of); err != nil {
			return nil, err
		}
	}
	return s.target.Peers, nil
}

// loopback returns the address 127.0.0.n.
func loopback(n int) string { return fmt.Sprintf("127.0.0.%d", n) }

// manyLoopbacks returns an error if this system has only one loopback address.
func manyLoopbacks() error {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(loopback(attackFrom), "0"))
	if err != nil {
		return fmt.Errorf("attackers need separate loopback addresses, as on Linux: %w", err)
	}
	return l.Close()
}

// relays starts peers that serve no state but advertise other peers. The peers in first, if any,
// get a relay of their own, which is listed first.
func (b *besieger) relays(first, everybody []string) (relays []string, err error) {
	lists := slices.Collect(slices.Chunk(everybody, toldByARelay))
	if len(first) > 0 {
		lists = append([][]string{first}, lists...)
	}
	for _, list := range lists {
		known, err := Target{Peers: list}.addresses()
		if err != nil {
			return nil, err
		}
		s := &server{snapshots: statesync.NewManager(statesync.Options{Interval: servedHeight, Keep: 1}), mux: new(transport.Mux), target: Target{ChainID: chainID}}
		serve.New(serve.Options{Snapshots: s.snapshots, Peers: func() []transport.Address { return known }}).Register(s.mux)
		b.servers = append(b.servers, s)
		if err := s.listen(tcp.Options{}, nil); err != nil {
			return nil, err
		}
		relays = append(relays, s.target.Peers...)
	}
	return relays, nil
}

// proxied starts a slow proxy for each peer, and returns addresses with the peers' IDs at the
// proxies.
func (b *besieger) proxied(peers []string) (told []string, err error) {
	addresses, err := Target{Peers: peers}.addresses()
	if err != nil {
		return nil, err
	}
	for i, a := range addresses {
		p, err := newProxy(loopback(200+i), a.HostPort)
		if err != nil {
			return nil, err
		}
		b.proxies = append(b.proxies, p)
		told = append(told, transport.Address{ID: a.ID, HostPort: p.Addr().String()}.String())
	}
	return told, nil
}

// retreat stops the attackers of the last join.
func (b *besieger) retreat() (err error) {
	for _, s := range b.servers {
		err = errors.Join(err, s.close())
	}
	for _, p := range b.proxies {
		err = errors.Join(err, p.Close())
	}
	b.servers, b.proxies = nil, nil
	return err
}

func (b *besieger) close() error {
	if b.attack != nil {
		b.attack()
	}
	return b.retreat()
}

// oneChunk is an honest handler until it has sent a chunk. Afterwards it is busy.
type oneChunk struct {
	transport.Handler
	gave atomic.Bool
}

// Serve implements transport.Handler.
func (o *oneChunk) Serve(ctx context.Context, r transport.Request) ([]byte, error) {
	if r.Method == protocol.MethodChunk && o.gave.Swap(true) {
		return nil, transport.ErrBusy
	}
	return o.Handler.Serve(ctx, r)
}

// proxy forwards connections at proxyRate.
type proxy struct {
	net.Listener
	to   string
	wg   sync.WaitGroup
	open sync.Map // net.Conn → struct{}
}

func newProxy(host, to string) (*proxy, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	p := &proxy{Listener: l, to: to}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the listener is closed
			}
			p.wg.Go(func() { p.forward(c) })
		}
	})
	return p, nil
}

func (p *proxy) forward(in net.Conn) {
	out, err := (&net.Dialer{}).Dial("tcp", p.to)
	if err != nil {
		_ = in.Close() // the peer has ended
		return
	}
	for _, c := range []net.Conn{in, out} {
		p.open.Store(c, nil)
		defer p.open.Delete(c)
	}
	var both sync.WaitGroup
	pump := func(from, to net.Conn) func() {
		return func() {
			defer from.Close()
			defer to.Close()
			const turns = 10 // per second
			piece := make([]byte, proxyRate/turns)
			turn := time.NewTicker(time.Second / turns)
			defer turn.Stop()
			for range turn.C {
				n, err := from.Read(piece)
				if _, failed := to.Write(piece[:n]); err != nil || failed != nil {
					return
				}
			}
		}
	}
	both.Go(pump(in, out))
	both.Go(pump(out, in))
	both.Wait()
}

// Close closes the proxy and all its connections.
func (p *proxy) Close() error {
	err := p.Listener.Close()
	p.open.Range(func(c, _ any) bool { return c.(net.Conn).Close() == nil || true })
	p.wg.Wait()
	return err
}

// dialFrom returns a dialer of a chain with a new node key at a loopback address. wrap wraps the
// dialer's connections; nil: unwrapped.
func dialFrom(host, chainID string, wrap func(net.Conn) net.Conn) (transport.Dialer, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return tcp.NewDialer(tcp.Options{Key: key, ChainID: chainID, Connect: func(ctx context.Context, hostPort string) (net.Conn, error) {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}).DialContext(ctx, "tcp", hostPort)
		if err == nil && wrap != nil {
			c = wrap(c)
		}
		return c, err
	}}), nil
}
