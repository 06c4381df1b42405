package tcp

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/starling-kv/starling/transport"
)

// maxSkip is how many bytes of an answer that is too long are skipped. An honest peer ends it as
// soon as it is told to.
const maxSkip = 16 << 20

// answer is where the answer to a call lands. The goroutine that reads fills it; the caller may
// leave at any time.
//
//	waiting ──► started ──► ended      the id is settled with its last byte, or an error
//	    └─ left ──┴──────────────►     the caller has returned: bytes are skipped up to the same end
type answer struct {
	done chan struct{} // closed when the caller has something to return
	slot Slot          // nil: none; set before the request is sent
	body *carried      // nil: the body is in the request's frame

	// Used by the goroutine that reads.
	started bool
	total   int // known once started
	got     int
	long    bool // longer than the caller allows
	skip    int  // if so, the bytes that may still be skipped

	mu struct {
		sync.Mutex      // held while into is written to, never while waiting for the network
		left       bool // the caller has its buffer back: it has returned, or is about to
		into       []byte
		n          int  // bytes of the answer that are in into
		counted    int  // by received
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

// start notes the total. tooLong reports that the caller has just been given ErrTooLong.
func (a *answer) start(total int) (tooLong bool) {
	a.started, a.total, a.skip = true, total, maxSkip
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.tls = true; !a.mu.left { // else the caller is reading n
		a.mu.n = 0
	}
	if a.long = total > a.mu.limit; !a.long {
		return false
	}
	return a.finish(fmt.Errorf("%w: %d bytes, the limit is %d", transport.ErrTooLong, total, a.mu.limit))
}

// take adds bytes of the answer. The caller makes sure that they are no more than the total.
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

// put adds bytes of the answer. The caller holds a.mu. Where an answer is asked for once more, its
// bytes are not counted twice.
func (a *answer) put(at int, b []byte) {
	copy(a.mu.into[at:], b)
	a.mu.n = at + len(b)
	if more := a.mu.n - a.mu.counted; more > 0 && a.mu.received != nil {
		a.mu.received.Add(int64(more))
		a.mu.counted = a.mu.n
	}
}

// grow makes room for n bytes: at most twice what has arrived, since the peer has proved no more.
// The caller holds a.mu.
func (a *answer) grow(n int) {
	if n > cap(a.mu.into) {
		bigger := make([]byte, n, min(a.total, max(2*n, 16<<10)))
		copy(bigger, a.mu.into)
		a.mu.into = bigger
	}
	a.mu.into = a.mu.into[:n]
}

// end gives the caller its answer, or err.
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

// leave takes the caller's buffer back, so that a peer that never settles the id keeps no memory of
// it. It returns false if the answer is already there.
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

// result is what Call returns once done is closed.
func (a *answer) result() ([]byte, error) {
	if a.mu.err != nil {
		return nil, a.mu.err
	}
	return a.mu.into[:a.mu.n], nil
}
