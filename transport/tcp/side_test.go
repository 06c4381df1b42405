package tcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

const sideMethod transport.Method = 16

// testSides sets up paths whose other end is the test.
type testSides struct {
	refuse  bool
	mu      sync.Mutex
	writers []*testWriter
	lender  *testLender
}

func (*testSides) Method() transport.Method { return sideMethod }

func (s *testSides) Dialled(*Conn) Lender {
	s.lender = &testLender{lost: make(chan struct{})}
	return s.lender
}

func (s *testSides) Proposed(_ context.Context, l Link, body []byte) ([]byte, Writer, error) {
	if s.refuse {
		return nil, nil, transport.ErrRefused
	}
	w := &testWriter{link: l, pieces: make(chan testPiece), closed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writers = append(s.writers, w)
	return body, w, nil
}

type testPiece struct {
	slot    uint32
	at      int
	bytes   []byte
	last    bool
	arrived func()
}

type testWriter struct {
	link   Link
	pieces chan testPiece
	once   sync.Once
	closed chan struct{}
}

func (*testWriter) Expect(uint32, int) Body { return nil }

func (*testWriter) Takes(slot uint32, n int) bool { return slot < 100 }

func (w *testWriter) Write(ctx context.Context, p Piece, _ bool) error {
	select {
	case w.pieces <- testPiece{p.Slot, p.At, p.Bytes, p.Last, p.Arrived}:
		return nil
	case <-w.closed:
		return errors.New("closed")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *testWriter) Close() { w.once.Do(func() { close(w.closed) }) }

type testLender struct {
	mu   sync.Mutex
	all  []*testSlot
	lost chan struct{}
	once sync.Once
}

type testSlot struct {
	number uint32
	landed func([]byte, bool) error
	lost   func()
	ended  chan int
}

func (s *testSlot) Number() uint32  { return s.number }
func (s *testSlot) Ended(total int) { s.ended <- total }
func (*testSlot) Abandoned()        {}

func (*testLender) Start()             {}
func (*testLender) Doubt()             {}
func (*testLender) Carry([]byte) Place { return nil }
func (*testLender) Up() bool           { return false }
func (l *testLender) Close()           { l.PeerLost() }
func (l *testLender) PeerLost()        { l.once.Do(l.end) }

func (l *testLender) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.lost)
	for _, s := range l.all {
		s.lost()
	}
}

func (l *testLender) Lend(_ int, landed func([]byte, bool) error, lost func()) Slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.lost:
		return nil
	default:
	}
	s := &testSlot{uint32(len(l.all)), landed, lost, make(chan int, 1)}
	l.all = append(l.all, s)
	return s
}

// slot waits for the first slot that is lent.
func (l *testLender) slot(t *testing.T) (s *testSlot) {
	t.Helper()
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.all) == 0 {
			return false
		}
		s = l.all[0]
		return true
	}, patience, time.Millisecond)
	return s
}

// lentFrame returns a request with a slot.
func lentFrame(id uint64, slot uint32, length int, body string) []byte {
	b := appendHeader(nil, frameLent, id, lentHeader+1+len(body))
	b = binary.BigEndian.AppendUint32(b, slot)
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	return append(append(b, byte(someMethod)), body...)
}

func written(id, total uint64) []byte {
	return binary.BigEndian.AppendUint64(appendHeader(nil, frameWritten, id, 8), total)
}

// proposed returns a connection with a path, and the path.
func proposed(t *testing.T, s *Server, sides *testSides) (*rawConn, *testWriter) {
	t.Helper()
	c := &rawConn{t: t, Conn: rawDial(t, connect(t, s), helloHere)}
	return c, c.propose(sides, 1)
}

// A rawConn reads frames.
type rawConn struct {
	t    *testing.T
	Conn io.ReadWriter
}

func (c *rawConn) write(b []byte) {
	c.t.Helper()
	_, err := c.Conn.Write(b)
	require.NoError(c.t, err)
}

func (c *rawConn) propose(sides *testSides, id uint64) *testWriter {
	c.t.Helper()
	c.write(append(appendHeader(nil, frameRequest, id, 2), byte(sideMethod), 'x'))
	kind, got, _ := c.next()
	require.Equal(c.t, byte(frameAnswer), kind)
	require.Equal(c.t, id, got)
	sides.mu.Lock()
	defer sides.mu.Unlock()
	return sides.writers[len(sides.writers)-1]
}

// next returns the next frame.
func (c *rawConn) next() (kind byte, id uint64, payload []byte) {
	c.t.Helper()
	head := make([]byte, frameHeader)
	_, err := io.ReadFull(c.Conn, head)
	require.NoError(c.t, err)
	payload = make([]byte, binary.BigEndian.Uint32(head[9:]))
	_, err = io.ReadFull(c.Conn, payload)
	require.NoError(c.t, err)
	return head[0], binary.BigEndian.Uint64(head[1:]), payload
}

