package restore

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/serve"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// sybil adds another identity of an attacker. It listens at an address and answers with meddle
// applied to the answers of the node of.
func (w *world) sybil(a transport.Address, of *testNode, meddle meddler) {
	w.t.Helper()
	mux := new(transport.Mux)
	serve.New(serve.Options{Snapshots: of.manager}).Register(mux)
	listener, err := w.net.Listen(a.HostPort, transporttest.Config{
		ID: a.ID, Host: "liar", ChainID: "chain",
		Handler: transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
			answer, err := mux.Serve(ctx, r)
			return meddle(of, r, answer, err)
		}),
	})
	require.NoError(w.t, err)
	w.sybils = append(w.sybils, listener)
}

// tells makes a node advertise the given addresses.
func tells(list ...transport.Address) meddler {
	return instead(protocol.MethodPeers, func() ([]byte, error) { return protocol.EncodePeers(list), nil })
}

// An attacker advertises the ID of an honest peer at a proxy of its own, before others advertise
// the peer's address. The proxy relays as slowly as the attacker likes.
func TestHostileAliasOfAToldPeer(t *testing.T) {
	type proxy struct {
		rate   int64            // bytes per second
		silent transport.Method // answered after an hour; 0: none
		most   time.Duration    // of the join
	}
	for name, c := range map[string]proxy{
		"slow":      {16 << 10, 0, 3 * time.Second},
		"throttled": {100, 0, 3 * time.Second},
		"stalled":   {1, 0, 10 * time.Second},
		"no peers":  {16 << 10, protocol.MethodPeers, 6 * time.Second},
		"no status": {16 << 10, protocol.MethodStatus, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.state(3000, 20_000, 10)
				alias := transport.Address{ID: transporttest.ID(2), HostPort: "alias:1"}
				w.add(tells(alias))
				w.add(both(after(50*time.Millisecond, protocol.MethodPeers), tells(addressOf(2))))
				honest := w.add(nil, 10)
				w.sybil(alias, honest, after(time.Hour, c.silent))
				p := w.peersOver(&transporttest.Faulty{Dialer: w.dialer(), Faults: func(a transport.Address) (f transporttest.Faults) {
					if a == alias {
						f.Rate = c.rate
					}
					return f
				}}, 0, 1)
				began := time.Now()
				w.join(5*time.Hour, w.options(p, newDisk()), 10)
				t.Logf("joined after %s", time.Since(began))
				require.Less(t, time.Since(began), c.most)
			})
		})
	}
}

// Sybils send one right chunk each and are busy from then on. They hold all slots when the honest
// peer is discovered.
func TestHostileBusyAfterOneTruth(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(11_000, 10_000, 10)
		const sybils, holder = 160, 162
		crowd := func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			switch r.Method {
			case protocol.MethodPeers:
				first := 0
				for i, x := range w.nodes {
					if x == n {
						first = i * 32
					}
				}
				var list []transport.Address
				for j := first; j < first+32; j++ {
					list = append(list, addressOf(2+j%sybils))
				}
				return protocol.EncodePeers(list), nil
			case protocol.MethodChunk:
				if n.count(protocol.MethodChunk) > 0 {
					return nil, transport.ErrBusy
				}
			}
			return answer, err
		}
		w.add(crowd, 10)
		began := time.Now()
		w.add(instead(protocol.MethodPeers, func() ([]byte, error) {
			if time.Since(began) < 20*time.Second {
				return protocol.EncodePeers(nil), nil
			}
			return protocol.EncodePeers([]transport.Address{addressOf(holder)}), nil
		}))
		for range sybils {
			w.add(crowd, 10)
		}
		w.add(nil, 10)
		w.join(10*time.Minute, w.options(w.peersOver(w.dialer(), 0, 1), newDisk()), 10)
		t.Logf("joined after %s", time.Since(began))
	})
}

