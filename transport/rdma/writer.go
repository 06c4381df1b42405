package rdma

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
	"github.com/starling-kv/starling/transport/tcp"
)

// writer implements tcp.Writer: it copies pieces into memory of the device, and writes them from
// there. As many are under way as that memory has places.
type writer struct {
	path *path
	link tcp.Link
	free chan uint32 // places of own memory
	inbox

	mu struct {
		sync.Mutex
		arrived []func() // by place; nil: nothing is under way
		bytes   []int
		under   int
		stall   *time.Timer // runs while something is under way
	}
}

// Proposed implements tcp.Sides.
func (f *Fabric) Proposed(_ context.Context, l tcp.Link, body []byte) ([]byte, tcp.Writer, error) {
	if !f.allowed(l.Peer, l.Remote) {
		return nil, nil, fmt.Errorf("%w: %w", ErrNotAllowed, transport.ErrRefused)
	}
	theirs, err := decodeProposal(body)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", err, transport.ErrRefused)
	}
	w, err := f.newWriter(l, theirs)
	if err != nil {
		if f.o.Hooks.Down != nil {
			f.o.Hooks.Down(l.Peer, err)
		}
		return nil, nil, fmt.Errorf("%w: %w", err, transport.ErrRefused)
	}
	return w.path.proposal().encode(), w, nil
}

func (f *Fabric) newWriter(l tcp.Link, theirs proposal) (*writer, error) {
	d, err := f.device(l.Local)
	if err != nil {
		return nil, err
	}
	w := &writer{link: l, free: make(chan uint32, f.o.window)}
	for i := range f.o.window {
		w.free <- uint32(i)
	}
	w.bodies.late = make(map[uint32]struct{})
	w.mu.arrived, w.mu.bytes = make([]func(), f.o.window), make([]int, f.o.window)
	sizes := verbs.Sizes{Lent: bodies * bodyUnit, Own: f.o.window * unit, Writes: f.o.window + 1, Receives: bodyReceives + 1}
	p, err := f.newPath(d, l.Peer, w, sizes)
	if err != nil {
		return nil, err
	}
	if err := p.connect(theirs, false); err != nil {
		p.end(err)
		return nil, err
	}
	return w, nil
}

// join implements side. The timer runs for the greetings at first.
func (w *writer) join(p *path) {
	w.path, w.inbox.path, w.memory = p, p, lentBy(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.stall = time.AfterFunc(p.fabric.o.stall, w.stalled)
}

// stalled is called when nothing has arrived for too long.
func (w *writer) stalled() {
	w.mu.Lock()
	due := w.mu.under > 0 || !w.path.isUp()
	w.mu.Unlock()
	if due {
		w.path.end(ErrStalled)
	}
}

// Takes implements tcp.Writer.
func (w *writer) Takes(slot uint32, n int) bool {
	if !w.path.isUp() || w.path.why() != nil || slot >= immediateLast {
		return false
	}
	return firstUnit(slot)+unitsOf(n) <= w.path.peers().units
}

// Write implements tcp.Writer.
func (w *writer) Write(ctx context.Context, slot uint32, at int, b []byte, last bool, arrived func()) error {
	var place uint32
	select {
	case place = <-w.free:
	case <-w.path.ended:
		return w.path.why()
	case <-ctx.Done():
		return ctx.Err()
	}
	region := w.path.peers()
	from := int(place) * unit
	if err := w.path.fill(from, b); err != nil {
		return err
	}
	immediate := slot
	if last {
		immediate |= immediateLast
	}
	w.mu.Lock()
	w.mu.arrived[place], w.mu.bytes[place] = arrived, len(b)
	if w.mu.under++; w.mu.under == 1 {
		w.mu.stall.Reset(w.path.fabric.o.stall)
	}
	w.mu.Unlock()
	to := region.address + uint64(firstUnit(slot))*unit + uint64(at)
	err := w.path.queue.Write([]verbs.Write{{From: from, Length: len(b), To: to, Key: region.key, Immediate: immediate, Tag: place}})
	if err != nil {
		w.path.end(err)
	}
	return err
}

// arrived implements side.
func (w *writer) arrived(place uint32) {
	w.mu.Lock()
	then, n := w.mu.arrived[place], w.mu.bytes[place]
	w.mu.arrived[place] = nil
	if w.mu.under--; w.mu.under > 0 {
		w.mu.stall.Reset(w.path.fabric.o.stall)
	} else {
		w.mu.stall.Stop()
	}
	w.mu.Unlock()
	w.free <- place
	if hook := w.path.fabric.o.Hooks.Sent; hook != nil {
		hook(w.path.peer, n)
	}
	then()
}

// lost implements side.
func (w *writer) lost(why error) {
	w.mu.Lock()
	w.mu.stall.Stop()
	w.mu.Unlock()
	if hook := w.path.fabric.o.Hooks.Down; hook != nil && !errors.Is(why, ErrConnEnded) {
		hook(w.path.peer, why)
	}
	go w.link.Lost(why)
}

// Close implements tcp.Writer.
func (w *writer) Close() { w.path.end(ErrConnEnded) }