func long(n int) string { return string(bytes.Repeat([]byte("b"), n)) }

// TestSideOfAServer writes answers that bypass TLS in pieces, sends the ending when all have
// arrived, and sends short answers over TLS.
func TestSideOfAServer(t *testing.T) {
	sides := new(testSides)
	c, w := proposed(t, newServer(t, 1, Options{Sides: sides}), sides)
	c.write(lentFrame(2, 7, 300_000, long(300_000)))
	first, second := <-w.pieces, <-w.pieces
	require.Equal(t, []int{0, MaxSidePiece}, []int{first.at, second.at})
	require.Equal(t, []bool{false, true}, []bool{first.last, second.last})
	require.Equal(t, 300_000, len(first.bytes)+len(second.bytes))
	require.Equal(t, uint32(7), first.slot)
	second.arrived()
	first.arrived()
	kind, id, payload := c.next()
	require.Equal(t, []any{byte(frameWritten), uint64(2), uint64(300_000)}, []any{kind, id, binary.BigEndian.Uint64(payload)})

	for i, f := range [][]byte{
		lentFrame(3, 7, 300_000, long(leastLent-1)), // short
		lentFrame(4, 7, 40_000, long(40_001)),       // longer than the slot
		lentFrame(5, 100, 40_000, long(40_000)),     // not a slot of the path
		lentFrame(6, 7, 0, long(40_000)),            // zero length
	} {
		c.write(f)
		kind, id, _ := c.next()
		require.Equal(t, byte(frameAnswer), kind)
		require.Equal(t, uint64(3+i), id)
	}
}

// TestEndingsTogether: an ending waits for those of other answers under way, but only a few wait,
// and none if the path is lost.
func TestEndingsTogether(t *testing.T) {
	newPath := func(maxCalls int) (q *queue, f *sideQueue, told func() []uint64) {
		q = newQueue(prepare(Options{bounds: bounds{maxCalls: maxCalls}}), newGuest("host"))
		f = q.follow(new(testWriter))
		return q, f, func() (ids []uint64) {
			select {
			case <-q.wake:
			default:
				return nil
			}
			for p, ok := q.next(); ok; p, ok = q.next() {
				ids = append(ids, binary.BigEndian.Uint64(p.head[1:]))
			}
			return ids
		}
	}
	lent := leastLent
	write := func(q *queue, f *sideQueue, id uint64) sidePiece {
		require.NoError(t, q.open(id, func() {}))
		q.lent(id, uint32(id), lent)
		q.answer(id, make([]byte, leastLent), 0)
		p, ok := q.nextSide(f)
		require.True(t, ok)
		return p
	}
	q, f, told := newPath(16)
	var under []sidePiece
	for id := range uint64(3) {
		under = append(under, write(q, f, id+1))
	}
	q.arrived(f, under[0])
	require.Empty(t, told(), "others are under way")
	q.arrived(f, under[1])
	require.Empty(t, told())
	q.arrived(f, under[2])
	require.ElementsMatch(t, []uint64{1, 2, 3}, told())

	forever := write(q, f, 4)
	for id := uint64(5); id < 9; id++ {
		q.arrived(f, write(q, f, id))
		require.Empty(t, told())
	}
	q.arrived(f, write(q, f, 9))
	require.ElementsMatch(t, []uint64{5, 6, 7, 8, 9}, told(), "a quarter of the calls at most waits")
	q.arrived(f, write(q, f, 10))
	require.Empty(t, told())
	lent = maxHeldBytes
	q.arrived(f, write(q, f, 11))
	require.ElementsMatch(t, []uint64{10, 11}, told(), "a long slot is not kept from the dialer")
	lent = leastLent
	q.arrived(f, write(q, f, 12))
	require.Empty(t, told())
	q.lost(false)
	require.ElementsMatch(t, []uint64{4, 12}, told())
	q.arrived(f, forever)

	q, f, told = newPath(2)
	write(q, f, 1)
	q.arrived(f, write(q, f, 2))
	require.Equal(t, []uint64{2}, told(), "a dialer with a small window needs it")
}

