// Package verbstest is an in-memory RDMA fabric with fault injection, and the test suite that it
// and libibverbs pass.
//
//	Run ──► any two verbs.Device: libibverbs in a VM, Fabric anywhere
//	Fabric ─ Faults: cut, breaks, delays, altered bytes; Inject: an attacker's write
//
// It behaves like reliable connections: writes arrive in order, a receiver does not notice
// failures, and a queue pair that has failed once stays broken. It uses package time, so it works
// in testing/synctest.
package verbstest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

// Retry times of a device, as of libibverbs with the attributes that verbs sets.
const (
	retryTime    = 500 * time.Millisecond // no acknowledgement
	notReadyTime = 3 * time.Second        // no receive posted
)

// Errors of completions.
var (
	ErrFlushed  = errors.New("work request flushed")
	ErrRetries  = errors.New("transport retry counter exceeded")
	ErrNotReady = errors.New("RNR retry counter exceeded")
	ErrAccess   = errors.New("remote access error")
	ErrLength   = errors.New("local length error")
)

// Faults of a fabric. The zero value means none.
type Faults struct {
	Seed  uint64
	Break float64       // share of writes that break the queue pair
	Delay time.Duration // of each write and message
	Alter float64       // share of writes with one flipped bit
}

// Fabric connects devices in memory. The zero value is ready.
type Fabric struct {
	// Retry is how long a device retries without an acknowledgement; 0: 500 ms, as libibverbs.
	Retry time.Duration

	mu      sync.Mutex
	faults  Faults
	random  *rand.Rand
	cut     bool
	queues  map[address]*queue
	devices int
	last    uint32 // IDs, queue pair numbers, keys and addresses are derived from it
}

// address identifies a queue pair.
type address struct {
	gid verbs.GID
	qpn uint32
}

// Open returns a device with the address. Each call creates another device.
func (f *Fabric) Open(addr netip.Addr, completions int) (verbs.Device, error) {
	if !addr.IsValid() {
		return nil, fmt.Errorf("%w %s", verbs.ErrNoDevice, addr)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices++
	d := &device{fabric: f, port: verbs.Port{Device: fmt.Sprintf("mem%d", f.devices), GID: verbs.GID(addr.As16()), MTU: 4096}}
	d.mu.queues, d.mu.room = make(map[verbs.ID]*queue), completions
	d.woken = sync.NewCond(&d.mu)
	return d, nil
}

// Fail sets the faults of later operations.
func (f *Fabric) Fail(faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults, f.random = faults, rand.New(rand.NewPCG(faults.Seed, 1)) //nolint:gosec // must be reproducible
}

// Cut stops all packets, or lets them pass again.
func (f *Fabric) Cut(cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = cut
}

// Queues returns the number of open queue pairs: 0 if nothing leaks.
func (f *Fabric) Queues() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queues)
}

// Break breaks all queue pairs of the device with the GID. Neither side is notified.
func (f *Fabric) Break(gid verbs.GID) {
	f.mu.Lock()
	var all []*queue
	for at, q := range f.queues {
		if at.gid == gid {
			all = append(all, q)
		}
	}
	f.mu.Unlock()
	for _, q := range all {
		q.fail()
	}
}

// Inject writes to the memory of a queue pair with an immediate, as an attacker in the fabric with
// full knowledge could. It returns the error that the attacker's device would report.
func (f *Fabric) Inject(to verbs.Endpoint, b []byte, at uint64, key, immediate uint32) error {
	q := f.find(to)
	if q == nil {
		return ErrRetries
	}
	return q.land(b, at, key, immediate)
}

// SendLong sends a message longer than the receive buffers of a queue pair. The receiving device
// reports the error and breaks the queue pair.
func (f *Fabric) SendLong(to verbs.Endpoint) error {
	q := f.find(to)
	if q == nil {
		return ErrRetries
	}
	if err := q.arrive(verbs.Completion{Queue: q.id, Kind: verbs.Received, Err: ErrLength}); err != nil {
		return err
	}
	q.fail()
	return nil
}

func (f *Fabric) find(e verbs.Endpoint) *queue {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queues[address{e.GID, e.QPN}]
}

// fate is the injected behavior of a write or message.
type fate struct {
	cut, breaks bool
	alter       uint64 // not 0: index of the bit to flip, modulo the length
	delay       time.Duration
}

func (f *Fabric) fate(write bool) fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := fate{cut: f.cut, delay: f.faults.Delay}
	if f.random != nil && write {
		o.breaks = f.random.Float64() < f.faults.Break
		if f.random.Float64() < f.faults.Alter {
			o.alter = f.random.Uint64() | 1
		}
	}
	return o
}

// device implements verbs.Device.
type device struct {
	fabric *Fabric
	port   verbs.Port
	woken  *sync.Cond
	events atomic.Uint64 // number of times that woken ended a wait
	mu     deviceState
}

type deviceState struct {
	sync.Mutex
	queues map[verbs.ID]*queue
	room   int
	ready  []verbs.Completion
	closed bool
}

// Port implements verbs.Device.
func (d *device) Port() verbs.Port { return d.port }

// Wait implements verbs.Device.
func (d *device) Wait(batch []verbs.Completion) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		for len(d.mu.ready) == 0 && !d.mu.closed {
			d.woken.Wait()
			d.events.Add(1)
		}
		if d.mu.closed {
			return 0, verbs.ErrClosed
		}
		n := 0
		for n < min(len(batch), verbs.MaxBatch) && len(d.mu.ready) > 0 {
			c := d.mu.ready[0]
			d.mu.ready = d.mu.ready[1:]
			if d.mu.queues[c.Queue] != nil { // otherwise its queue was closed
				batch[n] = c
				n++
			}
		}
		if n > 0 {
			return n, nil
		}
	}
}

// Events implements verbs.Device.
func (d *device) Events() uint64 { return d.events.Load() }

func (d *device) complete(c verbs.Completion) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.ready = append(d.mu.ready, c)
	d.woken.Signal()
}

// NewQueue implements verbs.Device.
func (d *device) NewQueue(s verbs.Sizes) (verbs.Queue, error) {
	if s.Writes < 1 || s.Receives < 1 || s.Lent < 0 || s.Own < 0 {
		return nil, fmt.Errorf("sizes %+v", s)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.mu.closed:
		return nil, verbs.ErrClosed
	case s.Writes+s.Receives > d.mu.room:
		return nil, verbs.ErrFull
	}
	d.mu.room -= s.Writes + s.Receives
	q := newQueue(d, s)
	d.mu.queues[q.id] = q
	return q, nil
}

// Close implements verbs.Device.
func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.mu.queues) > 0 {
		return fmt.Errorf("close %s with %d queues", d.port.Device, len(d.mu.queues))
	}
	d.mu.closed = true
	d.woken.Broadcast()
	return nil
}
