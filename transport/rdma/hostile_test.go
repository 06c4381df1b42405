package rdma

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs/verbstest"
	"github.com/starling-kv/starling/transport/tcp"
	"github.com/starling-kv/starling/transport/transporttest"
)

func TestWrongNonce(t *testing.T) {
	_, c := newLending(t)
	c.nonce[0]++
	c.greet(t)
	c.endsWith(t, ErrBreach)
}

func TestSecondGreeting(t *testing.T) {
	_, c := newLending(t)
	c.greet(t)
	<-c.path.up
	c.greet(t)
	c.endsWith(t, ErrBreach)
}

func TestBadGreetings(t *testing.T) {
	good := greeting{nonce{1}, region{1, 2, 3}}.encode()
	for name, message := range map[string][]byte{
		"empty": {}, "short": good[:greetingLength-1], "long": append(bytes.Clone(good), 0), "version": append([]byte{2}, good[1:]...),
		"units": greeting{nonce{1}, region{1, 2, maxUnits + 1}}.encode(),
	} {
		t.Run(name, func(t *testing.T) {
			_, c := newLending(t)
			require.NoError(t, c.peer.Send(message, 0))
			c.endsWith(t, ErrBreach)
		})
	}
}

// TestSendTooLong: a greeting longer than a receive buffer ends the path with a device error.
func TestSendTooLong(t *testing.T) {
	_, c := newLending(t)
	require.NoError(t, c.memory.SendLong(c.path.queue.Local()))
	c.endsWith(t, verbstest.ErrLength)
}

// TestGreetingAfterTheEnd: a greeting needs the location of the memory, which may have been
// released.
func TestGreetingAfterTheEnd(t *testing.T) {
	_, c := newLending(t)
	c.path.end(ErrStalled)
	c.endsWith(t, ErrStalled)
	require.ErrorIs(t, c.path.greet(), ErrStalled)
}

func TestWriteBeforeTheGreeting(t *testing.T) {
	_, c := newLending(t)
	c.write(t, 0, 10, 0)
	c.endsWith(t, ErrBreach)
}

// call is a slot, and the bytes that have landed in it.
type call struct {
	tcp.Slot
	got  []byte
	done chan struct{} // closed with the last piece
	lost chan struct{}
}

func lend(t *testing.T, s *lending, n int) *call {
	t.Helper()
	return lendTo(t, s, n, func(c *call, piece []byte) { c.got = append(c.got, piece...) })
}

// lendUnread lends a slot and does not read its memory. The peer may write to it again at any time,
// so in the in-memory fabric a read would be a data race.
func lendUnread(t *testing.T, s *lending, n int) *call {
	t.Helper()
	return lendTo(t, s, n, func(*call, []byte) {})
}

func lendTo(t *testing.T, s *lending, n int, take func(*call, []byte)) *call {
	t.Helper()
	c := &call{done: make(chan struct{}), lost: make(chan struct{})}
	c.Slot = s.lend(n, func(piece []byte, last bool) error {
		take(c, piece)
		if last {
			close(c.done)
		}
		return nil
	}, func() { close(c.lost) })
	require.NotNil(t, c.Slot)
	return c
}

func lendingThatIsUp(t *testing.T) (*lending, *couple) {
	t.Helper()
	s, c := newLending(t)
	c.greet(t)
	<-c.path.up
	return s, c
}

func (c *couple) fill(b string) { copy(c.peer.Own(), b) }

func TestLend(t *testing.T) {
	s, c := lendingThatIsUp(t)
	for range 20 { // more than there are units, so they are reused
		one := lend(t, s, 3*unit-1)
		c.fill("answer")
		c.write(t, firstUnit(one.Number())*unit, unit, one.Number())
		c.write(t, firstUnit(one.Number())*unit+unit, 6, one.Number()|immediateLast)
		<-one.done
		require.Equal(t, "answer", string(one.got[:6]))
		require.Equal(t, "answer", string(one.got[unit:]))
		one.Ended(unit + 6)
	}
	require.NoError(t, c.path.why())
}

func TestNoMemoryLeft(t *testing.T) {
	s, _ := lendingThatIsUp(t)
	lend(t, s, 5*unit)
	require.Nil(t, s.lend(4*unit, nil, nil), "three units are left")
	two := lend(t, s, 3*unit)
	two.Ended(-1)
	lend(t, s, 3*unit)
	require.Nil(t, s.lend(0, nil, nil))
}

