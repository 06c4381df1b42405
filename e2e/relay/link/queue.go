package link

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// maxQueued limits the bytes queued in one direction of a connection; beyond it the sender
	// waits, as for a full TCP window.
	maxQueued = 512 << 10
	// maxRead is the number of bytes that are read at a time.
	maxRead = 16 << 10
)

// queue has the bytes that one side of a connection has sent and the other has not received yet, in
// order.
type queue struct {
	ctx   context.Context // of the connection
	ended chan struct{}   // closed when the sender has sent everything

	mu      sync.Mutex
	change  *sync.Cond // signals changes of the fields below, and the end of ctx
	chunks  []chunk
	bytes   int
	end     error // io.EOF: the sender has closed its side; otherwise the connection failed
	endSent time.Time
}

type chunk struct {
	data []byte
	sent time.Time
}

func newQueue(ctx context.Context) *queue {
	q := &queue{ctx: ctx, ended: make(chan struct{})}
	q.change = sync.NewCond(&q.mu)
	context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.change.Broadcast()
	})
	return q
}

// fill reads the sender's bytes until the sender closes, or the connection ends.
func (q *queue) fill(from net.Conn) {
	buffer := make([]byte, maxRead)
	for {
		n, err := from.Read(buffer)
		q.mu.Lock()
		for q.bytes+n > maxQueued && q.ctx.Err() == nil {
			q.change.Wait()
		}
		if n > 0 {
			q.chunks = append(q.chunks, chunk{append([]byte(nil), buffer[:n]...), time.Now()})
			q.bytes += n
		}
		q.end, q.endSent = err, time.Now()
		q.change.Broadcast()
		stop := err != nil || q.ctx.Err() != nil
		q.mu.Unlock()
		if stop {
			close(q.ended)
			return
		}
	}
}

// next waits for the next chunk. An error means that the sender has ended, at the returned time, or
// the connection.
func (q *queue) next() (chunk, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.chunks) == 0 && q.end == nil && q.ctx.Err() == nil {
		q.change.Wait()
	}
	if len(q.chunks) == 0 || q.ctx.Err() != nil {
		return chunk{sent: q.endSent}, cmp.Or(q.ctx.Err(), q.end)
	}
	first := q.chunks[0]
	q.chunks = q.chunks[1:]
	return first, nil
}

// took releases the space of bytes that were sent on.
func (q *queue) took(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes -= n
	q.change.Broadcast()
}

// drain sends everything on to a receiver, as treated by the path there, and at the end closes that
// side. It returns false if one side failed, after the time at which the other would notice.
func (q *queue) drain(ctx context.Context, to net.Conn, by, back *way) bool {
	for {
		c, err := q.next()
		if err != nil {
			return by.pass(ctx, c.sent) && errors.Is(err, io.EOF) && closeWrite(to) == nil
		}
		for len(c.data) > 0 {
			n := by.squeeze(ctx, c.data, c.sent)
			if n == 0 {
				return false
			}
			if _, err := to.Write(c.data[:n]); err != nil {
				back.pass(ctx, time.Now())
				return false
			}
			c.data = c.data[n:]
			q.took(n)
		}
	}
}

// closeWrite signals the end to the receiver, which may still send.
func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return conn.Close()
}
