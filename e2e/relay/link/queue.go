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
	// maxQueued bounds what one direction of a connection keeps, in bytes; then the sender waits,
	// as for a full TCP window.
	maxQueued = 512 << 10
	// maxRead is how much is read at a time.
	maxRead = 16 << 10
)

// queue is what one side of a connection has sent and the other does not have yet, in order.
type queue struct {
	ctx   context.Context // of the connection
	ended chan struct{}   // closed when the sender has sent everything

	mu      sync.Mutex
	change  *sync.Cond // of what follows, and the end of ctx
	chunks  []chunk
	bytes   int
	end     error // io.EOF: the sender has closed its side; else it failed
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

// fill reads what a sender sends, until its end or that of the connection.
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

// next waits for the next chunk. An error is the sender's end, which has a time, too, or the
// connection's.
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

// took gives back the space of bytes that have left.
func (q *queue) took(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes -= n
	q.change.Broadcast()
}

// drain hands everything over to a receiver, as the way there lets it, and in the end that the
// sender has closed its side. False: one of the two failed, and the time has come for the other to
// hear of it.
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

// closeWrite tells the receiver that nothing follows; it may still send.
func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return conn.Close()
}
