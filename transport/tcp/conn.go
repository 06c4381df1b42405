package tcp

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/starling-kv/starling/internal/wake"
	"github.com/starling-kv/starling/transport"
)

// Conn is an outbound connection. One goroutine reads and one writes; both end with the connection.
type Conn struct {
	remote  transport.Address
	chainID string
	tls     *tls.Conn
	wire    *wire
	idle    time.Duration
	slots   chan struct{} // one element for each unsettled id; the capacity is the window
	wake    chan struct{} // has an element if there are frames to write
	done    chan struct{}
	side    Lender        // paths that bypass TLS; nil: none
	lost    *rate.Limiter // limits the server's reports that a path is lost
	// unproved is set if an answer has arrived over a path that bypasses TLS.
	unproved atomic.Bool

	mu struct {
		sync.Mutex
		lastID  uint64
		answers map[uint64]*answer // by unsettled id; nil once the connection has ended
		pings   int                // sent and not answered yet
		frames  []byte             // to be written: requests and cancels, at most a window of each
		err     error              // why the connection has ended
	}
}

func newConn(t *tls.Conn, w *wire, remote transport.Address, h hello, idle time.Duration, sides Sides) *Conn {
	c := &Conn{
		remote: remote, chainID: h.chainID, tls: t, wire: w, idle: idle,
		slots: make(chan struct{}, h.window), wake: make(chan struct{}, 1), done: make(chan struct{}),
		lost: rate.NewLimiter(idleFrames, idleFrames),
	}
	c.mu.answers = make(map[uint64]*answer)
	if sides != nil {
		c.side = sides.Dialled(c)
		c.side.Start()
	}
	go c.write()
	go func() { c.fail(c.read(bufio.NewReaderSize(t, readBuffer))) }()
	return c
}

// readBuffer is the size of one TLS record, the most that crypto/tls returns at once.
const readBuffer = 16 << 10

// Remote implements transport.Conn.
func (c *Conn) Remote() transport.Address { return c.remote }

// ChainID implements transport.Conn.
func (c *Conn) ChainID() string { return c.chainID }

// Done implements transport.Conn.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err implements transport.Conn. It matches ErrClosed, and also ErrProtocol if that is the cause.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.err
}

// Close implements transport.Conn.
func (c *Conn) Close() error {
	c.fail(nil)
	return nil
}

