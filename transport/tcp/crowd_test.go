package tcp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// TestSilentHosts lets a few hosts, or as many as there are slots, hold all slots for
// unauthenticated connections and send nothing. Newcomers still get in.
func TestSilentHosts(t *testing.T) {
	for _, test := range []struct{ hosts, each int }{{2, 32}, {70, 1}} {
		t.Run(fmt.Sprint(test.hosts), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipes()
				s := serve(t, p, 1, Options{})
				for n := range 68 {
					for host := range test.hosts {
						for range test.each {
							p.raw(t, fmt.Sprintf("10.0.0.%d", host))
						}
					}
					synctest.Wait()
					c, err := p.tryDial(2, fmt.Sprintf("10.1.0.%d", n))
					require.NoError(t, err, "newcomer %d", n)
					c.Close()
					<-time.After(time.Second)
				}
				s.Close()
			})
		})
	}
}

// TestSilentNetwork lets a network open connections from ever new hosts. The state kept for them
// does not lock out others.
func TestSilentNetwork(t *testing.T) {
	o, err := Options{Key: keyOf(1)}.withDefaults()
	require.NoError(t, err)
	a := newAdmission(&o)
	now := time.Now()
	for n := range 3 * maxNets {
		now = now.Add(time.Second / (2 * maxNets))
		if k, err := a.knock(originOf(pipeAddr(fmt.Sprintf("[2001:db8:0:%x::1]:1", n))), now, func() {}); err == nil {
			a.settled(k)
		}
		if n%16 == 0 {
			k, err := a.knock(originOf(pipeAddr(fmt.Sprintf("10.1.%d.%d:1", n>>8, n&255))), now, func() {})
			require.NoError(t, err, "newcomer %d", n)
			a.settled(k)
		}
	}
	require.LessOrEqual(t, len(a.mu.nets), maxNets)
}

// TestHeardStays opens silent connections while one is about to authenticate: they replace each
// other, not that one.
func TestHeardStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := serve(t, p, 1, Options{bounds: bounds{maxPending: 2}})
		c := rawDial(t, p.raw(t, "10.0.0.1"), nil)
		for n := range 10 {
			<-time.After(100 * time.Millisecond)
			p.raw(t, fmt.Sprintf("10.0.1.%d", n))
		}
		_, err := c.Write(helloHere)
		require.NoError(t, err)
		_, err = readHello(c)
		require.NoError(t, err)
		s.Close()
	})
}

// TestOusted closes a connection to make room just after it has authenticated.
func TestOusted(t *testing.T) {
	o, err := Options{Key: keyOf(1), bounds: bounds{maxPending: 1}}.withDefaults()
	require.NoError(t, err)
	a := newAdmission(&o)
	now, dropped := time.Now(), false
	first, err := a.knock(originOf(pipeAddr("10.0.0.1:1")), now, func() { dropped = true })
	require.NoError(t, err)
	second, err := a.knock(originOf(pipeAddr("10.0.0.2:1")), now, func() {})
	require.NoError(t, err)
	require.True(t, dropped)
	delete(a.mu.nets, "10.0.0.1") // sweep does this some time later
	_, err = a.pass(first, transporttest.ID(2), now, func() {})
	require.ErrorIs(t, err, ErrTooManyPending)
	a.settled(first)
	second.hear(now)
	_, err = a.knock(originOf(pipeAddr("10.0.0.3:1")), now.Add(o.firstTimeout), func() {})
	require.ErrorIs(t, err, ErrTooManyPending, "a connection with a ClientHello is kept for a while")
	_, err = a.pass(second, transporttest.ID(3), now, func() {})
	require.NoError(t, err)
	a.settled(second)
	require.Empty(t, a.mu.pending.in)
}

// TestIdleNetwork lets one IPv6 /48 take all connections, each from another /64, and request
// nothing.
func TestIdleNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := serve(t, p, 1, Options{})
		for n := range 128 {
			p.dial(t, 10+n, fmt.Sprintf("2001:db8:0:%x::1", n))
		}
		var newcomers []*Conn
		for n := range 60 {
			newcomers = append(newcomers, p.dial(t, 1000+n, fmt.Sprintf("10.1.0.%d", n)))
			synctest.Wait()
		}
		for _, c := range newcomers {
			_, err := ask(c, "x")
			require.NoError(t, err)
		}
		require.Len(t, s.admission.mu.guests.in, 128)
		require.Equal(t, 68, s.admission.mu.guests.of["2001:db8::/48"])
		s.Close()
	})
}