// TestQuarantine: a slot whose call was canceled is not lent again until the server has ended it.
func TestQuarantine(t *testing.T) {
	s, c := lendingThatIsUp(t)
	abandoned := lend(t, s, 8*unit)
	require.Nil(t, s.lend(1, nil, nil))
	abandoned.Ended(-1)
	next := lend(t, s, 8*unit)
	require.NotEqual(t, abandoned.Number(), next.Number())
	// It landed before the ending and is handled after it.
	c.write(t, 0, unit, abandoned.Number())
	c.write(t, 0, 1, next.Number()|immediateLast)
	<-next.done
	require.Len(t, next.got, 1)
	next.Ended(1)
	require.NoError(t, c.path.why())
}

// TestLies: bytes that no honest server sends end the path and its calls.
func TestLies(t *testing.T) {
	for name, lie := range map[string]func(*testing.T, *couple, *call){
		"a slot that is not lent":  func(t *testing.T, c *couple, one *call) { c.write(t, 0, 1, slotNumber(1, 7)) },
		"a slot that there is not": func(t *testing.T, c *couple, one *call) { c.write(t, 0, 1, slotNumber(1, 60_000)) },
		"another round":            func(t *testing.T, c *couple, one *call) { c.write(t, 0, 1, one.Number()+1<<16) },
		"an empty piece":           func(t *testing.T, c *couple, one *call) { c.write(t, 0, 0, one.Number()) },
		"a piece that is too long": func(t *testing.T, c *couple, one *call) { c.write(t, 0, unit+1, one.Number()) },
		"more bytes than were lent": func(t *testing.T, c *couple, one *call) {
			c.write(t, 0, 200_000, one.Number())
			c.write(t, 0, 200_000, one.Number())
		},
		"pieces after the last": func(t *testing.T, c *couple, one *call) {
			c.write(t, 0, 1, one.Number()|immediateLast)
			c.write(t, 0, 1, one.Number())
		},
		"more pieces than units": func(t *testing.T, c *couple, one *call) {
			c.write(t, 0, 1, one.Number())
			c.write(t, 0, 1, one.Number())
			c.write(t, 0, 1, one.Number())
		},
		"a piece after the ending": func(t *testing.T, c *couple, one *call) {
			c.write(t, 0, 1, one.Number()|immediateLast)
			<-one.done
			one.Ended(1)
			c.write(t, 0, 1, one.Number())
		},
		"an ending of another length": func(t *testing.T, c *couple, one *call) {
			c.write(t, 0, 1, one.Number()|immediateLast)
			<-one.done
			one.Ended(2)
		},
		"a flood of immediates": func(t *testing.T, c *couple, one *call) {
			one.Ended(-1) // two may be late
			for range 8 {
				c.write(t, 0, 0, one.Number())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := lendingThatIsUp(t)
			one, other := lendUnread(t, s, unit+1), lendUnread(t, s, unit)
			lie(t, c, one)
			c.endsWith(t, ErrBreach)
			<-other.lost
			require.Nil(t, s.lend(1, nil, nil))
		})
	}
}

// TestWrongKeyAndRegion: the device refuses writes outside of the lent memory, and both sides'
// queue pairs break.
func TestWrongKeyAndRegion(t *testing.T) {
	_, c := lendingThatIsUp(t)
	_, address, key := c.path.queue.Lent()
	require.NoError(t, c.peer.Write([]verbs.Write{{Length: 2, To: address + 8*unit - 1, Key: key}}))
	batch := make([]verbs.Completion, 1)
	for batch[0].Err == nil {
		_, err := c.device.Wait(batch)
		require.NoError(t, err)
	}
	require.ErrorIs(t, c.path.queue.Send(nil, 0), nil)
	<-c.path.told // ended by the failure of its own message
}

// TestEndingWithoutPieces: the server reports a written answer, but nothing lands.
func TestEndingWithoutPieces(t *testing.T) {
	s, c := lendingThatIsUp(t)
	c.fabric.o.stall = time.Millisecond
	one := lend(t, s, unit)
	one.Ended(unit)
	<-one.lost
	c.endsWith(t, ErrStalled)
}

