// Package verbs gives access to RDMA devices through libibverbs. It transfers bytes without
// interpreting them.
//
//	Device ── completion queue, its channel in Go's poller ──► Wait: batches of completions
//	  ├─ Queue   a protection domain: queue pair ═ a peer's, receive queue, memory lent and own
//	  └─ Queue   …                    one for each peer, which shares nothing with another
//
// It is the only package that needs cgo, and only with the build tag rdma on Linux. On other builds
// Open fails with errors.ErrUnsupported. The library is loaded at run time. Users of a Device do
// not depend on any of this: package verbstest has a Device in memory, and the test suite that both
// implementations pass.
//
// Go holds no pointers into the library, only handles: an index with a generation, which the C code
// checks. A completion of a closed Queue is dropped.
package verbs

import (
	"errors"
	"fmt"
	"net/netip"
)

const (
	// MaxMessage is the size limit of a message of Queue.Send, in bytes.
	MaxMessage = 64
	// MaxBatch is the maximum number of writes posted, or of completions taken, at once.
	MaxBatch = 32
)

var (
	// ErrNotBuilt: the program was built without RDMA. It matches errors.ErrUnsupported.
	ErrNotBuilt = fmt.Errorf("this program was built without RDMA: %w", errors.ErrUnsupported)
	// ErrClosed: the device or the queue was closed.
	ErrClosed = errors.New("the RDMA device or queue is closed")
	// ErrNoDevice: no device has the address, or there is none at all.
	ErrNoDevice = errors.New("no RDMA device has the address")
	// ErrFull: the device has no room for another queue of that size.
	ErrFull = errors.New("the RDMA device has no room for another queue")
)

// GID identifies a port in the fabric.
type GID [16]byte

// String returns the IP address that the GID represents on RoCE.
func (g GID) String() string { return netip.AddrFrom16(g).Unmap().String() }

// Endpoint describes a queue pair to the peer.
type Endpoint struct {
	GID GID
	LID uint16 // InfiniBand only; 0 on RoCE
	QPN uint32 // 24 bits
	PSN uint32 // PSN of the first packet; 24 bits
	MTU int    // path MTU in bytes: a power of two from 256 to 4096
}

// Validate returns an error if no device can have the endpoint.
func (e Endpoint) Validate() error {
	switch {
	case e.GID == GID{}:
		return errors.New("the GID is zero")
	case e.QPN == 0 || e.QPN >= 1<<24:
		return fmt.Errorf("invalid queue pair number %d", e.QPN)
	case e.PSN >= 1<<24:
		return fmt.Errorf("invalid packet number %d", e.PSN)
	case e.MTU < 256 || e.MTU > 4096 || e.MTU&(e.MTU-1) != 0:
		return fmt.Errorf("invalid MTU of %d bytes", e.MTU)
	}
	return nil
}

// Port is a port of a device.
type Port struct {
	Device string
	GID    GID
	LID    uint16
	MTU    int
}

// Sizes of a Queue.
type Sizes struct {
	Lent     int // bytes that the peer can write to; 0: none
	Own      int // bytes that Write reads from; 0: none
	Writes   int // maximum number of writes and messages under way; at least 1
	Receives int // maximum number of posted receives, for messages and peer writes
}

// ID identifies a Queue. It is unique in the process.
type ID uint32

// Kind is the kind of a Completion.
type Kind uint8

// Kinds of completions.
const (
	Sent     Kind = iota // a local message or write has arrived at the peer, or failed
	Received             // a message has arrived
	Landed               // a write of the peer has arrived
)

// Completion reports the end of a message or of a write.
type Completion struct {
	Queue     ID
	Kind      Kind
	Tag       uint32 // Sent: the tag given to Send or Write
	Immediate uint32 // Landed: chosen by the peer
	Length    int    // Received, Landed: in bytes, as counted by the device
	Message   [MaxMessage]byte
	Err       error // not nil: the queue pair is broken
}

// Write copies bytes of the local memory into the peer's.
type Write struct {
	From, Length int    // in Queue.Own
	To           uint64 // address at the peer
	Key          uint32 // key of the peer's region
	Immediate    uint32
	Tag          uint32 // below 1 << MaxTagBits
	// Quiet suppresses the completion of a successful write. The completion of the next write or
	// message that is not quiet stands for both.
	Quiet bool
}

// MaxTagBits is the number of bits of a tag.
const MaxTagBits = 28

// Device is an open port of a device. Its methods may be called concurrently.
type Device interface {
	Port() Port
	// NewQueue creates a queue pair with memory of its own. It fails with ErrFull if the completion
	// queue could overflow.
	NewQueue(s Sizes) (Queue, error)
	// Wait blocks until there are completions and returns 1 to len(batch) of them. Only one
	// goroutine may call it. It fails with ErrClosed after Close.
	Wait(batch []Completion) (int, error)
	// Events returns how often Wait has slept and was woken. Completions that are already available
	// do not count.
	Events() uint64
	// Close releases the device. It fails, and the device stays open, if a queue is still open.
	Close() error
}

// Queue is a queue pair and its memory. Its methods may be called concurrently. All except Close
// fail with ErrClosed after Close.
type Queue interface {
	ID() ID
	Local() Endpoint
	// Lent returns the memory that the peer can write to, its address and its key. The memory, and
	// that of Own, is valid until Close.
	Lent() (memory []byte, address uint64, key uint32)
	Own() []byte
	// Connect makes the queue pair ready. It is called once.
	Connect(remote Endpoint) error
	// Receive lets n more messages or peer writes arrive. The caller must not exceed
	// Sizes.Receives.
	Receive(n int) error
	// Send and Write post and return. Each message and write has one completion, in the order of
	// posting if it succeeds. A successful quiet write has none: it counts as under way until the
	// next operation that is not quiet completes. A failure breaks the queue pair, and every later
	// operation fails, too.
	Send(message []byte, tag uint32) error
	Write(batch []Write) error
	// Break stops the queue pair. After it returns, the peer can no longer write to the lent
	// memory.
	Break() error
	// Close breaks the queue pair and releases everything. An error means a leak; Close may then be
	// called again.
	Close() error
}
