// Package verbs reaches RDMA devices through libibverbs. It moves bytes and judges none.
//
//	Device ── completion queue, its channel in Go's poller ──► Wait: batches of completions
//	  ├─ Queue   a protection domain: queue pair ═ a peer's, receive queue, memory lent and own
//	  └─ Queue   …                    one for each peer, which shares nothing with another
//
// It is the only package that needs cgo, and only with the build tag rdma on Linux; elsewhere Open
// fails with errors.ErrUnsupported. The library is opened at run time. Whoever uses a Device
// imports nothing of that: package verbstest has one in memory, and the suite that both pass.
//
// Go holds no pointers of the library, only handles: an index with a generation, which C checks. A
// completion that comes after its Queue was closed is dropped.
package verbs

import (
	"errors"
	"fmt"
	"net/netip"
)

const (
	// MaxMessage is the limit of a message of Queue.Send, in bytes.
	MaxMessage = 64
	// MaxBatch is the limit of the writes that are posted, or completions that are taken, at once.
	MaxBatch = 32
)

var (
	// ErrNotBuilt: the program has no RDMA. It matches errors.ErrUnsupported.
	ErrNotBuilt = fmt.Errorf("this program was built without RDMA: %w", errors.ErrUnsupported)
	// ErrClosed: the device or the queue was closed.
	ErrClosed = errors.New("the RDMA device or queue is closed")
	// ErrNoDevice: no device has the address, or there is none at all.
	ErrNoDevice = errors.New("no RDMA device has the address")
	// ErrFull: the device has no room for another queue of that size.
	ErrFull = errors.New("the RDMA device has no room for another queue")
)

// GID names a port in the fabric.
type GID [16]byte

// String returns it as the IP address that it is on RoCE.
func (g GID) String() string { return netip.AddrFrom16(g).Unmap().String() }

// Endpoint is what the other side must know of a queue pair.
type Endpoint struct {
	GID GID
	LID uint16 // of InfiniBand; 0 on RoCE
	QPN uint32 // 24 bits
	PSN uint32 // of the first packet; 24 bits
	MTU int    // of the path, in bytes: a power of two from 256 to 4096
}

// Validate returns an error for an endpoint that no device has.
func (e Endpoint) Validate() error {
	switch {
	case e.GID == GID{}:
		return errors.New("the GID is zero")
	case e.QPN == 0 || e.QPN >= 1<<24:
		return fmt.Errorf("queue pair number %d", e.QPN)
	case e.PSN >= 1<<24:
		return fmt.Errorf("packet number %d", e.PSN)
	case e.MTU < 256 || e.MTU > 4096 || e.MTU&(e.MTU-1) != 0:
		return fmt.Errorf("an MTU of %d bytes", e.MTU)
	}
	return nil
}

// Port is that of a device.
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
	Writes   int // the limit of writes and messages under way; at least 1
	Receives int // the limit of messages, and of writes of the peer, that have not been received
}

// ID is a Queue's. No two queues of a process have the same one.
type ID uint32

// Kind is what a Completion is about.
type Kind uint8

// Kinds of completions.
const (
	Sent     Kind = iota // a message or a write of ours has arrived, or failed
	Received             // a message has come
	Landed               // a write of the peer has come
)

// Completion is the end of a message or of a write.
type Completion struct {
	Queue     ID
	Kind      Kind
	Tag       uint32 // Sent: what was given to Send or Write
	Immediate uint32 // Landed: the peer's
	Length    int    // Received, Landed: in bytes, as the device counted them
	Message   [MaxMessage]byte
	Err       error // not nil: the queue pair is broken
}

// Write copies bytes of one's own memory into the peer's.
type Write struct {
	From, Length int    // in Queue.Own
	To           uint64 // the address at the peer
	Key          uint32 // of the peer's region
	Immediate    uint32
	Tag          uint32 // below 1 << MaxTagBits
	// Quiet: if it arrives it has no completion here; that of the next write or message that is not
	// quiet stands for both.
	Quiet bool
}

// MaxTagBits is the number of bits of a tag.
const MaxTagBits = 28

// Device is a port of a device, opened. Its methods may be called concurrently.
type Device interface {
	Port() Port
	// NewQueue makes a queue pair with memory of its own. It fails with ErrFull if the completion
	// queue could overflow.
	NewQueue(s Sizes) (Queue, error)
	// Wait returns the next completions, at least one, at most len(batch). One goroutine calls it.
	// It fails with ErrClosed once the device was closed.
	Wait(batch []Completion) (int, error)
	// Events returns how often Wait has slept and was woken. Completions that are there already
	// cost none.
	Events() uint64
	// Close releases the device. All its queues must have been closed: else it fails, and the
	// device stays.
	Close() error
}

// Queue is a queue pair and its memory. Its methods may be called concurrently; all but Close fail
// with ErrClosed once it was closed.
type Queue interface {
	ID() ID
	Local() Endpoint
	// Lent returns the memory that the peer can write to, from its address and with its key. It and
	// Own are valid until Close.
	Lent() (memory []byte, address uint64, key uint32)
	Own() []byte
	// Connect makes the queue pair ready. It is called once.
	Connect(remote Endpoint) error
	// Receive allows n more messages or writes to come. The caller keeps to Sizes.Receives.
	Receive(n int) error
	// Send and Write post, and return. Each message and write has one completion, of success in the
	// order of posting, unless it is quiet: such a one is under way until the next that is not has
	// its completion. A failed one breaks the queue pair; those after it fail, too.
	Send(message []byte, tag uint32) error
	Write(batch []Write) error
	// Break ends the queue pair. When it has returned, the peer writes no more to what was lent.
	Break() error
	// Close breaks the queue pair and releases everything. An error is a leak; Close may be called
	// again then.
	Close() error
}
