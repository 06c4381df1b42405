package rdma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
	"github.com/starling-kv/starling/transport/tcp"
)

// writer implements tcp.Writer. It copies pieces into the device's memory and writes them from
// there. The number of places in that memory limits the pieces under way.
type writer struct {
	path *path
	link tcp.Link
	free chan uint32 // free places of own memory
	inbox
	// gathered holds writes that are not posted yet; used by the caller of Write.
	gathered []verbs.Write

	mu struct {
		sync.Mutex
		arrived []func() // by place
		bytes   []int
		under   []uint32    // places of posted writes, in the order of posting
		stall   *time.Timer // runs while writes are under way
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
	p, err := f.newPath(d, l.Peer, w, writerSizes(f.o.window))
	if err != nil {
		return nil, err
	}
	if err := p.connect(theirs, false); err != nil {
		p.end(err)
		return nil, err
	}
	return w, nil
}

// join implements side. The timer first limits the wait for the greetings.
func (w *writer) join(p *path) {
	w.path, w.inbox.path, w.memory = p, p, lentBy(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.stall = time.AfterFunc(p.fabric.o.stall, w.stalled)
}

// stalled is called if nothing was acknowledged in time.
func (w *writer) stalled() {
	w.mu.Lock()
	due := len(w.mu.under) > 0 || !w.path.isUp()
	w.mu.Unlock()
	if due {
		w.path.end(ErrStalled)
	}
}

// Takes implements tcp.Writer.
func (w *writer) Takes(slot uint32, n int) bool {
	if !w.path.mayWrite() || w.path.why() != nil || slot >= immediateLast {
		return false
	}
	return firstUnit(slot)+unitsOf(n) <= w.path.peers().units
}

// Write implements tcp.Writer.
func (w *writer) Write(ctx context.Context, p tcp.Piece, more bool) error {
	place, err := w.place(ctx)
	if err != nil {
		return err
	}
	region := w.path.peers()
	from := int(place) * unit
	if err := w.path.fill(from, p.Bytes); err != nil {
		return err
	}
	immediate := p.Slot
	if p.Last {
		immediate |= immediateLast
	}
	w.mu.Lock()
	w.mu.arrived[place], w.mu.bytes[place] = p.Arrived, len(p.Bytes)
	w.mu.Unlock()
	w.gathered = append(w.gathered, verbs.Write{
		From: from, Length: len(p.Bytes), To: region.address + uint64(firstUnit(p.Slot))*unit + uint64(p.At), Key: region.key, Immediate: immediate, Tag: place,
	})
	// Posting at half of the window lets one half be filled while the other one is transferred.
	if more && len(w.gathered) < w.path.fabric.o.window/2 {
		return nil
	}
	return w.post()
}

// place waits for a free place. Gathered writes are posted first.
func (w *writer) place(ctx context.Context) (uint32, error) {
	select {
	case place := <-w.free:
		return place, nil
	default:
	}
	if err := w.post(); err != nil {
		return 0, err
	}
	select {
	case place := <-w.free:
		return place, nil
	case <-w.path.ended:
		return 0, w.path.why()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// post posts the gathered writes. Only the last one wakes this side on completion.
func (w *writer) post() error {
	all := w.gathered
	if len(all) == 0 {
		return nil
	}
	w.gathered = all[:0]
	w.mu.Lock()
	if len(w.mu.under) == 0 {
		w.mu.stall.Reset(w.path.fabric.o.stall)
	}
	for i := range all {
		all[i].Quiet = i < len(all)-1
		w.mu.under = append(w.mu.under, all[i].Tag)
	}
	w.mu.Unlock()
	err := w.path.queue.Write(all)
	if err != nil {
		w.path.end(err)
	}
	return err
}

// arrived implements side. Everything that was posted before has arrived, too.
func (w *writer) arrived(place uint32) {
	var then []func()
	n := 0
	w.mu.Lock()
	arrived := w.mu.under[:slices.Index(w.mu.under, place)+1]
	for _, at := range arrived {
		then = append(then, w.mu.arrived[at])
		n += w.mu.bytes[at]
		w.mu.arrived[at] = nil
		w.free <- at // never blocks: its capacity is the number of places
	}
	w.mu.under = slices.Delete(w.mu.under, 0, len(arrived))
	if len(w.mu.under) > 0 {
		w.mu.stall.Reset(w.path.fabric.o.stall)
	} else {
		w.mu.stall.Stop()
	}
	w.mu.Unlock()
	if hook := w.path.fabric.o.Hooks.Sent; hook != nil {
		hook(w.path.peer, n)
	}
	for _, f := range then {
		f()
	}
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
