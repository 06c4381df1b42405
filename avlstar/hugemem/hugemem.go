// Package hugemem lends frames, pieces of 2 MiB of memory that the kernel can back with one huge
// page each. They lie outside of Go's heap, where the memory next to a piece may already have been
// touched in small pages, or returned to the system.
//
//	mapping    frame │ frame │ frame │ … 32      64 MiB of address space, advised before it is touched
//	             │       │       │
//	           lent    ready    untouched: takes no memory
//
// A frame that was touched before it is needed is ready. Because the kernel must clear a frame, a
// goroutine prepares the next one each time one is taken. A frame that is given back becomes the
// ready one, or loses its memory. A mapping without frames in use is removed, so there is no
// mapping if no frame is lent.
//
// If gigabytes of frames are given back together, the kernel takes a tenth of a second or more. A
// goroutine returns their memory, one mapping at a time; a frame that is taken meanwhile may be one
// of them.
//
// The garbage collector does not know the memory of a frame: it must hold no Go pointers, and must
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

// framesPerMapping is the number of frames in a mapping, and of bits in its sets.
const framesPerMapping = 32

// readyFrames is the number of frames that are prepared before they are needed.
const readyFrames = 1

// Frame is a piece of memory. It belongs to the caller of Take until Give.
type Frame struct {
	memory  *[FrameBytes]byte
	mapping *mapping
	index   int  // number in mapping
	split   bool // whether parts were dropped
}

// Bytes returns the memory. Its content is arbitrary.
func (f *Frame) Bytes() *[FrameBytes]byte { return f.memory }

// mapping is 64 MiB of address space.
type mapping struct {
	whole []byte // as it was mapped: one frame longer, so that it contains aligned frames
	// Bit sets of frames. The frames in back were given back and still have their memory. A frame
	// that is in neither set is lent, ready, or about to lose its memory.
	free, back uint32
	split      uint32 // the frames in back of which parts were dropped
}

const allFree = 1<<framesPerMapping - 1

// pool has all mappings of the process.
type pool struct {
	system system

	mu struct {
		sync.Mutex
		mappings  []*mapping
		lent      int
		ready     []*Frame // at most readyFrames of them
		preparing bool     // whether a goroutine is preparing a frame
		back      int      // number of frames in the back sets of mappings
		returning bool     // whether a goroutine is returning the memory of these frames
	}
	// settling is held while the memory of a mapping's frames is returned. It is never acquired
	// while p.mu is held.
	settling sync.Mutex
}

// system holds the functions of the kernel that a pool uses.
type system struct {
	reserve func(n int) ([]byte, error) // returns address space, advised and untouched
	remove  func([]byte) error
	touch   func([]byte) // gives the range memory
	drop    func([]byte) error
	advise  func(b []byte, huge bool)
}

var process = &pool{system: kernel}

// Take returns a frame, or nil if the system does not support such mappings or refuses one. It may
// be called concurrently.
func Take() *Frame { return process.take() }

// Give gives the frame back to the pool.
func (f *Frame) Give() { process.give(f) }

// GiveAll gives frames back to the pool. Their memory returns to the system after this call; see
// Settle.
func GiveAll(frames []*Frame) { process.giveAll(frames) }

// Settle returns when the memory of all frames that were given back before has returned to the
// system.
func Settle() { process.settle() }

// Drop returns the memory of the bytes [from, to) of the frame to the system, as far as they are
// whole pages of the system, until they are used again. The rest of the frame then consists of
// small pages until Used reports that the whole frame is used again. Otherwise the kernel would
// join them to a huge page, with memory for the dropped bytes.
func (f *Frame) Drop(from, to int) {
	if from, to = inner(from, to, systemPage); from == to {
		return
	}
	if !f.split {
		f.split = true
		process.system.advise(f.memory[:], false)
	}
	_ = process.system.drop(f.memory[from:to]) // on an error, the memory stays
}

// systemPage is 4, 16 or 64 KiB. The kernel drops whole pages, even if it is asked for less.
var systemPage = os.Getpagesize()

// inner returns the greatest range of whole pages in [from, to); the range is empty if there is
// none.
func inner(from, to, page int) (int, int) {
	from, to = (from+page-1)/page*page, to/page*page
	return from, max(from, to)
}

// Used reports that the whole frame is used again.
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

// untouched returns a frame that takes no memory yet, or nil if there is none. The caller holds
// p.mu.
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

// prepare starts a goroutine that makes a frame ready, if none is. The caller holds p.mu.
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

// settle returns the memory of all frames that were given back.
func (p *pool) settle() {
	for p.settleOne() {
	}
}

// settleOne returns the memory of the frames of one mapping that were given back. It returns false
// if there are none; then the memory of all earlier ones has returned.
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
		_ = p.system.remove(m.whole) // on an error, the mapping stays, unused
		p.mu.Lock()
	}
	return true
}

// dropFrames returns the memory of some frames of a mapping, that of adjacent frames together.
func (p *pool) dropFrames(m *mapping, which, split uint32) {
	for which != 0 {
		from := bits.TrailingZeros32(which)
		n := bits.TrailingZeros32(^(which >> from))
		these := (uint32(1)<<n - 1) << from // n is less than 32, because not all frames are dropped
		b := m.bytes(from, n)
		if split&these != 0 {
			p.system.advise(b, true)
		}
		_ = p.system.drop(b) // on an error, it keeps its memory until it is lent again
		which &^= these
	}
}

// unlist removes a mapping from the list. The caller holds p.mu.
func (p *pool) unlist(m *mapping) {
	p.mu.mappings = slices.DeleteFunc(p.mu.mappings, func(other *mapping) bool { return other == m })
}

// trim frees ready frames beyond readyFrames, or all of them if no frame is lent. The caller holds
// p.mu.
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

// free returns the memory of a frame to the system. The caller holds p.mu.
func (p *pool) free(f *Frame) {
	if f.split {
		p.system.advise(f.memory[:], true)
	}
	m := f.mapping
	if m.free |= 1 << f.index; m.free != allFree {
		_ = p.system.drop(f.memory[:]) // on an error, it keeps its memory until it is lent again
		return
	}
	p.unlist(m)
	_ = p.system.remove(m.whole) // on an error, the mapping stays, unused
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
