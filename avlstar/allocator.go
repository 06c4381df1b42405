package avlstar

import (
	"encoding/binary"
	"math/bits"

	"github.com/starling-kv/starling/avlstar/record"
)

// allocator hands out nodes and records of a memory to one goroutine. It owns one slab, and one
// page of each class. A shared allocator locks the memory when it needs another slab or page. While
// it is in use, no more slabs and pages may be taken than memory.extend reserved, so that the lists
// do not move, and nothing may be freed.
type allocator struct {
	view
	m      *memory
	shared bool

	slab  uint32
	nodes *block // of slab; nil if it has none
	// next holds the nodes that newNode returns next, in turn; they are being fetched into the
	// cache.
	next  [4]ref
	turn  int
	pages [len(classBytes)]struct {
		page uint32
		*block
	}
	madeNodes, madeLeaves uint64
}

func newAllocator(m *memory, shared bool) allocator {
	return allocator{view: m.view, m: m, shared: shared}
}

// newNode returns a node with arbitrary content.
func (a *allocator) newNode() ref {
	at := a.turn % len(a.next)
	a.turn++
	n := a.next[at]
	a.next[at] = a.take()
	if n == 0 {
		return a.take()
	}
	return n
}

// take returns a node of the slab, or of another slab when this one is full.
func (a *allocator) take() ref {
	if a.nodes == nil || a.nodes.full() {
		if a.shared {
			a.m.mu.Lock()
			defer a.m.mu.Unlock()
		}
		a.slab = a.m.takeSlab()
		a.nodes = a.m.slabBlocks[a.slab]
		a.view = a.m.view
	}
	a.madeNodes++
	n := ref(a.slab<<slabShift | a.nodes.take())
	prefetchNewNode(a.link(n), a.image(n))
	return n
}

// newRecord returns space for a record of n bytes, which begin with its epoch.
func (a *allocator) newRecord(n int) (ref, []byte) {
	a.madeLeaves++
	if n > int(classBytes[len(classBytes)-1]) {
		page := make([]byte, n)
		b := newBlock(1, largeClass)
		b.take()
		if a.shared {
			a.m.mu.Lock()
			defer a.m.mu.Unlock()
		}
		p := a.m.addPage(page, b)
		a.view = a.m.view
		return leafBit | ref(p<<pageShift), page
	}
	class := classOf[(n+unitBytes-1)/unitBytes]
	own, size := &a.pages[class], uint32(classBytes[class])
	if own.block == nil || own.full() {
		if a.shared {
			a.m.mu.Lock()
			defer a.m.mu.Unlock()
		}
		own.page = a.m.takePage(class)
		own.block = a.m.pageBlocks[own.page]
		a.view = a.m.view
	}
	slot := own.take()
	if word := own.free[own.word]; word != 0 { // fetch the record after this one
		next := uint32(own.word)*64 + uint32(bits.TrailingZeros64(word))
		prefetchNewRecord(&a.view.pages[own.page][next*size])
	}
	return leafBit | ref(own.page<<pageShift|slot*size/unitBytes), a.view.pages[own.page][slot*size:]
}

// putRecord stores a leaf.
func (a *allocator) putRecord(epoch uint32, key, value []byte) ref {
	// RecordBytes counts the height byte of a chunk's record; here the epoch stands in its place.
	n := recordHeader - 1 + int(RecordBytes(len(key), len(value)))
	r, b := a.newRecord(n)
	binary.LittleEndian.PutUint32(b, epoch)
	record.PutBody(b[recordHeader:], key, value)
	return r
}

// close returns the unused part of the slab and pages to the memory. No other allocator may be in
// use.
func (a *allocator) close() {
	if a.nodes != nil {
		a.m.giveSlab(a.slab)
	}
	for i := range a.pages {
		if a.pages[i].block != nil {
			a.m.givePage(a.pages[i].page)
		}
	}
	a.m.nodes += a.madeNodes
	a.m.leaves += a.madeLeaves
	for _, n := range a.next {
		if n != 0 {
			a.m.freeNode(n)
		}
	}
	*a = allocator{}
}
