// Package rdma carries answers of package tcp past TLS, by RDMA: the server writes them into memory
// that the caller's side has lent.
//
//	tcp.Conn ── exchange (method 16): contexts ──► session           on TLS
//	 lender ═══ greetings: nonce, region ════════ writer             each with a queue pair of its own
//	   slots ◄══ pieces ≤ 256 KiB, immediate = slot, last ═══         copied out as they come
//
// RDMA neither authenticates nor encrypts: what comes by it proves nothing about its sender, and
// whoever asked verifies it. Memory and queue pairs are only for peers that the operator declares.
// A path that fails in any way is ended, and everything continues over TLS; another path is
// proposed a minute later, then after two, and so on. The frames and messages are specified in
// docs/spec/rdma.md.
package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
	"github.com/starling-kv/starling/transport/tcp"
)

// Method is that of the exchange of contexts.
const Method transport.Method = 16

// Reasons for which there is no path, beside those of devices.
var (
	ErrNotAllowed = errors.New("the peer is not one for RDMA")
	ErrMemory     = errors.New("the memory for RDMA is used up")
	ErrPeerEnded  = errors.New("the peer has ended the path")
	ErrConnEnded  = errors.New("the connection has ended")
	ErrStalled    = errors.New("a piece was not acknowledged in time")
	ErrDoubted    = errors.New("answers that came by RDMA were wrong")
	// ErrBreach: what has come by RDMA is nothing that an honest peer sends. It proves nothing
	// against the peer.
	ErrBreach = errors.New("bytes came by RDMA that were not due")
)

// Options configure paths. Zero means the default, unless the comment says otherwise.
type Options struct {
	// Allowed reports whether a peer, at an address, may have memory and a queue pair; nil: none
	// may.
	Allowed func(transport.ID, netip.Addr) bool
	// Memory is the limit of registered memory, in bytes; 256 MiB. A path has 34 MiB at the side
	// that dials, 4 MiB at the side that serves.
	Memory int64
	Hooks  Hooks

	bounds
}

// Hooks are called for metrics and logs. Any may be nil. They are called concurrently and must not
// block.
type Hooks struct {
	// Up: a path to a peer that was dialled is up.
	Up func(peer transport.ID, w Way)
	// Down: a path has ended, or was not made: of the same reasons in a row the first only.
	Down func(peer transport.ID, why error)
	// Received and Sent count bytes of answers, and of bodies of requests.
	Received, Sent func(peer transport.ID, bytes int)
	// Called: a call's answer has come by a path, all of it.
	Called func(peer transport.ID)
	// Leaked: a queue pair could not be released.
	Leaked func(why error)
}

// Way describes a path: the local address and the MTUs of both ports.
type Way struct {
	From string // the end of the connection here, host:port
	// MTU and PeerMTU are the largest packets of the ports here and at the peer, in bytes: the
	// smaller one counts.
	MTU, PeerMTU int
}

// bounds are what only tests change.
type bounds struct {
	open        func(netip.Addr, int) (verbs.Device, error)
	addr        func(net.Addr) (netip.Addr, error) // of a connection's end
	units       int                                // of MaxSidePiece bytes that a path lends; 128
	window      int                                // pieces under way to a peer; 8
	completions int                                // room in a device's completion queue; 8192
	stall       time.Duration                      // for a piece, and for greetings; 15 s
	retryLeast  time.Duration                      // 1 minute
	retryMost   time.Duration                      // 1 hour
}

// ForTests returns options with devices of another kind: see package rdmatest.
func ForTests(o Options, open func(netip.Addr, int) (verbs.Device, error)) Options {
	o.open = open
	return o
}

const unit = tcp.MaxSidePiece

// Fabric makes paths for a process. It implements tcp.Sides.
type Fabric struct {
	o  Options
	wg sync.WaitGroup // what takes completions, and closes devices that failed
	// making counts paths that are being made: newPath has taken their memory.
	making sync.WaitGroup
	ctx    context.Context
	stop   context.CancelFunc

	mu struct {
		sync.Mutex
		devices map[netip.Addr]*device
		memory  int64 // registered
		paths   map[*path]struct{}
		closed  bool
	}
}

// New returns a fabric, which opens devices when they are needed.
func New(o Options) *Fabric {
	set(&o.Memory, 256<<20)
	set(&o.units, 128)
	set(&o.window, 8)
	set(&o.completions, 8192)
	set(&o.stall, 15*time.Second)
	set(&o.retryLeast, time.Minute)
	set(&o.retryMost, time.Hour)
	if o.open == nil {
		o.open = verbs.Open
	}
	if o.addr == nil {
		o.addr = addrOf
	}
	f := &Fabric{o: o}
	f.ctx, f.stop = context.WithCancel(context.Background())
	f.mu.devices, f.mu.paths = make(map[netip.Addr]*device), make(map[*path]struct{})
	return f
}

