package restore

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/snapshot"
	"github.com/starling-kv/starling/statesync/statetest"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// A dripper sends right data, but only a byte at a time.
const (
	dripPause = 250 * time.Millisecond
	dripRate  = int64(time.Second / dripPause)
)

// line delivers answers at a rate, in order of request and one part at a time. Several peers may
// share it.
type line struct {
	rate  int64 // bytes per second
	part  int
	pause time.Duration // fixed time per part, instead of the rate

	mu   sync.Mutex
	free time.Time // when it will have sent everything so far
	sent int64
}

func newLine(rate int64, part int) *line { return &line{rate: rate, part: part} }

// slowDialer dials peers over lines, by peer and method; nil: no delay.
type slowDialer struct {
	transport.Dialer
	of func(transport.Address, transport.Method) *line
}

func (d slowDialer) Dial(ctx context.Context, a transport.Address) (transport.Conn, error) {
	c, err := d.Dialer.Dial(ctx, a)
	if err != nil {
		return nil, err
	}
	return &slowConn{c, d.of}, nil
}

type slowConn struct {
	transport.Conn
	of func(transport.Address, transport.Method) *line
}

// Call delivers an answer at the speed of the line. Bytes that arrived before ctx ended are in
// c.Into.
func (s *slowConn) Call(ctx context.Context, c transport.Call) ([]byte, error) {
	l := s.of(s.Remote(), c.Method)
	if l == nil {
		return s.Conn.Call(ctx, c)
	}
	into := c.Into
	if into == nil {
		into = make([]byte, c.Max)
	}
	inner := c
	inner.Into, inner.Received = make([]byte, len(into)), nil
	answer, err := s.Conn.Call(ctx, inner)
	if err != nil {
		return nil, err
	}
	for at := 0; at < len(answer); {
		n := min(l.part, len(answer)-at)
		select {
		case <-bubble.After(l.reserve(n)):
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.Done():
			return nil, s.Err()
		}
		at += copy(into[at:], answer[at:at+n])
		if c.Received != nil {
			c.Received.Add(int64(n))
		}
	}
	return into[:len(answer)], nil
}

// reserve returns how long it takes until the line has sent n more bytes.
func (l *line) reserve(n int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	pause := l.pause
	if pause == 0 {
		pause = time.Duration(n) * time.Second / time.Duration(l.rate)
	}
	l.free = l.free.Add(pause)
	l.sent += int64(n)
	return l.free.Sub(now)
}

// drip is a dialer over which all peers except one drip the answers to some methods.
func (w *world) drip(honest int, methods ...transport.Method) transport.Dialer {
	return slowDialer{w.dialer(), func(a transport.Address, m transport.Method) *line {
		for _, method := range methods {
			if m == method && a.ID != transporttest.ID(honest) {
				return newLine(dripRate, 1)
			}
		}
		return nil
	}}
}

// all returns the numbers of all nodes.
func (w *world) all() (nodes []int) {
	for i := range w.nodes {
		nodes = append(nodes, i)
	}
	return nodes
}

// Attackers send the right manifest a byte at a time, which takes hours. The honest peer is asked
// in parallel all the same, and no peer is banned.
func TestHostileManifestsAByteAtATime(t *testing.T) {
	for name, c := range map[string]struct {
		liars   int
		methods []transport.Method
	}{
		"12 liars":                   {12, []transport.Method{protocol.MethodManifest}},
		"40 liars":                   {40, []transport.Method{protocol.MethodManifest}},
		"40 liars drip all they say": {40, []transport.Method{protocol.MethodCommitment, protocol.MethodManifest, protocol.MethodChunk}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				v := w.state(2000, 1000, 10)
				require.Greater(t, len(v.Manifest().Encode()), 30_000)
				for range c.liars + 1 {
					w.add(nil, 10)
				}
				p := w.peersOver(w.drip(c.liars, c.methods...), w.all()...)
				began := time.Now()
				w.join(time.Hour, w.options(p, newDisk()), 10)
				t.Logf("joined after %v", time.Since(began))
				require.Less(t, time.Since(began), 30*time.Second)
				_, banned := p.Count()
				require.Zero(t, banned)
			})
		})
	}
}

