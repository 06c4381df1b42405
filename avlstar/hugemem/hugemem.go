// Package hugemem lends frames, pieces of 2 MiB of memory that the kernel can back with one huge
// page each. They lie outside of Go's heap, where neighbours of a piece may have been touched in
// small pages, or given back to the system, before.
//
//	mapping    frame │ frame │ frame │ … 32      64 MiB of address space, advised before it is touched
//	             │       │       │
//	           lent    ready    untouched: takes no memory
//
// A frame that was touched before it is needed is ready: a goroutine prepares the next one each
// time one is taken, because the kernel must clear it. A frame that is given back becomes the ready
// one, or loses its memory; a mapping without frames in use is removed. If there is no lent frame,
// there is no mapping.
//
// Gigabytes of frames that are given back together take the kernel a tenth of a second and more. A
// goroutine does it, a mapping at a time; a frame that is taken meanwhile may be one of them.
//
// Memory of a frame is not known to the garbage collector: it must hold no Go pointers, and must
// not be used after Give.
package hugemem

import (
	"math/bits"
	"os"
	"slices"
	"sync"
	"unsafe"
)

// FrameBytes is the length of a frame, and its alignment: a huge page of amd64 and arm64.
const FrameBytes = 2 << 20

// framesPerMapping is a number of bits.
const framesPerMapping = 32

// readyFrames is the number of frames that are prepared before they are needed.
const readyFrames = 1

// Frame is a piece of memory. It belongs to who took it until Give.
type Frame struct {
	memory  *[FrameBytes]byte
	mapping *mapping
	index   int  // in it
	split   bool // parts were dropped
}

// Bytes returns the memory. Its content is arbitrary.
func (f *Frame) Bytes() *[FrameBytes]byte { return f.memory }

// mapping is 64 MiB of address space.
type mapping struct {
	whole []byte // as it was mapped, a frame longer, so that there are aligned frames in it
	// A bit for each frame. Those of back were given back and have their memory still. A frame that
	// is neither is lent, ready, or just losing its memory.
	free, back uint32
	split      uint32 // of back: those of which parts were dropped
}

const allFree = 1<<framesPerMapping - 1

// pool has all mappings of the process.
type pool struct {
	system system

	mu struct {
		sync.Mutex
		mappings  []*mapping
		lent      int
		ready     []*Frame // at most readyFrames
		preparing bool     // a goroutine prepares a frame
		back      int      // frames that mappings have back
		returning bool     // a goroutine takes the memory of those
	}
	// settling is held by who takes the memory of a mapping's frames, never while p.mu is.
	settling sync.Mutex
}

// system is what a pool asks the kernel for.
type system struct {
	reserve func(n int) ([]byte, error) // address space, advised and untouched
	remove  func([]byte) error
	touch   func([]byte) // gives it memory
	drop    func([]byte) error
	advise  func(b []byte, huge bool)
}

var process = &pool{system: kernel}

// Take returns a frame; nil if there is none to be had, because the system has no such mappings or
// refuses one. It may be called concurrently.
func Take() *Frame { return process.take() }

// Give gives the frame back.
func (f *Frame) Give() { process.give(f) }

// GiveAll gives frames back. Their memory returns to the system after this call; see Settle.
func GiveAll(frames []*Frame) { process.giveAll(frames) }

// Settle returns when the memory of all frames given back before has returned to the system.
func Settle() { process.settle() }

// Drop takes the memory of the bytes [from, to) of the frame, as far as they are whole pages of the
// system, until they are used again. The rest is then in small pages until Used reports that all is
// used again: otherwise the kernel would join them to a huge page, with memory for what was
// dropped.
func (f *Frame) Drop(from, to int) {
	if from, to = inner(from, to, systemPage); from == to {
		return
	}
	if !f.split {
		f.split = true
		process.system.advise(f.memory[:], false)
	}
	_ = process.system.drop(f.memory[from:to]) // otherwise it stays
}

// systemPage is 4, 16 or 64 KiB. The kernel takes whole pages, also where it was asked for less.
var systemPage = os.Getpagesize()

// inner returns the greatest range of whole pages in [from, to); an empty one if there is none.
func inner(from, to, page int) (int, int) {
	from, to = (from+page-1)/page*page, to/page*page
	return from, max(from, to)
}

// Used reports that all of the frame is used again.
func (f *Frame) Used() {
	f.split = false
	process.system.advise(f.memory[:], true)
}

// Lent returns the number of frames that are lent.
func Lent() int {
	process.mu.Lock()
	defer process.mu.Unlock()
	return process.mu.lent
}

func (p *pool) take() *Frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.touched()
	if f == nil {
		f = p.untouched()
	}
	if f == nil {
		return nil
	}
	p.mu.lent++
	p.prepare()
	return f
}

// touched returns a frame that has memory: one that is ready, or that was given back; nil if there
// is none. The caller holds p.mu.
func (p *pool) touched() *Frame {
	if last := len(p.mu.ready) - 1; last >= 0 {
		f := p.mu.ready[last]
		p.mu.ready = p.mu.ready[:last]
		return f
	}
	if p.mu.back == 0 {
		return nil
	}
	for _, m := range p.mu.mappings {
		if whole := m.back &^ m.split; whole != 0 {
			i := bits.TrailingZeros32(whole)
			m.back &^= 1 << i
			p.mu.back--
			return m.frame(i)
		}
	}
	return nil
}

