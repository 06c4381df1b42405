package avlstar

import (
	"math/bits"
	"runtime"
	"slices"

	"github.com/starling-kv/starling/avlstar/hugemem"
)

// A walk through a large tree visits another memory page at every step; with pages of 4 KiB, most
// steps miss the TLB too. So the slabs and pages of a large tree are cut from frames of 2 MiB
// (package hugemem). Links, which are what a search reads, lie together.
//
//	frame of links     links of slab │ links of slab │ …   64
//	frame of images    images of slab │ …                   8
//	frame of records   page │ page │ …                     32
//
// The first tune.heapBytes of a tree lie in Go's heap, because most trees are small. So does a page
// that is a single large record. Where frames are not available, the whole tree lies in Go's heap.
//
// A frame with pieces in use is kept, but free pieces beyond a quarter of those in use are returned
// to the system one by one: a tree that shrinks, as a tree with Paging may, leaves pieces in use in
// most frames.
//
// Go's garbage collector does not see frames. They are returned when the last version of a tree is
// released, or when a tree with a version that was never released becomes garbage. So code that
// reads a version's memory must keep the version reachable meanwhile (runtime.KeepAlive).
type frames struct {
	kinds   *[indexPieces + 1]pieces
	cleanup runtime.Cleanup // of kinds
}

// Kinds of pieces, which frames are cut into.
const (
	linkPieces = iota
	imagePieces
	recordPieces
	indexPieces // whole frames
)

// pieceBytes holds the length of a piece of each kind.
var pieceBytes = [...]int{
	linkPieces: slabNodes * 16, imagePieces: slabNodes * 128, recordPieces: pageBytes, indexPieces: hugemem.FrameBytes,
}

// takeFrame is a variable so that tests can replace it.
var takeFrame = hugemem.Take

// pieces holds the frames that are cut into pieces of one kind.
type pieces struct {
	frames []*hugemem.Frame // nil if the frame was returned
	blocks []*block         // which pieces of each frame are free
	room   lowest           // frames with free pieces, and some that were returned
	free   lowest           // indices without a frame

	dropped []uint64 // for each frame, a bit set of the free pieces that have no memory
	used    int      // number of pieces in use
	idle    int      // number of free pieces that have memory
	// last contains the complements of the numbers of frames with idle pieces, so that the last
	// such frame is on top, and of some that no longer have any. listed marks the frames that last
	// contains.
	last   lowest
	listed []bool
}

// place locates a piece: its frame and its number in that frame, plus 1. 0 means that it is in Go's
// heap.
type place uint32

const placeShift = 6 // a frame has at most 64 pieces

// newPiece returns a piece of this kind, or nil if the caller should allocate it in Go's heap.
func (m *memory) newPiece(kind int) ([]byte, place) {
	if !inFrames || uint64(m.slabCount)*slabNodes*nodeBytes+m.leafBytes < tune.heapBytes {
		return nil, 0
	}
	if m.frames == nil {
		m.frames = &frames{kinds: new([indexPieces + 1]pieces)}
		m.frames.cleanup = runtime.AddCleanup(m.frames, giveFrames, m.frames.kinds)
	}
	return m.frames.kinds[kind].take(pieceBytes[kind])
}

// freePiece returns a piece to its frame.
func (m *memory) freePiece(kind int, at place) {
	if at != 0 {
		m.frames.kinds[kind].give(at, pieceBytes[kind])
	}
}

// freeFrames returns all frames to the system. The memory must not be used afterwards.
func (m *memory) freeFrames() {
	if m.frames != nil {
		m.frames.cleanup.Stop()
		giveFrames(m.frames.kinds)
		m.frames = nil
	}
}

// giveFrames returns frames to the system in the background.
func giveFrames(kinds *[indexPieces + 1]pieces) {
	var all []*hugemem.Frame
	for i := range kinds {
		all = append(all, kinds[i].frames...)
	}
	hugemem.GiveAll(slices.DeleteFunc(all, func(f *hugemem.Frame) bool { return f == nil }))
}

// take returns the first free piece, or nil if there is none and no frame can be added.
func (p *pieces) take(size int) ([]byte, place) {
	for len(p.room) > 0 && p.blocks[p.room[0]].slots == 0 {
		p.free.push(p.room.pop())
	}
	if len(p.room) == 0 && !p.add(size) {
		return nil, 0
	}
	i := p.room[0]
	b := p.blocks[i]
	piece := b.take()
	if b.full() {
		p.room.pop()
	}
	p.used++
	if bit := uint64(1) << piece; p.dropped[i]&bit != 0 {
		if p.dropped[i] &^= bit; p.dropped[i] == 0 {
			p.frames[i].Used()
		}
	} else {
		p.idle--
	}
	from := int(piece) * size
	return p.frames[i].Bytes()[from : from+size : from+size], place(i<<placeShift|piece) + 1
}

// add adds a frame. It reports false if none is available.
func (p *pieces) add(size int) bool {
	frame := takeFrame()
	if frame == nil {
		return false
	}
	if len(p.free) == 0 {
		p.free.push(uint32(len(p.frames)))
		p.frames, p.blocks = append(p.frames, nil), append(p.blocks, nil)
		p.dropped, p.listed = append(p.dropped, 0), append(p.listed, false)
	}
	i := p.free.pop()
	p.frames[i], p.blocks[i], p.dropped[i] = frame, newBlock(hugemem.FrameBytes/size, 0), 0
	p.idle += hugemem.FrameBytes / size
	p.room.push(i)
	p.list(i)
	return true
}

// idleOf returns a bit set of the free pieces of a frame that have memory.
func (p *pieces) idleOf(i uint32) uint64 {
	if p.frames[i] == nil {
		return 0
	}
	return p.blocks[i].free[0] &^ p.dropped[i]
}

// list adds a frame with idle pieces to last.
func (p *pieces) list(i uint32) {
	if !p.listed[i] {
		p.listed[i] = true
		p.last.push(^i)
	}
}

// give frees a piece.
func (p *pieces) give(at place, size int) {
	i, piece := uint32(at-1)>>placeShift, uint32(at-1)%(1<<placeShift)
	b := p.blocks[i]
	if b.full() {
		p.room.push(i)
	}
	b.give(piece)
	p.used--
	p.idle++
	if b.used == 0 { // the frame's index is removed from room later
		p.idle -= bits.OnesCount64(p.idleOf(i))
		p.frames[i].Give()
		p.frames[i], *b = nil, block{}
	} else {
		p.list(i)
	}
	for p.idle > p.used/4+idleFrames*hugemem.FrameBytes/size {
		p.drop(size)
	}
}

// idleFrames is the number of frames of free memory that each kind keeps, even if the tree is
// small.
const idleFrames = 1

// drop returns the memory of the last idle piece to the system. There must be one.
func (p *pieces) drop(size int) {
	for p.idleOf(^p.last[0]) == 0 {
		p.listed[^p.last.pop()] = false
	}
	i := ^p.last[0]
	piece := bits.Len64(p.idleOf(i)) - 1
	p.frames[i].Drop(piece*size, (piece+1)*size)
	p.dropped[i] |= 1 << piece
	p.idle--
}