// The same, but each attacker claims its own height that is newer than the honest peer's.
func TestHostileHeightsAByteAtATime(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const liars = 40
		w.state(2000, 1000, every(10, 10*(liars+1))...)
		for i := range liars {
			w.add(nil, int64(10*(i+2)))
		}
		w.add(nil, 10)
		p := w.peersOver(w.drip(liars, protocol.MethodManifest), w.all()...)
		pass(5 * time.Second) // all are connected
		o := w.options(p, newDisk())
		o.Interval = 0 // otherwise the heights are too old during patient
		began := time.Now()
		w.join(time.Hour, o, 10)
		t.Logf("joined after %v", time.Since(began))
		require.Less(t, time.Since(began), 5*time.Minute)
	})
}

// If there is an alternative to a snapshot, such as blocks, choosing ends after ChooseTimeout,
// whatever arrives meanwhile.
func TestChoosingEndsWhereThereIsAnotherWay(t *testing.T) {
	for name, methods := range map[string][]transport.Method{
		"manifests": {protocol.MethodManifest}, "chunks": {protocol.MethodChunk},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				old := statetest.New(t, w.rng, 2000, 1000)
				w.state(2000, 1000, 30)
				w.add(nil, 30)
				o := w.options(w.peersOver(w.drip(-1, methods...), 0), newDisk())
				o.Local, o.LocalHeight, o.ChooseTimeout = old, 20, 30*time.Second
				began := time.Now()
				_, err := w.try(24*time.Hour, o)
				require.ErrorIs(t, err, snapshot.ErrNothing)
				require.Equal(t, 30*time.Second, time.Since(began))
				require.Zero(t, diskOf(o.Target).written())
				_, _, begun := o.Target.Unfinished()
				require.False(t, begun, "nothing was changed")
			})
		})
	}
}

// A manifest that takes minutes on a slow line arrives eventually, from one peer and from many
// peers behind the same line. In the second case several peers are asked, but all received bytes
// are kept, whoever sent them.
func TestSlowLineForManifests(t *testing.T) {
	for name, peers := range map[string]int{"one peer": 1, "20 peers": 20} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				v := w.state(2000, 1000, 10)
				for range peers {
					w.add(nil, 10)
				}
				shared := newLine(500, 100)
				p := w.peersOver(slowDialer{w.dialer(), func(_ transport.Address, m transport.Method) *line {
					if m == protocol.MethodManifest {
						return shared
					}
					return nil
				}}, w.all()...)
				began := time.Now()
				w.join(time.Hour, w.options(p, newDisk()), 10)
				alone := time.Duration(len(v.Manifest().Encode())) * time.Second / 500
				t.Logf("joined after %v, %d bytes; the line needs %v", time.Since(began), shared.sent, alone)
				limit := alone + 5*time.Second
				if peers > 1 {
					limit *= 8
				}
				require.Less(t, time.Since(began), limit)
			})
		})
	}
}

// An attacker is alone at its height and sends a valid chunk every 14 s. A fast peer has another
// snapshot, and the received chunks of the first one are kept.
func TestHostileChunkEvery14Seconds(t *testing.T) {
	for name, honest := range map[string]int64{"the others are newer": 30, "the others are older": 10} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				v := statetest.New(t, w.rng, 12_000, 50_000)
				require.Greater(t, v.NumChunks(), uint32(50))
				w.chain.set(20, v)
				w.add(nil, 20)
				w.chain.set(honest, statetest.Touched(t, w.rng, v, 3000))
				w.add(nil, honest)
				var first sync.Once
				begun := make(chan struct{}) // the attacker's snapshot was chosen
				var served atomic.Int64
				one := &line{part: 1 << 30, pause: 14 * time.Second}
				d := slowDialer{w.dialer(), func(a transport.Address, m transport.Method) *line {
					if m != protocol.MethodChunk || a.ID != transporttest.ID(0) {
						return nil
					}
					first.Do(func() { close(begun) })
					if served.Add(1) <= 5 { // useful at first
						return nil
					}
					return one
				}}
				o := w.options(w.peersOver(lateDialer{d, hostOf(1), time.Now().Add(3 * time.Second)}, 0, 1), newDisk())
				began := time.Now()
				result := w.join(time.Hour, o, honest)
				<-begun
				t.Logf("joined after %v, reused %d of %d bytes", time.Since(began), result.Summary.Reused, result.Summary.Bytes)
				require.Less(t, time.Since(began), 30*time.Second)
				require.Equal(t, 1, result.Summary.Retargets)
				require.Positive(t, result.Summary.Reused)
			})
		})
	}
}
