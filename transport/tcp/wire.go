package tcp

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	maxHandshake = 16 << 10 // limit of bytes read from a peer before it is greeted
	largeBuffer  = 64 << 10 // for answers: smaller costs CPU, larger saves none (BenchmarkCall)
	smallBuffer  = 4 << 10  // for requests
)

var errHandshakeTooLong = errors.New("the handshake is too long")

// wire is the socket under TLS. crypto/tls makes a write call for each record of 16 KiB, and reads
// little more at once, so wire buffers both. A peer that does not read the buffered bytes in time
// is disconnected. Until the greeting, writes are not buffered, and the number of bytes read is
// limited.
type wire struct {
	net.Conn
	hooks *Hooks
	stall time.Duration
	heard func() // at a server: called when the peer's ClientHello has arrived

	in     *bufio.Reader // reads from socket; used by the reading goroutine
	budget int           // bytes that may still be read; < 0: no limit

	out struct {
		sync.Mutex
		buf    []byte
		gather bool
	}
}

func newWire(c net.Conn, o *Options, readBuffer int) *wire {
	w := &wire{Conn: c, hooks: &o.Hooks, stall: o.stallTimeout, budget: maxHandshake}
	w.in = bufio.NewReaderSize(socket{w}, readBuffer)
	return w
}

// socket reads from the connection directly.
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

// greeted lifts the limits of the handshake and starts to buffer writes. It must be called before
// other goroutines use the wire.
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

// Flush sends the buffered bytes.
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

// send writes b now. With deadline, it must succeed within stall; during the handshake another
// deadline applies.
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
