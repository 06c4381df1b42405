package rdma

import (
	"fmt"
	"sync"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

// path is a side's part of a path: a queue pair.
//
//	made ──► connected ──(both greetings)──► up ──(anything goes wrong)──► ended ──► released
type path struct {
	fabric *Fabric
	device *device
	peer   transport.ID
	queue  verbs.Queue
	size   int   // registered, in bytes
	ours   nonce // told over TLS
	side   side
	up     chan struct{} // closed when both have greeted
	// ended is closed when the queue pair is broken: from then on nothing lands. told is closed
	// when the side knows, released when the queue pair and its memory are gone.
	ended, told, released chan struct{}
	// use is held for reading by who uses the queue's memory, for writing while it is released.
	use sync.RWMutex
	// order is held while a greeting is answered. Taken before use and mu.
	order sync.Mutex

	mu struct {
		sync.Mutex
		theirs      nonce
		dialler     bool   // the side that greets first
		heard, sent bool   // the greetings: theirs has come, ours has arrived
		region      region // the peer's
		why         error  // it has ended
	}
}

// side is what a path serves. Its methods are called by one goroutine, except lost.
type side interface {
	// join is called first, once, before anything of the path can happen.
	join(p *path)
	// landed handles a write of the peer; arrived that one of ours has, and with it the quiet
	// ones that were posted before it.
	landed(immediate uint32, length int) error
	arrived(tag uint32)
	// lost is called once, when the path has ended.
	lost(why error)
	// unit is that of what it lends, in bytes.
	unit() int
}

// greetingTag is that of the greeting; writes have smaller ones.
const greetingTag = 1<<verbs.MaxTagBits - 1

// newPath makes a queue pair of a device. Its receives are posted.
func (f *Fabric) newPath(d *device, peer transport.ID, s side, sizes verbs.Sizes) (*path, error) {
	size := sizes.Lent + sizes.Own
	if err := f.take(size); err != nil {
		return nil, err
	}
	defer f.making.Done()
	d.making.RLock()
	defer d.making.RUnlock()
	if d.failed {
		f.giveBack(size)
		return nil, verbs.ErrClosed
	}
	q, err := d.verbs.NewQueue(sizes)
	if err != nil {
		f.giveBack(size)
		return nil, err
	}
	p := &path{
		fabric: f, device: d, peer: peer, queue: q, size: size, ours: newNonce(), side: s,
		up: make(chan struct{}), ended: make(chan struct{}), told: make(chan struct{}), released: make(chan struct{}),
	}
	s.join(p)
	f.mu.Lock()
	f.mu.paths[p] = struct{}{}
	f.mu.Unlock()
	d.mu.Lock()
	d.mu.paths[q.ID()] = p
	d.mu.Unlock()
	if err := q.Receive(sizes.Receives); err != nil {
		p.end(err)
		return nil, err
	}
	return p, nil
}

func (p *path) proposal() proposal { return proposal{p.queue.Local(), p.ours} }

// connect readies the queue pair for the peer's. The side that has dialled greets at once, the
// other one in answer: before, the first one's queue pair may not be ready.
func (p *path) connect(theirs proposal, dialler bool) error {
	p.mu.Lock()
	p.mu.theirs, p.mu.dialler = theirs.nonce, dialler
	p.mu.Unlock()
	if err := p.queue.Connect(theirs.endpoint); err != nil {
		return err
	}
	if dialler {
		return p.greet()
	}
	return nil
}

// greet sends the greeting. The caller does not hold p.use.
func (p *path) greet() error {
	p.use.RLock()
	defer p.use.RUnlock()
	if err := p.why(); err != nil {
		return err
	}
	memory, address, key := p.queue.Lent()
	return p.queue.Send(greeting{p.ours, region{address, key, len(memory) / p.side.unit()}}.encode(), greetingTag)
}

// completed handles a completion.
func (p *path) completed(c *verbs.Completion) {
	if err := p.handle(c); err != nil {
		p.end(err)
	}
}

func (p *path) handle(c *verbs.Completion) error {
	switch {
	case p.why() != nil:
		return nil
	case c.Err != nil:
		return c.Err
	case c.Kind == verbs.Received:
		return p.greeted(c.Message[:min(c.Length, verbs.MaxMessage)])
	case c.Kind == verbs.Landed:
		if !p.hasHeard() { // it may have come before the word that our greeting has arrived
			return fmt.Errorf("%w: a write before the greetings", ErrBreach)
		}
		p.use.RLock()
		defer p.use.RUnlock()
		if p.why() != nil {
			return nil
		}
		return p.side.landed(c.Immediate, c.Length)
	case c.Tag == greetingTag:
		p.note(func() { p.mu.sent = true })
	default:
		p.side.arrived(c.Tag)
	}
	return nil
}

// greeted handles the peer's greeting.
func (p *path) greeted(message []byte) error {
	g, err := decodeGreeting(message)
	if err != nil {
		return err
	}
	p.mu.Lock()
	heard, theirs, dialler := p.mu.heard, p.mu.theirs, p.mu.dialler
	p.mu.Unlock()
	switch {
	case heard:
		return fmt.Errorf("%w: a second greeting", ErrBreach)
	case g.nonce != theirs:
		return fmt.Errorf("%w: a greeting with another nonce", ErrBreach)
	}
	p.order.Lock()
	defer p.order.Unlock()
	if !dialler {
		if err := p.greet(); err != nil {
			return err
		}
	}
	p.note(func() { p.mu.heard, p.mu.region = true, g.region })
	return nil
}

// peers returns the peer's region. It is known once the peer has greeted.
func (p *path) peers() region {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.region
}

// note notes a greeting. The path is up with the second one.
func (p *path) note(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.mu.heard && p.mu.sent
	if change(); !before && p.mu.heard && p.mu.sent {
		close(p.up)
	}
}

func (p *path) hasHeard() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.heard
}

// mayWrite reports whether both have greeted. Unlike isUp it does not wait for the word that our
// greeting has arrived, since writes cannot overtake it, but the peer's first request can overtake
// that word.
func (p *path) mayWrite() bool {
	p.order.Lock()
	defer p.order.Unlock()
	return p.hasHeard()
}

func (p *path) isUp() bool {
	select {
	case <-p.up:
		return true
	default:
		return false
	}
}

// why returns why the path has ended; nil: it has not.
func (p *path) why() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.why
}

// fill copies bytes into the queue's own memory.
func (p *path) fill(at int, b []byte) error {
	p.use.RLock()
	defer p.use.RUnlock()
	if err := p.why(); err != nil {
		return err
	}
	copy(p.queue.Own()[at:], b)
	return nil
}

// end ends the path: when it has returned, what was lent is written to no more, and the side knows.
// The caller does not hold p.use.
func (p *path) end(why error) {
	p.mu.Lock()
	first := p.mu.why == nil
	if first {
		p.mu.why = why
	}
	p.mu.Unlock()
	if !first {
		<-p.told
		return
	}
	err := p.queue.Break()
	if err != nil { // to destroy the queue pair breaks it too
		err = p.release()
	}
	close(p.ended)
	p.side.lost(why)
	close(p.told)
	f := p.fabric
	go func() {
		defer close(p.released)
		if err == nil {
			err = p.release()
		}
		f.leaked(err)
		p.device.mu.Lock()
		delete(p.device.mu.paths, p.queue.ID())
		p.device.mu.Unlock()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.mu.paths, p)
		if err == nil { // else it stays registered
			f.mu.memory -= int64(p.size)
		}
	}()
}

func (p *path) release() error {
	p.use.Lock()
	defer p.use.Unlock()
	return p.queue.Close()
}