// An honest peer relays Sybil addresses whose IDs were chosen to be first in its list.
func TestHostileLowIDs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(200, 10_000, 10)
		var list []transport.Address
		for i := range protocol.MaxPeers - 1 {
			list = append(list, transport.Address{ID: transporttest.ID(1000 + i), HostPort: fmt.Sprintf("sybil-%d:1", i)})
		}
		relay := w.add(tells(append(slices.Clone(list), addressOf(1))...))
		w.add(nil, 10)
		for _, a := range list {
			w.sybil(a, relay, after(0, protocol.MethodStatus))
		}
		p := w.peersOver(w.dialer(), 0)
		began := time.Now()
		w.join(5*time.Hour, w.options(p, newDisk()), 10)
		t.Logf("joined after %s", time.Since(began))
		require.Less(t, time.Since(began), 5*time.Minute)
		_, banned := p.Count()
		require.Zero(t, banned, "neither relaying Sybil addresses nor silence is a fault")
	})
}

// liars provides an unlimited number of identities. Each advertises new identities and answers
// every chunk request with garbage.
type liars struct {
	transport.Dialer
	w       *world
	of      *testNode
	meddle  meddler
	names   int // identities that each one advertises
	next    atomic.Int64
	garbage atomic.Int64 // bytes
	mu      sync.Mutex
	made    map[string]bool
}

func (l *liars) Dial(ctx context.Context, a transport.Address) (transport.Conn, error) {
	if netip.MustParseAddrPort(a.HostPort).Addr().Is6() {
		l.mu.Lock()
		if !l.made[a.HostPort] {
			l.w.sybil(a, l.of, l.meddle)
			l.made[a.HostPort] = true
		}
		l.mu.Unlock()
	}
	return l.Dialer.Dial(ctx, a)
}

// answer is how each of them changes answers.
func (l *liars) answer(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
	switch r.Method {
	case protocol.MethodPeers:
		var list []transport.Address
		for range l.names {
			n := l.next.Add(1)
			ip := netip.AddrFrom16([16]byte{0x26, 0, 1, 2, byte(n >> 8), byte(n), 15: byte(n >> 16)})
			list = append(list, transport.Address{ID: transport.ID(fmt.Sprintf("%040x", n)), HostPort: netip.AddrPortFrom(ip, 1).String()})
		}
		return protocol.EncodePeers(list), nil
	case protocol.MethodChunk:
		if err == nil {
			answer = make([]byte, len(answer))
			l.garbage.Add(int64(len(answer)))
		}
	}
	return answer, err
}

// Identities are free, and Byzantine peers advertise each other. The honest peer has a slow line.
func TestHostileFreeIdentities(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		v := w.state(5000, 10_000, 10)
		l := &liars{w: w, made: map[string]bool{}, names: 32}
		l.meddle = l.answer
		w.addAt("9.9.0.1:1", l.answer)
		l.of = w.addAt("9.9.0.2:1", nil, 10)
		slow := &transporttest.Faulty{Dialer: w.dialer(), Faults: func(a transport.Address) (f transporttest.Faults) {
			if a.HostPort == "9.9.0.2:1" {
				f.Rate = 25_000
			}
			return f
		}}
		l.Dialer = slow
		p := w.peersAt(l, true, w.nodes[0].listener.Address(), l.of.listener.Address())
		began := time.Now()
		w.join(time.Hour, w.options(p, newDisk()), 10)
		_, banned := p.Count()
		states := float64(l.garbage.Load()) / float64(v.Root().Bytes)
		t.Logf("joined after %s: %d bans, %.1f states of garbage", time.Since(began), banned, states)
		require.LessOrEqual(t, banned, 2*32+10)
		require.Less(t, states, 1.0)
	})
}

// The proxy of TestHostileAliasOfAToldPeer disappears after half an hour.
func TestHostileAliasThatGoes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(200, 10_000, 10)
		alias := transport.Address{ID: transporttest.ID(2), HostPort: "alias:1"}
		w.add(tells(alias))
		w.add(both(after(50*time.Millisecond, protocol.MethodPeers), tells(addressOf(2))))
		began := time.Now()
		honest := w.add(func(_ *testNode, _ transport.Request, answer []byte, err error) ([]byte, error) {
			if time.Since(began) < 30*time.Minute {
				return nil, transport.ErrBusy // so that there is no alternative
			}
			return answer, err
		}, 10)
		w.sybil(alias, honest, func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method != protocol.MethodStatus && r.Method != protocol.MethodPeers {
				return nil, transport.ErrBusy
			}
			return answer, err
		})
		proxy := w.sybils[0]
		go func() {
			pass(30 * time.Minute)
			proxy.Close()
		}()
		w.join(40*time.Minute, w.options(w.peersOver(w.dialer(), 0, 1), newDisk()), 10)
	})
}

