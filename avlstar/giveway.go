package avlstar

import (
	"sync/atomic"
	"time"
)

// gate makes chunk encoding yield to block execution. Apply takes milliseconds on all processors,
// and needs those that encode. runtime.Gosched is not enough: the processor would return to the
// same goroutine.
//
//	Apply      ├────making────┤             ├───making───┤
//	encoder  ──64 KiB──┤ waits ├─64 KiB──64 KiB──┤ waits ├── …
//
// An encoder checks the gate after each piece. It waits at most maxGiveWay at a time, and at most
// maxGiveWay in total for each MiB, so that peers are served even if blocks follow each other
// closely.
type gate struct {
	// making is closed when the running Apply ends; nil if none is running.
	making atomic.Pointer[chan struct{}]
	// encoded counts the encoded bytes of all chunks, so that many small chunks count as one piece.
	encoded atomic.Uint64
}

const (
	giveWayEvery = 64 << 10
	maxGiveWay   = 20 * time.Millisecond
)

// making is one closing of the gate.
type making struct {
	gate *gate
	made *chan struct{} // see gate.making
}

// begin closes the gate until end. If a call of Apply waits for another one, the end of either may
// open the gate for both.
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
	next int           // length at which it checks the gate
	wait time.Duration // time that it may still wait
}

// newEncoder returns an encoder for that number of bytes.
func (v *Version) newEncoder(bytes uint64) encoder {
	next := giveWayEvery - int(v.tree.gate.encoded.Load()%giveWayEvery)
	return encoder{Version: v, next: next, wait: maxGiveWay * time.Duration(max(bytes, giveWayEvery)) / (1 << 20)}
}

// end adds the encoded bytes to the gate's count.
func (e *encoder) end(b []byte) { e.tree.gate.encoded.Add(uint64(len(b))) }

// giveWay waits while a version is being made, until the encoder has waited as long as it may.
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