// TestStranger lets an attacker in the fabric who knows all numbers write to the memory. The
// transport delivers the bytes; the caller must verify them.
func TestStranger(t *testing.T) {
	s, c := lendingThatIsUp(t)
	one := lend(t, s, unit)
	_, address, key := c.path.queue.Lent()
	at := address + uint64(firstUnit(one.Number())*unit)
	require.NoError(t, c.memory.Inject(c.path.queue.Local(), []byte("evil"), at, key, one.Number()|immediateLast))
	<-one.done
	require.Equal(t, "evil", string(one.got))
	one.Ended(unit)
	c.endsWith(t, ErrBreach)
}

// TestCallsHearFirst: PeerLost waits until all calls know that the path has ended. Otherwise the
// server's error 5 for such a call, which follows its frame 9, would look like a protocol
// violation.
func TestCallsHearFirst(t *testing.T) {
	s, c := lendingThatIsUp(t)
	var found *lending
	require.NotNil(t, s.lend(unit, nil, func() { found = s.lender.lent(false) }))
	c.path.end(ErrStalled)
	require.True(t, s == found)
	require.Nil(t, s.lender.lent(false))
}

// failingDevice fails while one of its queue pairs is being created.
type failingDevice struct {
	verbs.Device
	awaited func() bool // its failure waits for the creation
	failed  chan struct{}
	closed  atomic.Bool
	early   bool // it was closed before the queue pair was created
}

var errDevice = errors.New("the device is gone")

func (d *failingDevice) Wait([]verbs.Completion) (int, error) {
	<-d.failed
	return 0, errDevice
}

func (d *failingDevice) NewQueue(s verbs.Sizes) (verbs.Queue, error) {
	close(d.failed)
	for !d.closed.Load() && !d.awaited() {
		runtime.Gosched()
	}
	d.early = d.closed.Load()
	return d.Device.NewQueue(s)
}

func (d *failingDevice) Close() error {
	d.closed.Store(true)
	return d.Device.Close()
}

// TestDeviceFailsWhileAPathIsMade: libibverbs crashes if a device is closed during a call.
func TestDeviceFailsWhileAPathIsMade(t *testing.T) {
	memory, v := new(verbstest.Fabric), &failingDevice{failed: make(chan struct{})}
	o := Options{Hooks: Hooks{Leaked: func(err error) { t.Error(err) }}}
	o.addr, o.units = memoryAddr, 8
	o.open = func(a netip.Addr, room int) (_ verbs.Device, err error) {
		v.Device, err = memory.Open(a, room)
		return v, err
	}
	f := New(o)
	d, err := f.device(addr(addrs[0]))
	require.NoError(t, err)
	v.awaited = func() bool {
		free := d.making.TryRLock()
		if free {
			d.making.RUnlock()
		}
		return !free
	}
	s, sizes := &lending{lender: &lender{fabric: f}}, verbs.Sizes{Lent: unit, Writes: 1, Receives: 1}
	p, err := f.newPath(d, transporttest.ID(1), s, sizes)
	require.NoError(t, err)
	require.False(t, v.early)
	<-p.released
	require.ErrorIs(t, p.why(), errDevice)
	_, err = f.newPath(d, transporttest.ID(1), s, sizes)
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.NoError(t, f.Close())
	require.True(t, v.closed.Load())
	require.Zero(t, memory.Queues())
	require.Zero(t, f.mu.memory)
}

// newTestWriter returns a writer. The test acts as its dialer.
func newTestWriter(t *testing.T) (*writer, *couple, chan error) {
	t.Helper()
	c := newCouple(t)
	lost := make(chan error, 1)
	return c.newWriter(t, func(why error) { lost <- why }), c, lost
}

func (c *couple) newWriter(t *testing.T, lost func(error)) *writer {
	t.Helper()
	w, err := c.fabric.newWriter(tcp.Link{Peer: transporttest.ID(1), Local: addr(addrs[0]), Lost: lost}, proposal{c.peer.Local(), c.nonce})
	require.NoError(t, err)
	c.path = w.path
	require.NoError(t, c.peer.Connect(w.path.queue.Local()))
	return w
}

