package avlstar

import (
	"math/bits"
	"runtime"
	"slices"

	"github.com/starling-kv/starling/avlstar/hugemem"
)

// A walk through a large tree visits another page of the processor's at every step; with pages of
// 4 KiB, most steps miss the TLB too. So the slabs and pages of a large tree are cut from frames of
// 2 MiB (package hugemem). What a search reads, the links, lies together.
//
//	frame of links     links of slab │ links of slab │ …   64
//	frame of images    images of slab │ …                   8
//	frame of records   page │ page │ …                     32
//
// The first tune.heapBytes of a tree lie in Go's heap, because most trees are small, and so does a
// page that is a single large record. All of a tree does where there are no frames.
//
// A frame with pieces in use stays, but what is free in frames beyond a quarter of what is in use
// is given back to the system piece by piece: a tree that shrinks, as one with Paging may, leaves
// some pieces in use in most frames.
//
// Go's garbage collector does not see frames. They are given back when the last version of a tree
// is released, or when a tree of which some version was never released is found to be garbage. So
// what reads a version's memory must keep the version reachable meanwhile (runtime.KeepAlive).
type frames struct {
	kinds   *[indexPieces + 1]pieces
	cleanup runtime.Cleanup // of kinds
}

// Kinds of pieces of frames.
const (
	linkPieces = iota
	imagePieces
	recordPieces
	indexPieces // whole frames
)

// pieceBytes are the lengths of pieces, by kind.
var pieceBytes = [...]int{
	linkPieces: slabNodes * 16, imagePieces: slabNodes * 128, recordPieces: pageBytes, indexPieces: hugemem.FrameBytes,
}

// takeFrame is changed by tests.
var takeFrame = hugemem.Take

// pieces are the frames that are cut into pieces of one kind.
type pieces struct {
	frames []*hugemem.Frame // nil: given back
	blocks []*block         // which of their pieces are free
	room   lowest           // frames with free pieces, and some that were given back
	free   lowest           // indices without a frame

	dropped []uint64 // of each frame the free pieces that have no memory, as bits
	used    int      // pieces
	idle    int      // free pieces that have memory
	// last has the complements of the frames with such pieces, so that the last one is on top, and
	// of some that have none any more; listed are those that it has.
	last   lowest
	listed []bool
}

// place says where a piece is: its frame and its number in it, plus 1. 0 is in Go's heap.
type place uint32

const placeShift = 6 // pieces of a frame: 64 at most

// newPiece returns a piece of this kind; nil if it is to be made in Go's heap.
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

// freePiece gives a piece back.
func (m *memory) freePiece(kind int, at place) {
	if at != 0 {
		m.frames.kinds[kind].give(at, pieceBytes[kind])
	}
}

// freeFrames gives all frames back. The memory must not be used afterwards.
func (m *memory) freeFrames() {
	if m.frames != nil {
		m.frames.cleanup.Stop()
		giveFrames(m.frames.kinds)
		m.frames = nil
	}
}

// giveFrames gives frames back; their memory returns behind it.
func giveFrames(kinds *[indexPieces + 1]pieces) {
	var all []*hugemem.Frame
	for i := range kinds {
		all = append(all, kinds[i].frames...)
	}
	hugemem.GiveAll(slices.DeleteFunc(all, func(f *hugemem.Frame) bool { return f == nil }))
}

// take returns the first free piece, nil if there is none and no other frame.
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

// add takes another frame.
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

// idleOf returns the free pieces of a frame that have memory, as bits.
func (p *pieces) idleOf(i uint32) uint64 {
	if p.frames[i] == nil {
		return 0
	}
	return p.blocks[i].free[0] &^ p.dropped[i]
}

// list notes a frame with such pieces.
func (p *pieces) list(i uint32) {
	if !p.listed[i] {
		p.listed[i] = true
		p.last.push(^i)
	}
}

// give takes a piece back.
func (p *pieces) give(at place, size int) {
	i, piece := uint32(at-1)>>placeShift, uint32(at-1)%(1<<placeShift)
	b := p.blocks[i]
	if b.full() {
		p.room.push(i)
	}
	b.give(piece)
	p.used--
	p.idle++
	if b.used == 0 { // it is taken out of room later
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

// idleFrames is how much may lie free of each kind, however small the tree is.
const idleFrames = 1

// drop gives the memory of the last piece that is free back to the system. There must be one.
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
