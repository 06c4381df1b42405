package tcp

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	maxHandshake = 16 << 10 // bytes that a peer may send before it is greeted
	largeBuffer  = 64 << 10 // the way that answers go: less costs CPU, more gains nothing (BenchmarkCall)
	smallBuffer  = 4 << 10  // the way that requests go
)

var errHandshakeTooLong = errors.New("the handshake is too long")

// wire is the socket under TLS. crypto/tls writes each record of 16 KiB by itself and reads hardly more: here they are gathered, and a peer
// that does not take what was gathered in time is given up. Before the greeting nothing is gathered, and what is read is bounded.
type wire struct {
	net.Conn
	hooks *Hooks
	stall time.Duration

	in     *bufio.Reader // over socket; of the reading goroutine
	budget int           // bytes that may still be read; < 0: any number

	out struct {
		sync.Mutex
		buf    []byte
		gather bool
	}
}

func newWire(c net.Conn, o *Options, readBuffer int) *wire {
	w := &wire{Conn: c, hooks: &o.Hooks, stall: o.StallTimeout, budget: maxHandshake}
	w.in = bufio.NewReaderSize(socket{w}, readBuffer)
	return w
}

// socket reads from the connection itself.
type socket struct{ *wire }

func (s socket) Read(b []byte) (int, error) {
	w := s.wire
	if w.budget >= 0 {
		if b = b[:min(len(b), w.budget)]; len(b) == 0 {
			return 0, errHandshakeTooLong
		}
	}
	n, err := w.Conn.Read(b)
	if w.budget >= 0 {
		w.budget -= n
	}
	if w.hooks.Received != nil && n > 0 {
		w.hooks.Received(n)
	}
	return n, err
}

func (w *wire) Read(b []byte) (int, error) { return w.in.Read(b) }

// greeted lifts the bounds of the handshake and begins to gather. No other goroutine uses the wire yet.
func (w *wire) greeted(writeBuffer int) {
	w.budget = -1
	w.out.gather = true
	w.out.buf = make([]byte, 0, writeBuffer)
}

func (w *wire) Write(b []byte) (int, error) {
	w.out.Lock()
	defer w.out.Unlock()
	if !w.out.gather {
		return w.send(b, false)
	}
	for rest := b; len(rest) > 0; {
		n := min(len(rest), cap(w.out.buf)-len(w.out.buf))
		w.out.buf = append(w.out.buf, rest[:n]...)
		rest = rest[n:]
		if len(w.out.buf) == cap(w.out.buf) {
			if err := w.flush(); err != nil {
				return 0, err
			}
		}
	}
	return len(b), nil
}

// Flush sends what was gathered.
func (w *wire) Flush() error {
	w.out.Lock()
	defer w.out.Unlock()
	return w.flush()
}

func (w *wire) flush() error {
	if len(w.out.buf) == 0 {
		return nil
	}
	_, err := w.send(w.out.buf, true)
	w.out.buf = w.out.buf[:0]
	return err
}

// send writes b now. The handshake has a deadline of its own.
func (w *wire) send(b []byte, deadline bool) (int, error) {
	if deadline {
		if err := w.Conn.SetWriteDeadline(time.Now().Add(w.stall)); err != nil {
			return 0, err
		}
	}
	n, err := w.Conn.Write(b)
	if w.hooks.Sent != nil && n > 0 {
		w.hooks.Sent(n)
	}
	return n, err
}
