package avlstar

import (
	"sync/atomic"
	"time"
)

// gate lets those who encode chunks give way to who makes a version: a block is made in
// milliseconds, on all processors, and one that is busy encoding would be missed. runtime.Gosched
// would not do: the processor would come back to the same goroutine.
//
//	Apply      ├────making────┤             ├───making───┤
//	encoder  ──64 KiB──┤ waits ├─64 KiB──64 KiB──┤ waits ├── …
//
// Whoever encodes looks at the gate after each piece. It waits maxGiveWay at most, and as long in
// all for a MiB: so peers are served however closely blocks follow each other.
type gate struct {
	// making is closed when the Apply under way ends; nil: there is none.
	making atomic.Pointer[chan struct{}]
	// encoded counts bytes, so that many small chunks are one piece.
	encoded atomic.Uint64
}

const (
	giveWayEvery = 64 << 10
	maxGiveWay   = 20 * time.Millisecond
)

// making is what closes the gate.
type making struct {
	gate *gate
	made *chan struct{} // see gate.making
}

// begin closes the gate until end. Of two that overlap, which Apply makes wait for each other, one
// may open it for both.
func (g *gate) begin() *making {
	m := &making{gate: g}
	m.again()
	return m
}

// again closes the gate after end opened it.
func (m *making) again() {
	made := make(chan struct{})
	m.made = &made
	m.gate.making.Store(m.made)
}

func (m *making) end() {
	m.gate.making.CompareAndSwap(m.made, nil)
	close(*m.made)
}

// encoder encodes leaf records of a version.
type encoder struct {
	*Version
	next int           // length at which it gives way
	wait time.Duration // that it may still wait
}

// newEncoder returns an encoder of that many bytes.
func (v *Version) newEncoder(bytes uint64) encoder {
	next := giveWayEvery - int(v.tree.gate.encoded.Load()%giveWayEvery)
	return encoder{Version: v, next: next, wait: maxGiveWay * time.Duration(max(bytes, giveWayEvery)) / (1 << 20)}
}

// end accounts for what was encoded.
func (e *encoder) end(b []byte) { e.tree.gate.encoded.Add(uint64(len(b))) }

// giveWay waits while a version is made, if it may.
func (e *encoder) giveWay(b []byte) {
	e.next = len(b) + giveWayEvery
	made := e.tree.gate.making.Load()
	if made == nil || e.wait <= 0 {
		return
	}
	began := time.Now()
	timeout := time.NewTimer(min(e.wait, maxGiveWay))
	defer timeout.Stop()
	select {
	case <-*made:
	case <-timeout.C:
	}
	e.wait -= time.Since(began)
}