// fail ends the connection and all calls.
func (c *Conn) fail(cause error) {
	err := transport.ErrClosed
	if cause != nil {
		err = fmt.Errorf("%w: %w", transport.ErrClosed, cause)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err != nil {
		return
	}
	c.mu.err = err
	close(c.done)
	c.wire.Conn.Close()
	for _, a := range c.mu.answers {
		a.end(err)
	}
	c.mu.answers = nil
	if c.side != nil {
		c.side.Close()
	}
}

// Call implements transport.Conn. It repeats a call over TLS if the path that bypasses TLS is lost.
func (c *Conn) Call(ctx context.Context, call transport.Call) ([]byte, error) {
	counted := 0
	for {
		got, err := c.call(ctx, call, &counted)
		if !errors.Is(err, errSideLost) {
			return got, err
		}
		call.Proved = true
	}
}

// call makes one attempt. counted is the number of bytes that earlier attempts added to
// Call.Received.
func (c *Conn) call(ctx context.Context, call transport.Call, counted *int) ([]byte, error) {
	if len(call.Body) > transport.MaxBody {
		return nil, fmt.Errorf("request of %d bytes exceeds the limit of %d", len(call.Body), transport.MaxBody)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case c.slots <- struct{}{}:
	case <-c.done:
		return nil, c.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	a := newAnswer(call)
	a.mu.counted, a.body = *counted, c.carry(call)
	id, err := c.ask(call, a)
	if err != nil {
		return nil, err
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		if a.leave() {
			if a.slot != nil {
				a.slot.Abandoned()
			}
			c.cancel(id)
			return nil, ctx.Err()
		}
	}
	*counted = a.mu.counted
	return a.result()
}

// ask gives the call an id and queues its request. The body is copied, because the caller may
// return before it is sent.
func (c *Conn) ask(call transport.Call, a *answer) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err != nil {
		return 0, c.mu.err
	}
	c.mu.lastID++
	id := c.mu.lastID
	c.mu.answers[id] = a
	if a.body != nil && !a.body.at.Valid() {
		a.body = nil // the server learns first that its path is lost
	}
	c.lend(call, a)
	body := call.Body
	switch {
	case a.body != nil:
		body = nil
		c.mu.frames = appendHeader(c.mu.frames, frameCarried, id, carriedHeader+lentHeader+1)
		c.mu.frames = a.appendLent(a.body.append(c.mu.frames), len(call.Into))
	case a.slot != nil:
		c.mu.frames = appendHeader(c.mu.frames, frameLent, id, lentHeader+1+len(body))
		c.mu.frames = a.appendLent(c.mu.frames, len(call.Into))
	default:
		c.mu.frames = appendHeader(c.mu.frames, frameRequest, id, 1+len(body))
	}
	c.mu.frames = append(append(c.mu.frames, byte(call.Method)), body...)
	c.poke()
	return id, nil
}

// cancel tells the peer that the answer is no longer needed. The slot is free once the peer has
// settled the id.
func (c *Conn) cancel(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, open := c.mu.answers[id]; open {
		c.mu.frames = appendHeader(c.mu.frames, frameCancel, id, 0)
		c.poke()
	}
}

func (c *Conn) poke() { wake.Up(c.wake) }

// pingEvery is the maximum interval between a dialer's pings. A server waits several times as long
// for a frame.
const pingEvery = 15 * time.Second

// write sends queued frames, and pings: an answer may take long, a pong does not.
func (c *Conn) write() {
	ping := time.NewTicker(min(c.idle/4, pingEvery))
	defer ping.Stop()
	var frames []byte
	for {
		select {
		case <-c.done:
			return
		case <-ping.C:
			c.mu.Lock()
			c.mu.pings++
			c.mu.Unlock()
			frames = appendHeader(frames[:0], framePing, 0, 0)
		case <-c.wake:
			c.mu.Lock()
			frames, c.mu.frames = c.mu.frames, frames[:0]
			c.mu.Unlock()
		}
		_, err := c.tls.Write(frames)
		if err == nil {
			err = c.wire.Flush()
		}
		if err != nil {
			c.fail(err)
			return
		}
		if cap(frames) > 1<<16 {
			frames = nil // a large body was sent, which is rare
		}
	}
}

// read handles frames until the connection ends, and returns the reason.
func (c *Conn) read(br *bufio.Reader) error {
	for {
		if err := c.tls.SetReadDeadline(time.Now().Add(c.idle)); err != nil {
			return err
		}
		if err := c.readFrame(br); err != nil {
			return err
		}
	}
}

func (c *Conn) readFrame(br *bufio.Reader) error {
	h, err := readHeader(br)
	if err != nil {
		return err
	}
	switch h.kind {
	case framePong:
		return c.pong()
	case frameLost:
		return c.peerLost()
	case frameAnswer, frameMore, frameError, frameWritten:
	default:
		return fmt.Errorf("%w: a server sent a frame of type %d", transport.ErrProtocol, h.kind)
	}
	a := c.open(h.id)
	if a == nil {
		return fmt.Errorf("%w: an answer to request %d, which is not open", transport.ErrProtocol, h.id)
	}
	switch h.kind {
	case frameError:
		return c.refused(br, h.id, a)
	case frameWritten:
		return c.written(br, h.id, a)
	}
	return c.piece(br, h, a)
}

// pong records a pong, which may answer several pings.
func (c *Conn) pong() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.pings == 0 {
		return fmt.Errorf("%w: more pongs than pings", transport.ErrProtocol)
	}
	c.mu.pings--
	return nil
}

func (c *Conn) open(id uint64) *answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.answers[id]
}

// piece reads a piece of an answer.
func (c *Conn) piece(br *bufio.Reader, h header, a *answer) error {
	n := h.n
	if (h.kind == frameAnswer) == a.started {
		return fmt.Errorf("%w: the pieces of an answer are out of order", transport.ErrProtocol)
	}
	if h.kind == frameAnswer {
		total, err := readTotal(br)
		if err != nil {
			return err
		}
		n -= 8
		if a.start(total) {
			c.cancel(h.id)
		}
	}
	if n > a.total-a.got {
		return fmt.Errorf("%w: an answer has more bytes than announced", transport.ErrProtocol)
	}
	if a.long {
		if a.skip -= n; a.skip < 0 {
			return fmt.Errorf("%w: an oversized answer does not end", transport.ErrProtocol)
		}
	}
	if err := pass(br, n, a.take); err != nil {
		return err
	}
	if a.got == a.total {
		c.settle(h.id)
		a.ended(-1)
		a.end(nil)
	}
	return nil
}

// refused reads an error.
func (c *Conn) refused(br *bufio.Reader, id uint64, a *answer) error {
	code, err := br.ReadByte()
	if err != nil {
		return unexpected(err)
	}
	answered := errorOf(code)
	if code == codeBodyLost && a.body != nil && !a.started {
		c.settle(id)
		a.ended(-1)
		a.end(errSideLost)
		return nil
	}
	switch left := a.hasLeft(); {
	case answered == nil && code != codeCancelled:
		return fmt.Errorf("%w: error %d", transport.ErrProtocol, code)
	case !left && (code == codeCancelled || a.started):
		return fmt.Errorf("%w: an answer ends early", transport.ErrProtocol)
	}
	c.settle(id)
	a.ended(-1)
	a.end(answered)
	return nil
}

// settle forgets an id. No further frame may carry it.
func (c *Conn) settle(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, open := c.mu.answers[id]; open {
		delete(c.mu.answers, id)
		if a.body != nil {
			a.body.at.Delivered()
		}
		<-c.slots
	}
}
