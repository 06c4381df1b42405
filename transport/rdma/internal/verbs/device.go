//go:build cgo && linux && rdma

package verbs

/*
#cgo LDFLAGS: -ldl
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// Supported reports whether this program was built with RDMA.
const Supported = true

// load opens libibverbs once.
var load = sync.OnceValue(func() error {
	var why [256]C.char
	if C.sv_load(&why[0], C.size_t(len(why))) != 0 {
		return fmt.Errorf("libibverbs: %s: %w", C.GoString(&why[0]), errors.ErrUnsupported)
	}
	return nil
})

// failed converts an errno to an error; nil for 0.
func failed(what string, errno C.int) error {
	if errno == 0 {
		return nil
	}
	if syscall.Errno(errno) == syscall.ESTALE {
		return ErrClosed
	}
	return fmt.Errorf("%s: %w", what, syscall.Errno(errno))
}

// Info describes a port.
type Info struct {
	Device string
	Port   int
	State  string // libibverbs' name for it
	MTU    int
	GIDs   []GID
	Err    error // why the port cannot be used; nil: it can

	lid        uint16
	infiniband bool
	indexes    []int // in the port's GID table
}

// states of a port (ibv_port_state).
var states = [...]string{"no operation", "down", "initialising", "armed", "active", "active, deferred"}

const portActive = 4

// List returns the ports of all devices.
func List() ([]Info, error) {
	if err := load(); err != nil {
		return nil, err
	}
	var found [32]C.sv_info
	n := C.sv_devices(&found[0], C.int(len(found)))
	if n < 0 {
		if errno := syscall.Errno(-n); errno != syscall.ENOSYS {
			return nil, fmt.Errorf("ibv_get_device_list: %w", errno)
		}
		return nil, fmt.Errorf("the kernel has no InfiniBand modules: %w", errors.ErrUnsupported)
	}
	var all []Info
	for i := range found[:n] {
		for port := 1; port <= int(found[i].ports); port++ {
			all = append(all, portOf(&found[i], port))
		}
	}
	return all, nil
}

func portOf(device *C.sv_info, port int) Info {
	info := Info{Device: C.GoString(&device.name[0]), Port: port}
	var p C.sv_port
	if errno := C.sv_port_of(&device.name[0], C.int(port), &p); errno != 0 {
		info.Err = failed("ibv_open_device "+info.Device+" (are /dev/infiniband/uverbs* there, and open to this user?)", errno)
		return info
	}
	info.State = fmt.Sprint(int(p.state))
	if s := int(p.state); s >= 0 && s < len(states) {
		info.State = states[s]
	}
	if p.state != portActive {
		info.Err = fmt.Errorf("port %d of %s is %s", port, info.Device, info.State)
	}
	info.MTU, info.lid, info.infiniband = int(p.mtu), uint16(p.lid), p.infiniband != 0
	for _, g := range p.gid[:p.gids] {
		var gid GID
		for i, b := range g.raw {
			gid[i] = byte(b)
		}
		info.GIDs, info.indexes = append(info.GIDs, gid), append(info.indexes, int(g.index))
	}
	return info
}

// device implements Device.
type device struct {
	port   Port
	number int // of the port
	global bool
	index  int // of the GID
	numa   int // node; -1: unknown

	handle  C.uint32_t
	channel *os.File   // a duplicate of the descriptor of the completion channel
	waiting sync.Mutex // held by Wait, so that Close waits for it
	events  atomic.Uint64

	mu struct {
		sync.RWMutex
		queues map[ID]*queue
		room   int // completions that fit in addition to those of open queues
		closed bool
	}
}

// Open opens the device whose port has addr. Its completion queue has room for that many
// completions.
func Open(addr netip.Addr, completions int) (Device, error) {
	ports, err := List()
	if err != nil {
		return nil, err
	}
	gids := gidsOf(addr, links())
	why := fmt.Errorf("%w %s (of %d ports)", ErrNoDevice, addr, len(ports))
	for _, p := range ports {
		at := slices.IndexFunc(p.GIDs, func(g GID) bool { return slices.Contains(gids, g) })
		switch {
		case at >= 0 && p.Err == nil:
			return open(p, at, completions)
		case at >= 0 || p.GIDs == nil && p.Err != nil:
			why = fmt.Errorf("%w: %w", why, p.Err)
		}
	}
	return nil, why
}

func open(p Info, at, completions int) (Device, error) {
	d := &device{number: p.Port, global: !p.infiniband, index: p.indexes[at], numa: nodeOf(p.Device)}
	d.port = Port{p.Device, p.GIDs[at], p.lid, p.MTU}
	name := C.CString(p.Device)
	defer freeC(name)
	var fd, made C.int
	if err := failed("open "+p.Device, C.sv_open(name, C.int(completions), &d.handle, &fd, &made)); err != nil {
		return nil, err
	}
	d.mu.queues, d.mu.room = make(map[ID]*queue), int(made)
	var err error
	if d.channel, err = pollable(int(fd)); err != nil {
		return nil, errors.Join(err, failed("close", C.sv_device_close(d.handle)))
	}
	return d, nil
}

// pollable returns the descriptor of a completion channel as a file of Go's poller. The file gets a
// duplicate, so that the file and the library each close their own descriptor. O_NONBLOCK belongs
// to the open file description, which both share, and os.NewFile checks the flag.
func pollable(fd int) (*os.File, error) {
	dup, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, fmt.Errorf("the completion channel: %w", errno)
	}
	if err := syscall.SetNonblock(int(dup), true); err != nil {
		return nil, errors.Join(err, syscall.Close(int(dup)))
	}
	return os.NewFile(dup, "completion channel"), nil
}

// Port implements Device.
func (d *device) Port() Port { return d.port }

// Wait implements Device.
func (d *device) Wait(batch []Completion) (int, error) {
	d.waiting.Lock()
	defer d.waiting.Unlock()
	for armed := false; ; {
		if d.isClosed() {
			return 0, ErrClosed
		}
		taken, n, err := d.poll(batch)
		switch {
		case err != nil || n > 0:
			return n, err
		case taken: // all belonged to closed queues
		case !armed:
			// A completion between the last poll and this call raises no event, so poll once more.
			if err := failed("ibv_req_notify_cq", C.sv_arm(d.handle)); err != nil {
				return 0, err
			}
			armed = true
		default:
			if err := d.event(); err != nil {
				return 0, err
			}
			armed = false
		}
	}
}

func (d *device) isClosed() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.mu.closed
}

// event waits for one event of the completion channel.
func (d *device) event() error {
	raw, err := d.channel.SyscallConn()
	if err != nil {
		return ErrClosed
	}
	var errno C.int
	err = raw.Read(func(uintptr) bool {
		errno = C.sv_event(d.handle)
		return syscall.Errno(errno) != syscall.EAGAIN
	})
	if d.isClosed() { // then err comes from the Go runtime
		return ErrClosed
	}
	if err != nil {
		return err
	}
	d.events.Add(1)
	return failed("ibv_get_cq_event", errno)
}

// Events implements Device.
func (d *device) Events() uint64 { return d.events.Load() }

// poll takes completions from the device. taken reports whether there were any, even if all
// belonged to closed queues.
func (d *device) poll(batch []Completion) (taken bool, n int, err error) {
	var raw [MaxBatch]C.sv_completion
	var got C.int
	if err := failed("ibv_poll_cq", C.sv_poll(d.handle, &raw[0], C.int(min(len(batch), MaxBatch)), &got)); err != nil {
		return false, 0, err
	}
	for i := range raw[:got] {
		id := ID(raw[i].wr_id >> 32)
		d.mu.RLock()
		q := d.mu.queues[id]
		d.mu.RUnlock()
		if q != nil && q.completed(&raw[i], &batch[n]) {
			n++
		}
	}
	return got > 0, n, nil
}

// reserve reserves room in the completion queue for the completions of a queue.
func (d *device) reserve(n int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.mu.closed:
		return ErrClosed
	case n > d.mu.room:
		return ErrFull
	}
	d.mu.room -= n
	return nil
}

// forget removes a queue, if it exists, and returns its room.
func (d *device) forget(id ID, room int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mu.queues, id)
	d.mu.room += room
}

// Close implements Device.
func (d *device) Close() error {
	d.mu.Lock()
	if n := len(d.mu.queues); n > 0 {
		d.mu.Unlock()
		return fmt.Errorf("close %s with %d queues: %w", d.port.Device, n, syscall.EBUSY)
	}
	d.mu.closed = true
	d.mu.Unlock()
	d.channel.Close() // wakes Wait
	d.waiting.Lock()
	defer d.waiting.Unlock()
	err := failed("close "+d.port.Device, C.sv_device_close(d.handle))
	if errors.Is(err, ErrClosed) { // from an earlier call
		return nil
	}
	return err
}