// dialled records which hosts are dialled.
type dialled struct {
	transport.Dialer
	mu    sync.Mutex
	hosts map[string]int
}

func (d *dialled) Dial(ctx context.Context, a transport.Address) (transport.Conn, error) {
	d.mu.Lock()
	d.hosts[a.HostPort]++
	d.mu.Unlock()
	return d.Dialer.Dial(ctx, a)
}

// A peer advertises host names, loopback and private addresses: with a strict address book, none is
// dialled. The operator may configure any address.
func TestHostileInnerAddresses(t *testing.T) {
	for _, strict := range []bool{true, false} {
		inWorld(t, func(t *testing.T, w *world) {
			w.state(200, 10_000, 10)
			inner := []string{"localhost:26657", "127.0.0.1:6060", "10.0.0.1:22", "metadata.example:80", "169.254.169.254:80", "[fd00::1]:1"}
			list := []transport.Address{{ID: transporttest.ID(1), HostPort: "9.9.0.1:1"}}
			for i, hostPort := range inner {
				list = append(list, transport.Address{ID: transporttest.ID(100 + i), HostPort: hostPort})
			}
			w.add(tells(list...))
			w.addAt("9.9.0.1:1", nil, 10)
			d := &dialled{Dialer: w.dialer(), hosts: map[string]int{}}
			p := w.peersAt(d, strict, addressOf(0))
			w.join(time.Hour, w.options(p, newDisk()), 10)
			pass(time.Second)
			p.Close()
			require.Positive(t, d.hosts[hostOf(0)], "the operator's")
			for _, hostPort := range inner {
				require.Equal(t, strict, d.hosts[hostPort] == 0, hostPort)
			}
		})
	}
}

// Another node answers at the operator's address for a while.
func TestWrongIDAtTheOperatorsAddress(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(200, 10_000, 10)
		other := w.add(nil, 10)
		w.sybil(transport.Address{ID: transporttest.ID(7), HostPort: hostOf(1)}, other, after(0, protocol.MethodStatus))
		squatter := w.sybils[0]
		p := w.peersOver(w.dialer(), 1)
		pass(time.Minute)
		connected, _ := p.Count()
		require.Zero(t, connected)
		require.Len(t, p.Failures(), 1)
		require.Contains(t, p.Failures()[0], transport.ErrWrongID.Error())
		squatter.Close()
		w.add(nil, 10)
		w.join(time.Minute, w.options(p, newDisk()), 10)
		require.Empty(t, p.Failures())
	})
}

// The honest peer is discovered, and needs longer for a chunk than a node may keep a slot the first
// time, while an unlimited number of silent Sybils waits for a slot.
func TestHostileCrowdBesideASlowLine(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(200, 10_000, 10)
		l := &liars{w: w, made: map[string]bool{}, names: 4}
		silent := func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == protocol.MethodPeers {
				return l.answer(n, r, answer, err)
			}
			return nil, transport.ErrBusy
		}
		l.meddle = silent
		w.addAt("9.9.0.1:1", silent)
		l.of = w.addAt("9.9.0.2:1", tells(transport.Address{ID: transporttest.ID(2), HostPort: "9.9.0.3:1"}))
		w.addAt("9.9.0.3:1", after(100*time.Second, protocol.MethodChunk), 10)
		l.Dialer = w.dialer()
		began := time.Now()
		p := w.peersAt(l, true, w.nodes[0].listener.Address(), w.nodes[1].listener.Address())
		w.join(5*time.Hour, w.options(p, newDisk()), 10)
		t.Logf("joined after %s", time.Since(began))
		require.Less(t, time.Since(began), time.Hour)
	})
}
