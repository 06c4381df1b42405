// Package rdma carries answers of package tcp over RDMA, bypassing TLS: the server writes them into
// memory that the caller's side lends.
//
//	tcp.Conn ── exchange (method 16): contexts ──► session           on TLS
//	 lender ═══ greetings: nonce, region ════════ writer             each with a queue pair of its own
//	   slots ◄══ pieces ≤ 256 KiB, immediate = slot, last ═══         copied out as they come
//
// RDMA neither authenticates nor encrypts. Bytes received over RDMA prove nothing about their
// sender, so the caller verifies them. Only peers that the operator declares get memory and queue
// pairs. A path that fails in any way is ended, and everything continues over TLS. A new path is
// proposed after a minute, then after two, and so on. The frames and messages are specified in
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

// Method is the method of the exchange of contexts.
const Method transport.Method = 16

// Errors that explain why there is no path, in addition to those of devices.
var (
	ErrNotAllowed = errors.New("the peer is not allowed to use RDMA")
	ErrMemory     = errors.New("the limit of RDMA memory is reached")
	ErrPeerEnded  = errors.New("the peer ended the RDMA path")
	ErrConnEnded  = errors.New("the connection has ended")
	ErrStalled    = errors.New("a piece was not acknowledged in time")
	ErrDoubted    = errors.New("answers received over RDMA were wrong")
	// ErrBreach: bytes arrived over RDMA that no honest peer sends. This does not incriminate the
	// peer, because RDMA does not authenticate the sender.
	ErrBreach = errors.New("unexpected bytes arrived over RDMA")
)

// Options configure paths. Zero means the default, unless the comment says otherwise.
type Options struct {
	// Allowed reports whether a peer at an address may have memory and a queue pair; nil: no peer
	// may.
	Allowed func(transport.ID, netip.Addr) bool
	// Memory is the limit of registered memory, in bytes; default 256 MiB. It is divided among a
	// number of Peers; default 1. A path takes 6 to 34 MiB at the dialer (see unitsFor), and 4 MiB
	// at the server.
	Memory int64
	Peers  int
	Hooks  Hooks

	bounds
}

// Hooks are called for metrics and logs. Any may be nil. They are called concurrently and must not
// block.
type Hooks struct {
	// Up is called when a path to a dialled peer is up.
	Up func(peer transport.ID, w Way)
	// Down is called when a path has ended or could not be set up. Successive calls with the same
	// reason are reported once.
	Down func(peer transport.ID, why error)
	// Received and Sent count the bytes of answers and of request bodies.
	Received, Sent func(peer transport.ID, bytes int)
	// Called is called when an answer has arrived completely over a path.
	Called func(peer transport.ID)
	// Leaked is called when a queue pair could not be released.
	Leaked func(why error)
}

// Way describes a path: the local address and the MTUs of both ports.
type Way struct {
	From string // local end of the connection, host:port
	// MTU and PeerMTU are the largest packets of the local and the peer's port, in bytes. The
	// smaller one applies.
	MTU, PeerMTU int
}

// bounds are settings that only tests change.
type bounds struct {
	open        func(netip.Addr, int) (verbs.Device, error)
	addr        func(net.Addr) (netip.Addr, error) // address of an end of a connection
	units       int                                // lent per path, of MaxSidePiece bytes; unitsFor
	window      int                                // pieces under way to a peer; defaultWindow
	completions int                                // room in a device's completion queue; 8192
	stall       time.Duration                      // for a piece, and for greetings; 15 s
	retryLeast  time.Duration                      // 1 minute
	retryMost   time.Duration                      // 1 hour
}

// ForTests returns options that open devices with open: see package rdmatest.
func ForTests(o Options, open func(netip.Addr, int) (verbs.Device, error)) Options {
	o.open = open
	return o
}

const (
	unit          = tcp.MaxSidePiece
	defaultWindow = 8
)

// Fabric sets up paths for a process. It implements tcp.Sides.
type Fabric struct {
	o  Options
	wg sync.WaitGroup // goroutines that take completions, or close failed devices
	// making counts paths that are being set up: their memory is already reserved.
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

// New returns a fabric, which opens devices on demand.
func New(o Options) *Fabric {
	set(&o.Memory, 256<<20)
	set(&o.units, unitsFor(o.Memory, o.Peers))
	set(&o.window, defaultWindow)
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
		return netip.Addr{}, fmt.Errorf("%v is not a TCP address", a)
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

// Close ends all paths and releases everything. Connections stay open.
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

// device returns the device with an address, and opens it if necessary.
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

// take reserves memory for a new path, and counts the path in making.
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

// device is an open device. One goroutine takes its completions.
type device struct {
	fabric *Fabric
	addr   netip.Addr
	verbs  verbs.Device
	// making is held for reading until a new path is among paths, for writing while failed is set.
	// No path is set up once failed is set.
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
	used := make(map[*path]int) // receives to post again
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

// fail ends all paths of a broken device.
func (d *device) fail(why error) {
	d.making.Lock() // closing the device while a queue pair is created would crash in C
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
	delete(f.mu.devices, d.addr) // the next path reopens it
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