// TestSideIsLost: requests with slots get error 5, and the dialer is informed unless it knows.
func TestSideIsLost(t *testing.T) {
	for name, test := range map[string]struct {
		lose func(*rawConn, *testWriter)
		told bool
	}{
		"by the server": {func(_ *rawConn, w *testWriter) { w.link.Lost(errors.New("cut")) }, true},
		"by the dialer": {func(c *rawConn, _ *testWriter) { c.write(appendHeader(nil, frameLost, 0, 0)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			sides := new(testSides)
			s := newServer(t, 1, Options{Sides: sides})
			c, w := proposed(t, s, sides)
			c.write(lentFrame(2, 7, 300_000, long(300_000)))
			late := <-w.pieces
			test.lose(c, w)
			if test.told {
				kind, _, _ := c.next()
				require.Equal(t, byte(frameLost), kind)
			}
			kind, id, payload := c.next()
			require.Equal(t, []any{byte(frameError), uint64(2), []byte{codeCancelled}}, []any{kind, id, payload})
			<-w.closed
			late.arrived()
			require.Zero(t, s.unsent.held())

			again := c.propose(sides, 3)
			require.NotSame(t, w, again)
			c.write(lentFrame(4, 8, 40_000, long(40_000)))
			(<-again.pieces).arrived()
			kind, _, _ = c.next()
			require.Equal(t, byte(frameWritten), kind)
		})
	}
}

// TestSideIsLostAtOnce: the queue already has the path when its proposal is answered, so the end of
// the path is handled from then on.
func TestSideIsLostAtOnce(t *testing.T) {
	sides := new(testSides)
	o, err := Options{Key: keyOf(1), Handler: echo, Sides: sides}.withDefaults()
	require.NoError(t, err)
	s := prepare(o)
	s.ctx = t.Context()
	n := newSession(s, nil, &wire{Conn: &net.TCPConn{}}, newGuest("host"), hello{chainID: chain}, transport.Request{})
	_, err = n.propose(nil)
	require.NoError(t, err)
	n.queue.mu.Lock()
	side := n.queue.mu.side
	n.queue.mu.Unlock()
	require.NotNil(t, side)
	sides.writers[0].link.Lost(errors.New("cut"))
	<-side.lost
	<-sides.writers[0].closed
	n.wg.Wait()
}

// TestCancelWithASlot: the ending is sent when no piece is under way any more.
func TestCancelWithASlot(t *testing.T) {
	sides := new(testSides)
	s := newServer(t, 1, Options{Sides: sides})
	c, w := proposed(t, s, sides)
	c.write(lentFrame(2, 7, 600_000, long(600_000)))
	first := <-w.pieces
	c.write(appendHeader(nil, frameCancel, 2, 0))
	c.write(requestFrame(3, "x"))
	for id := uint64(0); id != 3; { // pieces are written until the cancel is processed
		_, id, _ = c.next()
	}
	go func() {
		for { // the piece that was being written
			select {
			case p := <-w.pieces:
				p.arrived()
			case <-t.Context().Done():
				return
			}
		}
	}()
	first.arrived()
	kind, id, _ := c.next()
	require.Equal(t, byte(frameError), kind)
	require.Equal(t, uint64(2), id)
	require.Zero(t, s.unsent.held())
}

// TestHostileSideFrames: frames that a side must not send are protocol violations.
func TestHostileSideFrames(t *testing.T) {
	for name, frames := range map[string][]byte{
		"a slot, and no sides":   lentFrame(1, 0, 1, ""),
		"lost, and no sides":     appendHeader(nil, frameLost, 0, 0),
		"written, by a dialer":   append(appendHeader(nil, frameWritten, 1, 8), make([]byte, 8)...),
		"a slot without method":  appendHeader(nil, frameLent, 1, lentHeader),
		"lost, with a payload":   append(appendHeader(nil, frameLost, 0, 1), 0),
		"written, of ten bytes":  append(appendHeader(nil, frameWritten, 1, 10), make([]byte, 10)...),
		"a slot, body too large": appendHeader(nil, frameLent, 1, lentHeader+2+transport.MaxBody),
	} {
		t.Run(name, func(t *testing.T) {
			var o Options
			e := watch(&o)
			s := newServer(t, 1, o)
			c := rawDial(t, connect(t, s), helloHere)
			_, err := c.Write(frames)
			require.NoError(t, err)
			require.ErrorIs(t, <-e.closed, transport.ErrProtocol)
		})
	}
	t.Run("a flood of lost paths", func(t *testing.T) {
		o := Options{Sides: new(testSides)}
		e := watch(&o)
		s := newServer(t, 1, o)
		c := rawDial(t, connect(t, s), helloHere)
		_, err := c.Write(bytes.Repeat(appendHeader(nil, frameLost, 0, 0), 10*idleFrames))
		if err == nil {
			require.ErrorIs(t, <-e.closed, transport.ErrProtocol)
		}
	})
}

// TestRefusedExchange: there is no path, and the connection stays open.
func TestRefusedExchange(t *testing.T) {
	s := newServer(t, 1, Options{Sides: &testSides{refuse: true}})
	c := dial(t, newDialer(2, Options{ChainID: chain}), s)
	_, err := c.Call(t.Context(), transport.Call{Method: sideMethod, Body: []byte("x")})
	require.ErrorIs(t, err, transport.ErrRefused)
	requireServes(t, s)
}

// lentTo makes a call with a slot to a server that runs play_.
func lentTo(t *testing.T, play_ func(c *tls.Conn)) (*Conn, *testSides, <-chan error) {
	t.Helper()
	a := play(t, nil, func(c *tls.Conn) {
		readHello(c)
		c.Write(hello{window: 4, chainID: chain}.encode())
		if _, err := io.ReadFull(c, make([]byte, frameHeader+lentHeader+1)); err == nil {
			play_(c)
		}
		hangsUp(c)
	})
	sides := new(testSides)
	dialled, err := newDialer(2, Options{ChainID: chain, Sides: sides}).Dial(t.Context(), a)
	require.NoError(t, err)
	t.Cleanup(func() { dialled.Close() })
	c, result := dialled.(*Conn), make(chan error, 1)
	go func() {
		got, err := c.Call(t.Context(), transport.Call{Method: someMethod, Into: make([]byte, leastLent)})
		if err == nil && len(got) != 5 {
			err = errors.New("another answer")
		}
		result <- err
	}()
	return c, sides, result
}

// TestWrittenAnswer: an answer lands in the slot, before or after its ending.
func TestWrittenAnswer(t *testing.T) {
	for _, early := range []bool{false, true} {
		ready := make(chan struct{})
		c, sides, result := lentTo(t, func(c *tls.Conn) {
			<-ready
			c.Write(written(1, 5))
		})
		slot := sides.lender.slot(t)
		require.False(t, c.Unproved())
		if early {
			close(ready)
			require.Equal(t, 5, <-slot.ended)
		}
		require.NoError(t, slot.landed([]byte("an"), false))
		require.NoError(t, slot.landed([]byte("swe"), true))
		require.NoError(t, <-result)
		require.True(t, c.Unproved())
		if !early {
			close(ready)
			require.Equal(t, 5, <-slot.ended)
		}
		require.NoError(t, slot.landed([]byte("late"), true), "the call has returned, so nothing is written")
	}
}

// TestLandedTooLong: the path of the slot violates the protocol, and the call is repeated.
func TestLandedTooLong(t *testing.T) {
	_, sides, result := lentTo(t, func(c *tls.Conn) {
		c.Write(appendHeader(nil, frameLost, 0, 0)) // cancels request 1
		c.Write(fail(1, codeCancelled))
		if _, err := io.ReadFull(c, make([]byte, frameHeader+1)); err == nil {
			c.Write(start(2, 5, 5))
		}
	})
	slot := sides.lender.slot(t)
	require.NoError(t, <-result)
	require.NoError(t, slot.landed(make([]byte, leastLent+1), true), "it has returned")
	require.Equal(t, -1, <-slot.ended)
	a := newAnswer(transport.Call{Into: make([]byte, 10)})
	require.NoError(t, a.land(make([]byte, 6), false))
	require.ErrorIs(t, a.land(make([]byte, 5), true), transport.ErrProtocol)
	a.start(10)
	require.ErrorIs(t, a.land([]byte("x"), false), transport.ErrProtocol, "the answer comes over TLS")
}

// TestAnswerTwice: the caller's answer is complete although another one arrives over TLS.
func TestAnswerTwice(t *testing.T) {
	a := newAnswer(transport.Call{Into: make([]byte, 10)})
	require.NoError(t, a.land([]byte("answer"), true))
	require.False(t, a.start(3))
	a.take([]byte("lie"))
	got, err := a.result()
	require.NoError(t, err)
	require.Equal(t, "answer", string(got))
}

// TestHostileEndings of a request with a slot.
func TestHostileEndings(t *testing.T) {
	for name, frames := range map[string][]byte{
		"longer than the slot": written(1, leastLent+1), "of 2^63 bytes": written(1, 1<<63), "of another request": written(2, 1),
		"twice": append(written(1, 5), written(1, 5)...), "in an answer": append(start(1, 10, 5), written(1, 5)...),
		"cancelled by itself": fail(1, codeCancelled), "a flood of lost paths": bytes.Repeat(appendHeader(nil, frameLost, 0, 0), 10*idleFrames),
	} {
		t.Run(name, func(t *testing.T) {
			c, _, _ := lentTo(t, func(c *tls.Conn) { c.Write(frames) })
			<-c.Done()
			require.ErrorIs(t, c.Err(), transport.ErrProtocol)
		})
	}
}
