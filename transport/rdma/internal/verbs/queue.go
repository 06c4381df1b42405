//go:build cgo && linux && rdma

package verbs

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"
)

// Indexes of a queue's memory regions.
const (
	regionLent = iota
	regionOwn
	regionMessages
)

// The lower half of a work request's ID holds the kind and the tag, the upper half the queue.
const (
	flagLanded = 1 << 31 // set in C
	flagSend   = 1 << 30
	tagMask    = 1<<MaxTagBits - 1
)

// queue implements Queue.
type queue struct {
	device *device
	handle C.uint32_t
	sizes  Sizes
	local  Endpoint

	// use is held for reading while the queue pair or its memory is used, for writing by Close.
	use struct {
		sync.RWMutex
		closed, released bool
	}
	regions [3]region
	free    struct {
		sync.Mutex
		receives []uint32 // message buffers without a posted receive
		sends    []uint32
	}
}

// region is mapped and registered memory.
type region struct {
	memory     []byte
	lkey, rkey C.uint32_t
}

func (r *region) address() uint64 {
	if len(r.memory) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(&r.memory[0])))
}

func freeC(s *C.char) { C.free(unsafe.Pointer(s)) }

// NewQueue implements Device.
func (d *device) NewQueue(s Sizes) (Queue, error) {
	if s.Writes < 1 || s.Receives < 1 || s.Lent < 0 || s.Own < 0 {
		return nil, fmt.Errorf("sizes %+v", s)
	}
	room := s.Writes + s.Receives
	if err := d.reserve(room); err != nil {
		return nil, err
	}
	q := &queue{device: d, sizes: s}
	if err := q.open(); err != nil {
		d.forget(0, room)
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.queues[q.ID()] = q
	return q, nil
}

func (q *queue) open() error {
	var what *C.char
	var qpn C.uint32_t
	errno := C.sv_queue(q.device.handle, C.int(q.sizes.Writes), C.int(q.sizes.Receives), &q.handle, &qpn, &what)
	if errno != 0 {
		return failed(C.GoString(what), errno)
	}
	// Both sides start at a random packet number, which an attacker would have to guess.
	var psn [4]byte
	rand.Read(psn[:]) //nolint:errcheck // it never fails
	p := q.device.port
	q.local = Endpoint{p.GID, p.LID, uint32(qpn), binary.BigEndian.Uint32(psn[:]) & 0xffffff, p.MTU}
	messages := (q.sizes.Receives + q.sizes.Writes) * MaxMessage
	for at, size := range []int{q.sizes.Lent, q.sizes.Own, messages} {
		if err := q.register(at, size); err != nil {
			return errors.Join(err, q.release())
		}
	}
	for i := range q.sizes.Receives {
		q.free.receives = append(q.free.receives, uint32(i))
	}
	for i := range q.sizes.Writes {
		q.free.sends = append(q.free.sends, uint32(q.sizes.Receives+i))
	}
	return nil
}

// register maps and registers memory.
func (q *queue) register(at, size int) error {
	if size == 0 {
		return nil
	}
	r := &q.regions[at]
	var err error
	if r.memory, err = mapped(size, q.device.numa); err != nil {
		return fmt.Errorf("%d bytes of memory: %w", size, err)
	}
	remote := C.int(0)
	if at == regionLent {
		remote = 1
	}
	errno := C.sv_region(q.handle, C.int(at), unsafe.Pointer(&r.memory[0]), C.size_t(size), remote, &r.lkey, &r.rkey)
	if errno != 0 {
		return fmt.Errorf("%d bytes (is the limit of locked memory, ulimit -l, high enough?): %w", size, failed("ibv_reg_mr", errno))
	}
	return nil
}

// release destroys everything that exists. After an error it may be called again.
func (q *queue) release() error {
	var what *C.char
	if errno := C.sv_queue_close(q.handle, &what); errno != 0 {
		return failed(C.GoString(what), errno)
	}
	for i := range q.regions {
		if err := unmapped(q.regions[i].memory); err != nil {
			return err
		}
		q.regions[i] = region{}
	}
	return nil
}

// ID implements Queue.
func (q *queue) ID() ID { return ID(q.handle) }

// Local implements Queue.
func (q *queue) Local() Endpoint { return q.local }

// Lent implements Queue.
func (q *queue) Lent() ([]byte, uint64, uint32) {
	r := &q.regions[regionLent]
	return r.memory, r.address(), uint32(r.rkey)
}

// Own implements Queue.
func (q *queue) Own() []byte { return q.regions[regionOwn].memory }

// Connect implements Queue.
func (q *queue) Connect(remote Endpoint) error {
	if err := remote.Validate(); err != nil {
		return err
	}
	q.use.RLock()
	defer q.use.RUnlock()
	if q.use.closed {
		return ErrClosed
	}
	r := C.sv_remote{
		lid: C.uint16_t(remote.LID), qpn: C.uint32_t(remote.QPN), remote_psn: C.uint32_t(remote.PSN),
		local_psn: C.uint32_t(q.local.PSN), mtu: C.int(min(remote.MTU, q.local.MTU)), port: C.int(q.device.number), gid_index: C.int(q.device.index),
	}
	if q.device.global {
		r.global = 1
	}
	for i, b := range remote.GID {
		r.gid[i] = C.uint8_t(b)
	}
	var what *C.char
	errno := C.sv_connect(q.handle, &r, &what)
	return failed("the queue pair to "+C.GoString(what), errno)
}

// number returns the ID of a work request.
func (q *queue) number(lower uint32) C.uint64_t {
	return C.uint64_t(uint64(q.handle)<<32 | uint64(lower))
}

// place returns the buffer of a message.
func (q *queue) place(at uint32) []byte {
	return q.regions[regionMessages].memory[at*MaxMessage : (at+1)*MaxMessage]
}

// take removes n free places, or none if there are fewer.
func take(free *[]uint32, n int) []uint32 {
	if n > len(*free) {
		return nil
	}
	rest := len(*free) - n
	taken := slices.Clone((*free)[rest:])
	*free = (*free)[:rest]
	return taken
}

// Receive implements Queue.
func (q *queue) Receive(n int) error {
	q.use.RLock()
	defer q.use.RUnlock()
	if q.use.closed {
		return ErrClosed
	}
	q.free.Lock()
	places := take(&q.free.receives, n)
	q.free.Unlock()
	if n == 0 || places == nil {
		return fmt.Errorf("%d receives exceed the limit of %d", n, q.sizes.Receives)
	}
	messages := &q.regions[regionMessages]
	ids, addresses := make([]C.uint64_t, n), make([]C.uint64_t, n)
	for i, at := range places {
		ids[i], addresses[i] = q.number(at), C.uint64_t(messages.address()+uint64(at)*MaxMessage)
	}
	return failed("ibv_post_srq_recv", C.sv_receive(q.handle, &ids[0], &addresses[0], MaxMessage, messages.lkey, C.int(n)))
}

// Send implements Queue.
func (q *queue) Send(message []byte, tag uint32) error {
	if len(message) > MaxMessage {
		return fmt.Errorf("message of %d bytes exceeds the limit of %d", len(message), MaxMessage)
	}
	return q.send(message, len(message), tag)
}

// send sends a message of length bytes; its buffer may be longer.
func (q *queue) send(message []byte, length int, tag uint32) error {
	q.use.RLock()
	defer q.use.RUnlock()
	if q.use.closed {
		return ErrClosed
	}
	// A queue sends only one or two messages, so the places of messages are not reused.
	q.free.Lock()
	places := take(&q.free.sends, 1)
	q.free.Unlock()
	if places == nil {
		return fmt.Errorf("more than %d messages", q.sizes.Writes)
	}
	messages := &q.regions[regionMessages]
	copy(q.place(places[0]), message)
	from := messages.address() + uint64(places[0])*MaxMessage
	errno := C.sv_send(q.handle, C.uint64_t(from), C.uint32_t(length), messages.lkey, q.number(flagSend|tag&tagMask))
	return failed("ibv_post_send", errno)
}

// Write implements Queue.
func (q *queue) Write(batch []Write) error {
	if len(batch) == 0 || len(batch) > MaxBatch {
		return fmt.Errorf("%d writes at once, want 1 to %d", len(batch), MaxBatch)
	}
	q.use.RLock()
	defer q.use.RUnlock()
	if q.use.closed {
		return ErrClosed
	}
	own := &q.regions[regionOwn]
	var raw [MaxBatch]C.sv_write
	for i, w := range batch {
		if w.From < 0 || w.Length < 0 || w.From > len(own.memory)-w.Length {
			return fmt.Errorf("write from [%d, %d) exceeds the memory of %d bytes", w.From, w.From+w.Length, len(own.memory))
		}
		raw[i] = C.sv_write{
			from: C.uint64_t(own.address() + uint64(w.From)), to: C.uint64_t(w.To), wr_id: q.number(flagSend | w.Tag&tagMask),
			length: C.uint32_t(w.Length), key: C.uint32_t(w.Key), immediate: C.uint32_t(w.Immediate),
		}
		if w.Quiet {
			raw[i].quiet = 1
		}
	}
	return failed("ibv_post_send", C.sv_writes(q.handle, own.lkey, &raw[0], C.int(len(batch))))
}

// completed translates a completion; false if the queue is closed.
func (q *queue) completed(raw *C.sv_completion, c *Completion) bool {
	q.use.RLock()
	defer q.use.RUnlock()
	if q.use.closed {
		return false
	}
	lower := uint32(raw.wr_id)
	*c = Completion{Queue: q.ID(), Kind: Received, Length: int(raw.length)}
	if raw.status != 0 {
		c.Err = fmt.Errorf("the device: %s", C.GoString(C.sv_status(raw.status)))
		c.Length = 0
	}
	if lower&flagSend != 0 {
		c.Kind, c.Tag, c.Length = Sent, lower&tagMask, 0
		return true
	}
	at := lower & tagMask
	switch {
	case raw.status != 0:
	case lower&flagLanded != 0:
		c.Kind, c.Immediate = Landed, uint32(raw.immediate)
	default:
		copy(c.Message[:min(c.Length, MaxMessage)], q.place(at))
	}
	q.free.Lock()
	defer q.free.Unlock()
	q.free.receives = append(q.free.receives, at)
	return true
}

// Break implements Queue.
func (q *queue) Break() error {
	q.use.RLock()
	defer q.use.RUnlock()
	if q.use.closed {
		return ErrClosed
	}
	return failed("the queue pair to ERR", C.sv_break(q.handle))
}

// Close implements Queue.
func (q *queue) Close() error {
	q.use.Lock()
	defer q.use.Unlock()
	if q.use.released {
		return nil
	}
	q.use.closed = true
	if err := q.release(); err != nil {
		return err
	}
	q.use.released = true
	q.device.forget(q.ID(), q.sizes.Writes+q.sizes.Receives)
	return nil
}