func TestWriter(t *testing.T) {
	w, c, _ := newTestWriter(t)
	require.False(t, w.Takes(0, 1), "no greeting has arrived")
	c.greet(t)
	<-c.path.up
	lent, _, _ := c.peer.Lent()
	units := len(lent) / unit
	require.True(t, w.Takes(slotNumber(3, 0), len(lent)))
	require.True(t, w.Takes(slotNumber(3, units-1), unit))
	for _, slot := range []uint32{slotNumber(3, units), immediateLast, slotNumber(3, units-1) + 1} {
		require.False(t, w.Takes(slot, 1), "%x", slot)
	}
	require.False(t, w.Takes(slotNumber(3, units-1), unit+1))
	arrived := make(chan int, 100)
	for i := range 20 { // more than the window; posted in fours, plus the rest
		p := tcp.Piece{Slot: slotNumber(1, 2), At: i * 10, Bytes: []byte("0123456789"), Last: i == 19, Arrived: func() { arrived <- i }}
		require.NoError(t, w.Write(context.Background(), p, i < 18))
	}
	for i := range 20 {
		require.Equal(t, i, <-arrived, "in the order of posting")
	}
	require.Equal(t, bytes.Repeat([]byte("0123456789"), 20), lent[2*unit:2*unit+200])
}

// deafDevice never reports that greetings have arrived.
type deafDevice struct{ verbs.Device }

func (d deafDevice) Wait(batch []verbs.Completion) (int, error) {
	for {
		n, err := d.Device.Wait(batch)
		kept := slices.DeleteFunc(batch[:n], func(c verbs.Completion) bool { return c.Kind == verbs.Sent && c.Tag == greetingTag })
		if err != nil || len(kept) > 0 {
			return len(kept), err
		}
	}
}

// TestEarlyRequest: a dialer that has the server's greeting may send a request before the server
// learns that its greeting has arrived. The answer bypasses TLS nevertheless.
func TestEarlyRequest(t *testing.T) {
	c := newCouple(t)
	open := c.fabric.o.open
	c.fabric.o.open = func(a netip.Addr, completions int) (verbs.Device, error) {
		d, err := open(a, completions)
		return deafDevice{d}, err
	}
	w := c.newWriter(t, func(error) {})
	c.greet(t)
	var batch [1]verbs.Completion
	next := func(kind verbs.Kind) {
		for batch[0].Kind = verbs.Sent; batch[0].Kind == verbs.Sent; { // skip that of our greeting
			_, err := c.device.Wait(batch[:])
			require.NoError(t, err)
		}
		require.Equal(t, kind, batch[0].Kind)
	}
	next(verbs.Received)
	require.True(t, w.Takes(slotNumber(1, 0), 1))
	require.NoError(t, w.Write(t.Context(), tcp.Piece{Slot: slotNumber(1, 0), Bytes: []byte("x"), Arrived: func() {}}, false))
	next(verbs.Landed)
	require.False(t, w.path.isUp())
}

// TestGather: pieces followed by others are posted together, up to half of the window, and before
// any wait. The late completion of a batch is not a stall.
func TestGather(t *testing.T) {
	w, c, _ := newTestWriter(t)
	c.greet(t)
	<-c.path.up
	under := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.mu.under)
	}
	c.memory.Fail(verbstest.Faults{Delay: patience}) // nothing arrives
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	half := c.fabric.o.window / 2
	for i, posted := range []int{0, 0, 0, half, half, half + 2, half + 2, half + 2} {
		require.NoError(t, w.Write(ctx, tcp.Piece{Bytes: []byte("x"), Arrived: func() {}}, i != 5))
		require.Equal(t, posted, under(), "piece %d", i)
	}
	cancel() // the window is full, so the next piece must wait
	require.ErrorIs(t, w.Write(ctx, tcp.Piece{Bytes: []byte("x")}, true), context.Canceled)
	require.Equal(t, c.fabric.o.window, under())
}

func TestWritesToAServer(t *testing.T) {
	_, c, lost := newTestWriter(t)
	c.greet(t)
	<-c.path.up
	// A write outside of the lent memory breaks the queue pair, without a notification to the
	// owner.
	require.NoError(t, c.peer.Write([]verbs.Write{{To: 1, Key: 1}}))
	c.path.end(ErrConnEnded)
	require.ErrorIs(t, <-lost, ErrConnEnded)
}

