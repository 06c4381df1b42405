package link

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// way is the path from a sender to a receiver, over all their connections.
type way struct{ atomic.Pointer[rule] }

// rule is a treatment in force.
type rule struct {
	Treatment
	replaced chan struct{} // closed when another rule replaces this one

	mu sync.Mutex
	// time at which all bytes that were accepted so far will have left; for the bandwidth
	free time.Time
}

func newWay() *way {
	w := new(way)
	w.Store(newRule(Treatment{}))
	return w
}

func newRule(t Treatment) *rule { return &rule{Treatment: t, replaced: make(chan struct{})} }

func (w *way) set(t Treatment) { close(w.Swap(newRule(t)).replaced) }

// pass waits until data sent at a time has passed: until the path is not cut and the delay is over.
// It returns false if ctx is done.
func (w *way) pass(ctx context.Context, sent time.Time) bool {
	for {
		r := w.Load()
		var over <-chan time.Time // nil if the path is cut
		if !r.Cut {
			left := time.Until(sent.Add(r.Delay))
			if left <= 0 {
				return ctx.Err() == nil
			}
			over = time.After(left)
		}
		select {
		case <-ctx.Done():
			return false
		case <-r.replaced:
		case <-over:
		}
	}
}

// A path of limited bandwidth passes pieces of a twentieth of a second's worth of bytes, within
// these bounds.
const (
	minPiece, maxPiece = 256, 16 << 10
	piecesPerSecond    = 20
)

// squeeze waits until a first part of data, sent at a time, has passed, and returns its length; 0
// if ctx is done.
func (w *way) squeeze(ctx context.Context, data []byte, sent time.Time) int {
	for w.pass(ctx, sent) {
		r := w.Load()
		switch {
		case r.Cut:
			continue // it was cut since pass returned
		case r.Bandwidth == 0:
			return len(data)
		}
		n := min(len(data), int(min(max(r.Bandwidth/piecesPerSecond, minPiece), maxPiece)))
		left := time.NewTimer(time.Until(r.reserve(n)))
		select {
		case <-ctx.Done():
			left.Stop()
			return 0
		case <-r.replaced: // try again under the new rule
			left.Stop()
		case <-left.C:
			return n
		}
	}
	return 0
}

// reserve reserves the bandwidth for n bytes, and returns the time at which they will have left.
func (r *rule) reserve(n int) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.free.Before(now) {
		r.free = now
	}
	r.free = r.free.Add(time.Duration(float64(n) / float64(r.Bandwidth) * float64(time.Second)))
	return r.free
}