// untouched returns a frame that takes no memory yet, nil if there is none. The caller holds p.mu.
func (p *pool) untouched() *Frame {
	for _, m := range p.mu.mappings {
		if m.free != 0 {
			return m.take()
		}
	}
	whole, err := p.system.reserve((framesPerMapping + 1) * FrameBytes)
	if err != nil {
		return nil
	}
	m := &mapping{whole: whole, free: allFree}
	p.mu.mappings = append(p.mu.mappings, m)
	return m.take()
}

// prepare starts a goroutine that makes a frame ready, if one is missing. The caller holds p.mu.
func (p *pool) prepare() {
	if p.mu.preparing || len(p.mu.ready)+p.mu.back >= readyFrames {
		return
	}
	f := p.untouched()
	if f == nil {
		return
	}
	p.mu.preparing = true
	go func() {
		p.system.touch(f.memory[:])
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mu.preparing = false
		p.mu.ready = append(p.mu.ready, f)
		p.trim()
	}()
}

func (p *pool) give(f *Frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.lent--
	if f.split {
		p.free(f)
	} else {
		p.mu.ready = append(p.mu.ready, f)
	}
	p.trim()
}

func (p *pool) giveAll(frames []*Frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range frames {
		f.mapping.back |= 1 << f.index
		if f.split {
			f.mapping.split |= 1 << f.index
		}
	}
	p.mu.lent -= len(frames)
	p.mu.back += len(frames)
	p.trim()
	if p.mu.back > 0 && !p.mu.returning {
		p.mu.returning = true
		go p.settle()
	}
}

// settle takes the memory of all frames that were given back.
func (p *pool) settle() {
	for p.settleOne() {
	}
}

// settleOne takes the memory of those of one mapping. It returns false if there is none; then that
// of all earlier ones has returned.
func (p *pool) settleOne() bool {
	p.settling.Lock()
	defer p.settling.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.mu.mappings, func(m *mapping) bool { return m.back != 0 })
	if i < 0 {
		p.mu.returning = false
		return false
	}
	m := p.mu.mappings[i]
	back, split := m.back, m.split
	m.back, m.split = 0, 0
	p.mu.back -= bits.OnesCount32(back)
	if m.free|back != allFree {
		p.mu.Unlock()
		p.dropFrames(m, back, split)
		p.mu.Lock()
	}
	if m.free |= back; m.free == allFree {
		p.unlist(m)
		p.mu.Unlock()
		_ = p.system.remove(m.whole) // otherwise it stays, unused
		p.mu.Lock()
	}
	return true
}

// dropFrames takes the memory of some frames of a mapping, neighbours together.
func (p *pool) dropFrames(m *mapping, which, split uint32) {
	for which != 0 {
		from := bits.TrailingZeros32(which)
		n := bits.TrailingZeros32(^(which >> from))
		these := (uint32(1)<<n - 1) << from // not all of them, so n is less than 32
		b := m.bytes(from, n)
		if split&these != 0 {
			p.system.advise(b, true)
		}
		_ = p.system.drop(b) // otherwise it keeps its memory until it is lent again
		which &^= these
	}
}

// unlist removes a mapping from the list. The caller holds p.mu.
func (p *pool) unlist(m *mapping) {
	p.mu.mappings = slices.DeleteFunc(p.mu.mappings, func(other *mapping) bool { return other == m })
}

// trim gives back the ready frames that are too many: all of them if no frame is lent. The caller
// holds p.mu.
func (p *pool) trim() {
	keep := readyFrames
	if p.mu.lent == 0 {
		keep = 0
	}
	for len(p.mu.ready) > keep {
		last := len(p.mu.ready) - 1
		p.free(p.mu.ready[last])
		p.mu.ready = p.mu.ready[:last]
	}
}

// free takes the memory of a frame. The caller holds p.mu.
func (p *pool) free(f *Frame) {
	if f.split {
		p.system.advise(f.memory[:], true)
	}
	m := f.mapping
	if m.free |= 1 << f.index; m.free != allFree {
		_ = p.system.drop(f.memory[:]) // otherwise it keeps its memory until it is lent again
		return
	}
	p.unlist(m)
	_ = p.system.remove(m.whole) // otherwise it stays, unused
}

// take returns the first frame that is free. There must be one.
func (m *mapping) take() *Frame {
	i := bits.TrailingZeros32(m.free)
	m.free &^= 1 << i
	return m.frame(i)
}

func (m *mapping) frame(i int) *Frame {
	return &Frame{memory: (*[FrameBytes]byte)(m.bytes(i, 1)), mapping: m, index: i}
}

// bytes returns the memory of n frames.
func (m *mapping) bytes(from, n int) []byte {
	base := uintptr(unsafe.Pointer(&m.whole[0])) //nolint:gosec // only its remainder is used
	at := int(-base%FrameBytes) + from*FrameBytes
	return m.whole[at : at+n*FrameBytes]
}