func TestNoGreeting(t *testing.T) {
	c := newCouple(t)
	lost := make(chan error, 1)
	w, err := c.fabric.newWriter(tcp.Link{Local: addr(addrs[0]), Lost: func(why error) { lost <- why }}, proposal{c.peer.Local(), c.nonce})
	require.NoError(t, err)
	w.mu.Lock()
	w.mu.stall.Reset(0) // the time for the greetings is over
	w.mu.Unlock()
	require.ErrorIs(t, <-lost, ErrStalled)
}

// TestWriterBreaks breaks the queue pair on either side, or cuts the cable, with pieces under way.
func TestWriterBreaks(t *testing.T) {
	for name, fail := range map[string]func(*couple){
		"here":  func(c *couple) { c.memory.Break(c.path.queue.Local().GID) },
		"there": func(c *couple) { c.memory.Break(c.peer.Local().GID) },
		"cut":   func(c *couple) { c.memory.Cut(true) },
	} {
		t.Run(name, func(t *testing.T) {
			w, c, lost := newTestWriter(t)
			c.greet(t)
			<-c.path.up
			fail(c)
			var err error
			for err == nil {
				err = w.Write(context.Background(), tcp.Piece{Bytes: []byte("x"), Arrived: func() {}}, true)
			}
			require.Error(t, <-lost)
			require.False(t, w.Takes(0, 1))
		})
	}
}

// TestNoPath: if a prerequisite is missing, calls are answered over TLS, and the reason is reported
// once.
func TestNoPath(t *testing.T) {
	refused := errors.New("permission denied")
	for name, test := range map[string]struct {
		server, dialer func(*Options)
		why            error
	}{
		"no device": {nil, func(o *Options) {
			o.open = func(netip.Addr, int) (verbs.Device, error) { return nil, verbs.ErrNoDevice }
		}, verbs.ErrNoDevice},
		"not built": {nil, func(o *Options) {
			o.open = func(netip.Addr, int) (verbs.Device, error) { return nil, errors.ErrUnsupported }
		}, errors.ErrUnsupported},
		"no permission": {nil, func(o *Options) {
			o.open = func(netip.Addr, int) (verbs.Device, error) { return nil, refused }
		}, refused},
		"no memory":             {nil, func(o *Options) { o.Memory = unit }, ErrMemory},
		"no room in the device": {nil, func(o *Options) { o.completions = 8 }, verbs.ErrFull},
		"not allowed":           {func(o *Options) { o.Allowed = nil }, nil, transport.ErrRefused},
		"the server has none": {func(o *Options) {
			o.open = func(netip.Addr, int) (verbs.Device, error) { return nil, verbs.ErrNoDevice }
		}, nil, transport.ErrRefused},
		"the server's memory": {func(o *Options) { o.Memory = unit }, nil, transport.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			down := make(chan error, 10)
			server := loopback{memory: new(verbstest.Fabric), retry: time.Millisecond, options: test.server}
			dialer := loopback{memory: server.memory, retry: time.Millisecond, proposed: true, options: func(o *Options) {
				o.Hooks.Down = func(_ transport.ID, why error) { down <- why }
				if test.dialer != nil {
					test.dialer(o)
				}
			}}
			conn := connect(t, server, dialer, echo)
			require.ErrorIs(t, <-down, test.why)
			requireAnswers(t, conn, 100_000)
			require.False(t, transport.Unproved(conn))
			require.Empty(t, down, "once")
		})
	}
}

func echo(_ context.Context, r transport.Request) ([]byte, error) { return r.Body, nil }

