package link

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// way is what a sender's bytes take to a receiver, over all connections of the two.
type way struct{ atomic.Pointer[rule] }

// rule is a treatment in force.
type rule struct {
	Treatment
	replaced chan struct{} // closed when it is another's turn

	mu sync.Mutex
	// when the bytes will have left that were let through up to now; for the bandwidth
	free time.Time
}

func newWay() *way {
	w := new(way)
	w.Store(newRule(Treatment{}))
	return w
}

func newRule(t Treatment) *rule { return &rule{Treatment: t, replaced: make(chan struct{})} }

func (w *way) set(t Treatment) { close(w.Swap(newRule(t)).replaced) }

// pass waits until something is through that was sent at a time: the way is whole, and the delay
// over. False: ctx is done.
func (w *way) pass(ctx context.Context, sent time.Time) bool {
	for {
		r := w.Load()
		var over <-chan time.Time // never, where the way is cut
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

// Pieces are what a way of limited bandwidth lets through at a time: a twentieth of a second's
// worth, within bounds.
const (
	minPiece, maxPiece = 256, 16 << 10
	piecesPerSecond    = 20
)

// squeeze waits until a first part of data, sent at a time, is through, and returns its length; 0:
// ctx is done.
func (w *way) squeeze(ctx context.Context, data []byte, sent time.Time) int {
	for w.pass(ctx, sent) {
		r := w.Load()
		switch {
		case r.Cut:
			continue // just now
		case r.Bandwidth == 0:
			return len(data)
		}
		n := min(len(data), int(min(max(r.Bandwidth/piecesPerSecond, minPiece), maxPiece)))
		left := time.NewTimer(time.Until(r.reserve(n)))
		select {
		case <-ctx.Done():
			left.Stop()
			return 0
		case <-r.replaced: // begins anew under the next one
			left.Stop()
		case <-left.C:
			return n
		}
	}
	return 0
}

// reserve takes n bytes of the bandwidth, and returns when they will have left.
func (r *rule) reserve(n int) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.free.Before(now) {
		r.free = now
	}
	r.free = r.free.Add(time.Duration(float64(n) / float64(r.Bandwidth) * float64(time.Second)))
	return r.free
}