func set[N int | int64 | time.Duration](v *N, def N) {
	if *v <= 0 {
		*v = def
	}
}

func addrOf(a net.Addr) (netip.Addr, error) {
	t, is := a.(*net.TCPAddr)
	if !is {
		return netip.Addr{}, fmt.Errorf("%v is no address of TCP", a)
	}
	return t.AddrPort().Addr().Unmap(), nil
}

// Method implements tcp.Sides.
func (f *Fabric) Method() transport.Method { return Method }

func (f *Fabric) allowed(peer transport.ID, remote net.Addr) bool {
	if f.o.Allowed == nil {
		return false
	}
	addr, err := f.o.addr(remote)
	return err == nil && f.o.Allowed(peer, addr)
}

// Close ends all paths and releases everything. Connections stay.
func (f *Fabric) Close() error {
	f.stop()
	f.mu.Lock()
	f.mu.closed = true
	f.mu.Unlock()
	f.making.Wait()
	f.mu.Lock()
	paths := make([]*path, 0, len(f.mu.paths))
	for p := range f.mu.paths {
		paths = append(paths, p)
	}
	devices := f.mu.devices
	f.mu.devices = nil
	f.mu.Unlock()
	for _, p := range paths {
		p.end(ErrConnEnded)
		<-p.released
	}
	var errs []error
	for _, d := range devices {
		errs = append(errs, d.verbs.Close())
	}
	f.wg.Wait()
	return errors.Join(errs...)
}

// device returns the device of an address, opened.
func (f *Fabric) device(local net.Addr) (*device, error) {
	addr, err := f.o.addr(local)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return nil, verbs.ErrClosed
	}
	if d := f.mu.devices[addr]; d != nil {
		return d, nil
	}
	v, err := f.o.open(addr, f.o.completions)
	if err != nil {
		return nil, err
	}
	d := &device{fabric: f, addr: addr, verbs: v}
	d.mu.paths = make(map[verbs.ID]*path)
	f.mu.devices[addr] = d
	f.wg.Go(d.run)
	return d, nil
}

// take reserves memory for a path that is being made: making counts it.
func (f *Fabric) take(bytes int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.mu.closed:
		return verbs.ErrClosed
	case f.mu.memory+int64(bytes) > f.o.Memory:
		return fmt.Errorf("%w: %d of %d bytes", ErrMemory, f.mu.memory, f.o.Memory)
	}
	f.mu.memory += int64(bytes)
	f.making.Add(1)
	return nil
}

func (f *Fabric) giveBack(bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.memory -= int64(bytes)
}

// device is one that is open. One goroutine takes its completions.
type device struct {
	fabric *Fabric
	addr   netip.Addr
	verbs  verbs.Device
	// making is held for reading while a path is made, until it is among paths; for writing while
	// failed is set, from when on none is made.
	making sync.RWMutex
	failed bool

	mu struct {
		sync.Mutex
		paths map[verbs.ID]*path
	}
}

// run hands completions to paths, until the device is closed or fails.
func (d *device) run() {
	batch := make([]verbs.Completion, verbs.MaxBatch)
	used := make(map[*path]int) // receives
	for {
		n, err := d.verbs.Wait(batch)
		if err != nil {
			d.fail(err)
			return
		}
		for i := range batch[:n] {
			c := &batch[i]
			d.mu.Lock()
			p := d.mu.paths[c.Queue]
			d.mu.Unlock()
			if p == nil {
				continue
			}
			if c.Kind != verbs.Sent && c.Err == nil {
				used[p]++
			}
			p.completed(c)
		}
		for p, n := range used {
			if err := p.queue.Receive(n); err != nil {
				p.end(err)
			}
		}
		clear(used)
	}
}

// fail ends all paths of a device that is of no more use.
func (d *device) fail(why error) {
	d.making.Lock() // closed while a queue pair is made, the device would crash in C
	d.failed = true
	d.making.Unlock()
	d.mu.Lock()
	paths := make([]*path, 0, len(d.mu.paths))
	for _, p := range d.mu.paths {
		paths = append(paths, p)
	}
	d.mu.Unlock()
	for _, p := range paths {
		p.end(why)
	}
	f := d.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.devices[d.addr] != d {
		return // the fabric is being closed
	}
	delete(f.mu.devices, d.addr) // the next path opens it anew
	f.wg.Go(func() {
		for _, p := range paths {
			<-p.released
		}
		f.leaked(d.verbs.Close())
	})
}

func (f *Fabric) leaked(err error) {
	if err != nil && f.o.Hooks.Leaked != nil {
		f.o.Hooks.Leaked(err)
	}
}
