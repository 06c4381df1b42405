package serve

import (
	"sync/atomic"
	"time"
)

// gate makes reads of served states yield to block execution. States are read once when they are
// prepared, and again by joiners, on processors that block execution needs
// (docs/decisions/0030-encoders-yield.md).
//
//	application  ├─FinalizeBlock─┤       ├──Commit──┤
//	reader     ──┤ waits         ├───────┤ waits    ├── …
//
// A waiting reader holds no lock that a block needs.
type gate struct {
	// making is closed when the ABCI call in progress ends; nil if none is in progress.
	making atomic.Pointer[chan struct{}]
	// Both in nanoseconds. waited is the total wait of readers since they last got free time. free
	// is the end of that free time, measured from began.
	waited, free atomic.Int64
	began        time.Time
}

const (
	giveWayEvery = 64 // records (about 0.5 µs each) read between checks of the gate
	// maxGiveWay is the longest wait. After this much waiting, in one wait or several, readers do
	// not wait for a quarter of that time, so that reads progress even if blocks follow without a
	// pause.
	maxGiveWay = 100 * time.Millisecond
)

func newGate() *gate { return &gate{began: time.Now()} }

// close closes the gate until open is called. ABCI calls are sequential. If two overlap anyway, the
// end of one may open the gate for both.
func (g *gate) close() (open func()) {
	made := make(chan struct{})
	g.making.Store(&made)
	return func() {
		g.making.CompareAndSwap(&made, nil)
		close(made)
	}
}

// giveWay waits while the gate is closed, for maxGiveWay at most. It does not wait during free
// time.
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