func connect(t *testing.T, server, dialer loopback, h transport.HandlerFunc) transport.Conn {
	t.Helper()
	node := server.Listen(t, transporttest.Options{Node: 1, ChainID: chain, Handler: h})
	conn, err := dialer.Dialer(t, transporttest.Options{Node: 2, ChainID: chain}).Dial(context.Background(), node.Address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func requireAnswers(t *testing.T, conn transport.Conn, n int) {
	t.Helper()
	body := bytes.Repeat([]byte("b"), n)
	got, err := conn.Call(context.Background(), transport.Call{Method: someMethod, Body: body, Into: make([]byte, n)})
	require.NoError(t, err)
	require.True(t, bytes.Equal(body, got))
}

// TestOldServer: a server that does not know the exchange refuses the method.
func TestOldServer(t *testing.T) {
	s, err := tcp.Listen("127.0.0.1:0", tcp.ForTests(tcp.Options{
		Key: transporttest.Key(1), ChainID: chain, Handler: new(transport.Mux),
	}, 0))
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	down := make(chan error, 10)
	l := loopback{memory: new(verbstest.Fabric), retry: time.Millisecond, proposed: true, options: func(o *Options) {
		o.Hooks.Down = func(_ transport.ID, why error) { down <- why }
	}}
	conn, err := l.Dialer(t, transporttest.Options{Node: 2, ChainID: chain}).Dial(context.Background(), transport.Address{HostPort: s.Addr().String()})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.ErrorIs(t, <-down, transport.ErrRefused)
	_, err = conn.Call(context.Background(), transport.Call{Method: someMethod})
	require.ErrorIs(t, err, transport.ErrRefused)
	require.NoError(t, conn.Err(), "the connection stays open")
}

// TestBreakDuringACall breaks the path at the first bytes of an answer. The call is repeated over
// TLS, and bytes count once.
func TestBreakDuringACall(t *testing.T) {
	l := loopback{memory: &verbstest.Fabric{Retry: time.Millisecond}, retry: time.Minute}
	l.memory.Fail(verbstest.Faults{Delay: 5 * time.Millisecond})
	conn := connect(t, l, l, func(context.Context, transport.Request) ([]byte, error) {
		return bytes.Repeat([]byte("x"), 8<<20), nil
	})
	var received atomic.Int64
	go func() {
		for received.Load() == 0 {
			if conn.Err() != nil {
				return
			}
		}
		l.memory.Break(verbs.GID(netip.MustParseAddr("127.0.0.1").As16()))
	}()
	into := make([]byte, 8<<20)
	got, err := conn.Call(context.Background(), transport.Call{Method: someMethod, Into: into, Received: &received})
	require.NoError(t, err)
	require.True(t, bytes.Equal(bytes.Repeat([]byte("x"), 8<<20), got))
	require.Equal(t, int64(8<<20), received.Load())
	require.True(t, transport.Unproved(conn))
}

// TestProved: an answer that was altered in the fabric is requested again, proved. Two such answers
// end the path.
func TestProved(t *testing.T) {
	down := make(chan error, 10)
	l := loopback{memory: new(verbstest.Fabric), retry: time.Minute, options: func(o *Options) {
		o.Hooks.Down = func(_ transport.ID, why error) { down <- why }
	}}
	body := bytes.Repeat([]byte("b"), 100_000)
	conn := connect(t, l, l, func(context.Context, transport.Request) ([]byte, error) { return body, nil })
	l.memory.Fail(verbstest.Faults{Alter: 1})
	for range maxDoubts {
		call := transport.Call{Method: someMethod, Into: make([]byte, len(body))}
		got, err := conn.Call(context.Background(), call)
		require.NoError(t, err)
		require.False(t, bytes.Equal(body, got))
		require.True(t, transport.Unproved(conn))
		transport.Doubt(conn)
		call.Proved = true
		got, err = conn.Call(context.Background(), call)
		require.NoError(t, err)
		require.True(t, bytes.Equal(body, got))
	}
	require.ErrorIs(t, <-down, ErrDoubted)
	requireAnswers(t, conn, 100_000)
}

// TestRate: a cap on the bytes of answers also applies to those that bypass TLS.
func TestRate(t *testing.T) {
	l := loopback{memory: new(verbstest.Fabric), retry: time.Minute}
	f, _ := l.fabric(t)
	s, err := tcp.Listen("127.0.0.1:0", tcp.ForTests(tcp.Options{
		Key: transporttest.Key(1), ChainID: chain, Handler: transport.HandlerFunc(echo), Rate: 2 << 20, Sides: f,
	}, 0))
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	conn, err := l.Dialer(t, transporttest.Options{Node: 2, ChainID: chain}).Dial(context.Background(), transport.Address{HostPort: s.Addr().String()})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	began := time.Now()
	requireAnswers(t, conn, 1<<20)
	require.Greater(t, time.Since(began), 200*time.Millisecond) // a burst of 256 KiB is free
	require.True(t, transport.Unproved(conn))
}
