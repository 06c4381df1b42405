package tcp

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/starling-kv/starling/transport"
)

// maxSkip is the number of bytes of an oversized answer that are skipped. An honest peer stops as
// soon as the request is cancelled.
const maxSkip = 16 << 20

// answer is the destination of the answer to a call. The reading goroutine fills it; the caller may
// leave at any time.
//
//	waiting ──► started ──► ended      the id is settled with its last byte, or an error
//	    └─ left ──┴──────────────►     the caller has returned: bytes are skipped up to the same end
type answer struct {
	done chan struct{} // closed when the caller has something to return
	slot Slot          // nil: none; set before the request is sent
	body *carried      // nil: the body is in the frame of the request

	// Used by the reading goroutine.
	started bool
	total   int // known once started
	got     int
	long    bool // longer than the caller allows
	skip    int  // if long, the number of bytes that may still be skipped

	mu struct {
		sync.Mutex      // held while into is written to, never while waiting for the network
		left       bool // the caller has its buffer back: it has returned, or is about to
		into       []byte
		n          int  // bytes of the answer in into
		counted    int  // bytes counted by received
		tls        bool // the answer comes over TLS: nothing may land in the slot
		limit      int  // of the answer, in bytes
		own        bool // into was allocated here, and grows
		received   *atomic.Int64
		err        error
	}
}

func newAnswer(c transport.Call) *answer {
	a := &answer{done: make(chan struct{})}
	a.mu.into, a.mu.limit, a.mu.own, a.mu.received = c.Into, len(c.Into), c.Into == nil, c.Received
	if a.mu.own {
		a.mu.limit = max(c.Max, 0)
	}
	return a
}

// start records the total. tooLong reports that the call has just ended with ErrTooLong.
func (a *answer) start(total int) (tooLong bool) {
	a.started, a.total, a.skip = true, total, maxSkip
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.tls = true; !a.mu.left { // otherwise the caller may be reading n
		a.mu.n = 0
	}
	if a.long = total > a.mu.limit; !a.long {
		return false
	}
	return a.finish(fmt.Errorf("%w: %d bytes, the limit is %d", transport.ErrTooLong, total, a.mu.limit))
}

// take adds bytes of the answer. The caller ensures that they do not exceed the total.
func (a *answer) take(b []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.mu.left {
		if a.mu.own {
			a.grow(a.got + len(b))
		}
		a.put(a.got, b)
	}
	a.got += len(b)
}

// put copies bytes of the answer. If an answer is requested again, its bytes are not counted twice.
// The caller holds a.mu.
func (a *answer) put(at int, b []byte) {
	copy(a.mu.into[at:], b)
	a.mu.n = at + len(b)
	if more := a.mu.n - a.mu.counted; more > 0 && a.mu.received != nil {
		a.mu.received.Add(int64(more))
		a.mu.counted = a.mu.n
	}
}

// grow makes room for n bytes. It allocates at most twice the bytes that have arrived, because the
// total is only the peer's claim. The caller holds a.mu.
func (a *answer) grow(n int) {
	if n > cap(a.mu.into) {
		bigger := make([]byte, n, min(a.total, max(2*n, 16<<10)))
		copy(bigger, a.mu.into)
		a.mu.into = bigger
	}
	a.mu.into = a.mu.into[:n]
}

// end ends the call with its answer, or with err.
func (a *answer) end(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.finish(err)
}

func (a *answer) finish(err error) bool {
	if a.mu.left {
		return false
	}
	a.mu.left, a.mu.err = true, err
	if err != nil {
		a.mu.into = nil
	}
	close(a.done)
	return true
}

// leave takes the caller's buffer back, so that a peer that never settles the id does not keep
// memory in use. It returns false if the call has already ended.
func (a *answer) leave() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.left {
		return false
	}
	a.mu.left, a.mu.into = true, nil
	return true
}

// hasLeft reports whether the caller has returned.
func (a *answer) hasLeft() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.left
}

// result returns the result of Call once done is closed.
func (a *answer) result() ([]byte, error) {
	if a.mu.err != nil {
		return nil, a.mu.err
	}
	return a.mu.into[:a.mu.n], nil
}