// TestIdleHosts lets as many hosts as there are slots hold one connection each. The connection that
// has been idle for longest is closed to make room; active ones, and those named by the operator,
// stay.
func TestIdleHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		named := []transport.ID{transporttest.ID(2), transporttest.ID(9)}
		s := serve(t, p, 1, Options{MaxConns: 4, Named: func(id transport.ID) bool { return slices.Contains(named, id) }})
		var conns []*Conn
		for n := range 4 {
			conns = append(conns, p.dial(t, 2+n, fmt.Sprintf("10.0.0.%d", n)))
		}
		<-time.After(unused)
		_, err := p.tryDial(30, "10.0.1.0")
		require.ErrorIs(t, err, transport.ErrBusy, "they may be idle for a while")
		for _, n := range []int{3, 1} { // 2 has not requested anything yet, and 0 is named
			_, err := ask(conns[n], "x")
			require.NoError(t, err)
			<-time.After(time.Second)
		}
		p.dial(t, 31, "10.0.1.1")
		synctest.Wait()
		require.ErrorIs(t, conns[2].Err(), transport.ErrClosed)
		for _, n := range []int{0, 1, 3} {
			require.NoError(t, conns[n].Err(), n)
		}
		_, err = p.tryDial(32, "10.0.1.2")
		require.ErrorIs(t, err, transport.ErrBusy)
		p.dial(t, 9, "10.0.1.3") // named: another connection makes room at once
		synctest.Wait()
		require.ErrorIs(t, conns[3].Err(), transport.ErrClosed)
		require.NoError(t, conns[0].Err())
		_, err = p.tryDial(32, "10.0.1.4")
		require.ErrorIs(t, err, transport.ErrBusy)
		// It is named while connections are open.
		named = []transport.ID{transporttest.ID(9), transporttest.ID(32)}
		p.dial(t, 32, "10.0.1.4")
		s.Close()
	})
}

// TestBusyStays lets a connection wait long for an answer: it counts as used until the answer is
// sent, and for a while afterwards.
func TestBusyStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := serve(t, p, 1, Options{MaxConns: 1, Handler: sleeping})
		c := p.dial(t, 2, "10.0.0.1")
		go ask(c, "30s")
		synctest.Wait()
		for _, at := range []time.Duration{29 * time.Second, 10 * time.Second} { // since then
			<-time.After(at)
			_, err := p.tryDial(3, "10.0.0.2")
			require.ErrorIs(t, err, transport.ErrBusy)
		}
		<-time.After(2 * time.Second)
		p.dial(t, 3, "10.0.0.2")
		synctest.Wait()
		require.Error(t, c.Err())
		s.Close()
	})
}

// TestIdleNeighbour lets the other connections of a host, such as one behind the same address, be
// idle.
func TestIdleNeighbour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := serve(t, p, 1, Options{MaxConnsPerHost: 2})
		idle, busy := p.dial(t, 2, "10.0.0.1"), p.dial(t, 3, "10.0.0.1")
		<-time.After(unused + time.Second)
		_, err := ask(busy, "x")
		require.NoError(t, err)
		p.dial(t, 4, "10.0.0.1")
		synctest.Wait()
		require.Error(t, idle.Err())
		require.NoError(t, busy.Err())
		_, err = p.tryDial(5, "10.0.0.1")
		require.ErrorIs(t, err, transport.ErrBusy)
		s.Close()
	})
}

// TestCrowdAtRandom adds and removes members of a few networks, and checks which ones are closed.
func TestCrowdAtRandom(t *testing.T) {
	seed := seeds.New(t)
	rnd := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // must be reproducible
	c := crowd{places: 12, perHost: 4}
	now := time.Now()
	var in []*member
	for range 5000 {
		if len(in) > 0 && rnd.IntN(4) == 0 {
			at := rnd.IntN(len(in))
			c.leave(in[at])
			c.leave(in[at])
			in = append(in[:at], in[at+1:]...)
		}
		host := fmt.Sprintf("[2001:db8:%x:%x0%x::1]:1", rnd.IntN(3), rnd.IntN(2), rnd.IntN(2))
		if rnd.IntN(3) == 0 {
			host = fmt.Sprintf("10.0.0.%d:1", rnd.IntN(4))
		}
		spare := time.Duration(rnd.IntN(3) - 1)
		named := rnd.IntN(10) == 0
		newcomer := &member{from: originOf(pipeAddr(host)), isNamed: func() bool { return named }, spare: func(time.Time) time.Duration { return spare }}
		newcomer.drop = func() { newcomer.from.name = "dropped" }
		before := make(map[string]int)
		for net, n := range c.of {
			before[net] = n
		}
		full := len(in) == c.places
		entered := c.enter(newcomer, now)
		left := in[:0:0]
		for _, m := range in {
			if m.from.name != "dropped" {
				left = append(left, m)
				continue
			}
			require.True(t, full || before[newcomer.from.host()] >= c.perHost)
			require.True(t, entered)
			require.False(t, m.named())
			more := false
			for width := range widths {
				more = more || before[m.from.at(width)] >= before[newcomer.from.at(width)]+2
			}
			require.True(t, more || newcomer.named() || m.spare(now) > 0)
		}
		require.LessOrEqual(t, len(in)-len(left), 1)
		if in = left; entered {
			in = append(in, newcomer)
		}
		require.Equal(t, in, c.in)
		require.LessOrEqual(t, len(in), c.places)
		of := make(map[string]int)
		for _, m := range in {
			for _, net := range m.from.nets {
				of[net]++
			}
		}
		require.Equal(t, of, c.of)
	}
}

// tryDial dials as node n from a host.
func (p *pipes) tryDial(n int, host string) (transport.Conn, error) {
	return newDialer(n, Options{ChainID: chain, Connect: p.from(host)}).Dial(context.Background(), transport.Address{HostPort: "pipe:1"})
}
