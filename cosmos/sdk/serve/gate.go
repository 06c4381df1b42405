package serve

import (
	"sync/atomic"
	"time"
)

// gate lets reads of the served states give way to the block that is being made: a state is read
// once when it is offered, and by joiners, on processors that the block would miss
// (docs/decisions/0030-encoders-give-way.md).
//
//	application  ├─FinalizeBlock─┤       ├──Commit──┤
//	reader     ──┤ waits         ├───────┤ waits    ├── …
//
// Who waits holds no lock that a block needs.
type gate struct {
	// making is closed when the call under way ends; nil: there is none.
	making atomic.Pointer[chan struct{}]
	// waited is how long readers have waited since they were last let through, free until when they
	// are, since began.
	waited, free atomic.Int64
	began        time.Time
}

const (
	giveWayEvery = 64 // records, of about 0.5 µs each, between two looks
	// maxGiveWay is the longest wait. After so much, in one wait or in several, a quarter of it is
	// free, so that states are read however closely blocks follow each other.
	maxGiveWay = 100 * time.Millisecond
)

func newGate() *gate { return &gate{began: time.Now()} }

// close closes the gate until open is called. ABCI makes these calls one after another; where two
// overlap, one may open it for both.
func (g *gate) close() (open func()) {
	made := make(chan struct{})
	g.making.Store(&made)
	return func() {
		g.making.CompareAndSwap(&made, nil)
		close(made)
	}
}

// giveWay waits while a block is made, if it may.
func (g *gate) giveWay() {
	made := g.making.Load()
	if made == nil || int64(time.Since(g.began)) < g.free.Load() {
		return
	}
	timeout := time.NewTimer(maxGiveWay)
	defer timeout.Stop()
	from := time.Now()
	select {
	case <-*made:
	case <-timeout.C:
	}
	if g.waited.Add(int64(time.Since(from))) >= int64(maxGiveWay) {
		g.waited.Store(0)
		g.free.Store(int64(time.Since(g.began) + maxGiveWay/4))
	}
}
