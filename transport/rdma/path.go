package rdma

import (
	"fmt"
	"sync"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

// path is one side of an RDMA path: a queue pair.
//
//	made ──► connected ──(both greetings)──► up ──(anything goes wrong)──► ended ──► released
type path struct {
	fabric *Fabric
	device *device
	peer   transport.ID
	queue  verbs.Queue
	size   int   // registered, in bytes
	ours   nonce // sent over TLS
	side   side
	up     chan struct{} // closed when both sides have sent their greetings
	// ended is closed when the queue pair is broken: from then on nothing lands. told is closed
	// when side.lost has returned, released when the queue pair and its memory are released.
	ended, told, released chan struct{}
	// use is held for reading while the memory of the queue is used, for writing while it is
	// released.
	use sync.RWMutex
	// order is held while a greeting is answered. It is taken before use and mu.
	order sync.Mutex

	mu struct {
		sync.Mutex
		theirs      nonce
		dialler     bool   // this side greets first
		heard, sent bool   // the peer's greeting has arrived; ours was acknowledged
		region      region // the peer's
		why         error  // reason of the end; nil: it has not ended
	}
}

// side is the user of a path. All methods except lost are called by one goroutine.
type side interface {
	// join is called once, before all other methods.
	join(p *path)
	// landed handles a write of the peer. arrived reports that a local write was acknowledged, and
	// with it the quiet ones that were posted before.
	landed(immediate uint32, length int) error
	arrived(tag uint32)
	// lost is called once, when the path ends.
	lost(why error)
	// unit is the size of a unit of the lent memory, in bytes.
	unit() int
}

// greetingTag is the tag of the greeting. Writes have smaller tags.
const greetingTag = 1<<verbs.MaxTagBits - 1

// newPath creates a queue pair on a device and posts its receives.
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

// connect connects the queue pair to the peer's. The dialer greets at once. The server greets only
// in answer, because the dialer's queue pair may not be ready earlier.
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
		if !p.hasHeard() { // the greeting may precede the completion of ours
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

// peers returns the peer's region, which is known once the peer has greeted.
func (p *path) peers() region {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.region
}

// note records a greeting. After both greetings the path is up.
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

// mayWrite reports whether both sides have greeted. Unlike isUp, it does not wait for the
// completion of our greeting: writes cannot overtake the greeting, but the peer's first request can
// overtake that completion.
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

// why returns why the path has ended; nil if it has not.
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

// end ends the path. After it returns, nothing writes to the lent memory, and side.lost has been
// called. The caller does not hold p.use.
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
	if err != nil { // destroying the queue pair breaks it too
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
		if err == nil { // otherwise the memory stays registered
			f.mu.memory -= int64(p.size)
		}
	}()
}

func (p *path) release() error {
	p.use.Lock()
	defer p.use.Unlock()
	return p.queue.Close()
}
