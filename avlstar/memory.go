package avlstar

import (
	"encoding/binary"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/starling-kv/starling/avlstar/record"
)

// ref names a node of a tree's memory: an inner node if it is below leafBit, otherwise the record
// of a leaf. 0 is neither. In the slot of an inner node, 0 is a subtree that is not in memory (a
// stub); as a root, it is the empty tree.
type ref uint32

const leafBit ref = 1 << 31

func (r ref) isLeaf() bool  { return r >= leafBit }
func (r ref) isInner() bool { return int32(r) > 0 }

// Inner nodes lie in slabs, leaf records in pages. Neither holds a Go pointer, so the garbage
// collector does not scan them.
//
//	inner node   0 │ slab (20 bits) │ node (11 bits)
//	leaf record  1 │ page (19 bits) │ offset in units of 16 bytes (12 bits)
const (
	nodeBytes = 16 + 128 // link and image
	slabShift = 11
	slabNodes = 1 << slabShift
	maxSlabs  = 1 << (31 - slabShift)

	unitBytes = 16
	pageShift = 12 // in units
	pageBytes = unitBytes << pageShift
	maxPages  = 1 << (31 - pageShift)
)

// link is the part of an inner node that a search reads: 16 bytes, four in a cache line.
type link struct {
	prefix uint64 // the first 8 bytes of its key, big-endian, padded with zeros
	child  [2]ref // left and right
}

type slab struct {
	links  *[slabNodes]link
	images *[slabNodes]image
}

// view finds nodes by their refs. Every version has a view of its own: the lists grow while older
// versions are read, and an entry that an older version can reach never changes.
type view struct {
	slabs []slab
	pages [][]byte
}

func (w *view) link(n ref) *link   { return &w.slabs[n>>slabShift].links[n%slabNodes] }
func (w *view) image(n ref) *image { return &w.slabs[n>>slabShift].images[n%slabNodes] }

// memory keeps track of what is free in a tree's memory. The lowest slab or page with room is used
// first, so that those above it become empty and are given back. One goroutine at a time may call
// its methods; see allocator.
type memory struct {
	view
	mu sync.Mutex // guards the memory while allocators share it

	slabBlocks []*block // parallel to slabs
	slabRoom   lowest
	freeSlabs  lowest // indices without a slab
	nodes      uint64 // in use
	slabCount  int

	pageBlocks []*block // parallel to pages
	pageRoom   [len(classBytes)]lowest
	freePages  lowest
	leaves     uint64 // records in use
	leafBytes  uint64 // total length of the pages

	frames *frames // the frames from which slabs and pages are cut; nil if there is none yet
}

// block records which slots of a slab or a page are free. It is stored apart from them, because
// reading a slot that died a while ago would be a cache miss.
type block struct {
	free        []uint64 // one bit per slot
	word        uint16   // words before this one are 0
	used, slots uint16   // slots is 0 if the slab or page was given back
	class       uint8    // for a page: index of classBytes, or largeClass
	// Whether the block is in the heap of blocks with room. Its index is not reused before it
	// leaves that heap.
	queued bool
	places [2]place // of the slab's links and images, or of the page
}

func newBlock(slots int, class uint8) *block {
	b := &block{free: make([]uint64, (slots+63)/64), slots: uint16(slots), class: class}
	for i := range b.free {
		b.free[i] = ^uint64(0)
	}
	if rest := slots % 64; rest > 0 {
		b.free[len(b.free)-1] = 1<<rest - 1
	}
	return b
}

func (b *block) full() bool { return b.used == b.slots }

// take returns the lowest free slot. There must be one.
func (b *block) take() uint32 {
	for b.free[b.word] == 0 {
		b.word++
	}
	bit := bits.TrailingZeros64(b.free[b.word])
	b.free[b.word] &^= 1 << bit
	b.used++
	return uint32(b.word)*64 + uint32(bit)
}

// give frees a slot.
func (b *block) give(slot uint32) {
	word := uint16(slot / 64)
	b.free[word] |= 1 << (slot % 64)
	b.word = min(b.word, word)
	b.used--
}

// classBytes are the sizes of records: steps of 16 bytes up to 512, then the largest sizes of which
// a page can hold 112, 96, …. A larger record has a page of its own.
var classBytes = [...]uint16{
	16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 272, 288, 304, 320, 336, 352, 368, 384, 400, 416, 432, 448,
	464, 480, 496, 512, 576, 672, 816, 1008, 1168, 1360, 1632, 2032, 2336, 2720, 3120, 3632, 4096, 5040, 5952, 7280, 8192,
}

const largeClass = 0xff

// classOf is the smallest class for n bytes, indexed by n in units, rounded up.
var classOf = func() (table [8192/unitBytes + 1]uint8) {
	c := 0
	for units := range table {
		if units*unitBytes > int(classBytes[c]) {
			c++
		}
		table[units] = uint8(c)
	}
	return table
}()

// takeSlab returns the lowest slab with room, which belongs to the caller until giveSlab.
func (m *memory) takeSlab() uint32 {
	for len(m.slabRoom) > 0 {
		s := m.slabRoom.pop()
		b := m.slabBlocks[s]
		if b.queued = false; b.slots > 0 {
			return s
		}
		m.freeSlabs.push(s)
	}
	return m.addSlab()
}

func (m *memory) giveSlab(s uint32) {
	if b := m.slabBlocks[s]; !b.full() && !b.queued {
		b.queued = true
		m.slabRoom.push(s)
	}
}

func (m *memory) freeNode(n ref) {
	s, slot := uint32(n>>slabShift), uint32(n%slabNodes)
	if debug {
		*m.image(n), *m.link(n) = image{}, link{prefix: poison}
		m.image(n).setEpoch(freed)
	}
	m.nodes--
	b := m.slabBlocks[s]
	if b.give(slot); b.used > 0 {
		m.giveSlab(s)
		return
	}
	m.freePiece(linkPieces, b.places[0])
	m.freePiece(imagePieces, b.places[1])
	m.slabs[s], *b = slab{}, block{queued: b.queued}
	m.slabCount--
	if !b.queued {
		m.freeSlabs.push(s)
	}
}

// addSlab returns a new slab, which belongs to the caller until giveSlab.
func (m *memory) addSlab() uint32 {
	if len(m.freeSlabs) == 0 {
		m.extend(1, 0)
	}
	s := m.freeSlabs.pop()
	b := newBlock(slabNodes, 0)
	m.slabs[s], m.slabBlocks[s] = m.newSlab(b), b
	m.slabCount++
	if s == 0 { // node 0 does not exist
		m.slabBlocks[0].take()
	}
	return s
}

// newSlab makes the slab of a block.
func (m *memory) newSlab(b *block) (s slab) {
	if piece, at := m.newPiece(linkPieces); piece != nil {
		s.links, b.places[0] = (*[slabNodes]link)(unsafe.Pointer(&piece[0])), at //nolint:gosec // its length is that of a slab's links
	} else {
		s.links = new([slabNodes]link)
		adviseHuge(s.links[:])
	}
	if piece, at := m.newPiece(imagePieces); piece != nil {
		s.images, b.places[1] = (*[slabNodes]image)(unsafe.Pointer(&piece[0])), at //nolint:gosec // its length is that of a slab's images
	} else {
		s.images = new([slabNodes]image)
		adviseHuge(s.images[:])
	}
	return s
}

// extend adds indices without a slab or a page. It may move the lists, so no other goroutine may
// use them meanwhile.
func (m *memory) extend(slabs, pages int) {
	if len(m.slabs)+slabs > maxSlabs || len(m.pages)+pages > maxPages {
		panic("avlstar: more slabs or pages than room allows") // refs would wrap around
	}
	for range slabs {
		m.freeSlabs.push(uint32(len(m.slabs)))
		m.slabs, m.slabBlocks = append(m.slabs, slab{}), append(m.slabBlocks, nil)
	}
	for range pages {
		m.freePages.push(uint32(len(m.pages)))
		m.pages, m.pageBlocks = append(m.pages, nil), append(m.pageBlocks, nil)
	}
}

// takePage returns the lowest page of a class with room, which belongs to the caller until
// givePage.
func (m *memory) takePage(class uint8) uint32 {
	for room := &m.pageRoom[class]; len(*room) > 0; {
		p := room.pop()
		b := m.pageBlocks[p]
		if b.queued = false; b.slots > 0 {
			return p
		}
		m.freePages.push(p)
	}
	b := newBlock(pageBytes/int(classBytes[class]), class)
	page, at := m.newPiece(recordPieces)
	if b.places[0] = at; page == nil {
		page = make([]byte, pageBytes)
		adviseHuge(page)
	}
	return m.addPage(page, b)
}

func (m *memory) givePage(p uint32) {
	if b := m.pageBlocks[p]; !b.full() && !b.queued {
		b.queued = true
		m.pageRoom[b.class].push(p)
	}
}

// addPage stores a page and returns its index. The page belongs to the caller until givePage.
func (m *memory) addPage(page []byte, b *block) uint32 {
	m.leafBytes += uint64(len(page))
	if len(m.freePages) == 0 {
		m.extend(0, 1)
	}
	p := m.freePages.pop()
	m.pages[p], m.pageBlocks[p] = page, b
	return p
}

// slotBytes returns the memory that a node takes.
func (m *memory) slotBytes(n ref) uint64 {
	if !n.isLeaf() {
		return nodeBytes
	}
	p := (n &^ leafBit) >> pageShift
	if class := m.pageBlocks[p].class; class != largeClass {
		return uint64(classBytes[class])
	}
	return uint64(len(m.pages[p]))
}

// bytesOf returns the memory that nodes take.
func (m *memory) bytesOf(nodes []dead) (sum uint64) {
	for _, d := range nodes {
		sum += m.slotBytes(d.n)
	}
	return sum
}

func (m *memory) freeRecord(r ref) {
	m.leaves--
	p := uint32((r &^ leafBit) >> pageShift)
	b := m.pageBlocks[p]
	slot := uint32(0)
	if b.class != largeClass {
		size := uint32(classBytes[b.class])
		slot = uint32(r) % (1 << pageShift) * unitBytes / size
		if debug {
			record := m.pages[p][slot*size:][:size]
			for i := range record {
				record[i] = poison & 0xff
			}
		}
	}
	if b.give(slot); b.used > 0 {
		m.givePage(p)
		return
	}
	m.freePiece(recordPieces, b.places[0])
	m.leafBytes -= uint64(len(m.pages[p]))
	m.pages[p], *b = nil, block{queued: b.queued}
	if !b.queued {
		m.freePages.push(p)
	}
}

// A leaf record is
//
//	epoch:u32le ‖ uvarint(len key) ‖ key ‖ uvarint(len value) ‖ value
//
// After the epoch, it equals the record of a chunk without its height (package record). A record
// whose value is empty is a stand-in for a leaf that is not in memory (graft.go).
const recordHeader = 4

// record returns the bytes of the page from the record on.
func (w *view) record(r ref) []byte {
	return w.pages[(r&^leafBit)>>pageShift][r%(1<<pageShift)*unitBytes:]
}

func (w *view) recordEpoch(r ref) uint32 { return binary.LittleEndian.Uint32(w.record(r)) }

// epochOf returns the epoch of the version that made a node or leaf.
func (w *view) epochOf(n ref) uint32 {
	if n.isLeaf() {
		return w.recordEpoch(n)
	}
	return w.image(n).epoch()
}

func (w *view) setRecordEpoch(r ref, epoch uint32) { binary.LittleEndian.PutUint32(w.record(r), epoch) }

// key returns the key of a leaf.
func (w *view) key(r ref) []byte {
	b := w.record(r)
	n, at := record.Length(b, recordHeader)
	return b[at : at+n : at+n]
}

// leaf returns the key and the value of a leaf. The capacity of the value exceeds its length, so
// that it can be hashed in place.
func (w *view) leaf(r ref) (key, value []byte) {
	b := w.record(r)
	n, at := record.Length(b, recordHeader)
	key = b[at : at+n : at+n]
	n, at = record.Length(b, at+n)
	return key, b[at : at+n]
}

// body returns the bytes after the epoch: the record of a chunk without its height.
func (w *view) body(r ref) []byte {
	b := w.record(r)
	n, at := record.Length(b, recordHeader)
	n, at = record.Length(b, at+n)
	return b[recordHeader : at+n]
}

// prefixOf returns the prefix of a key for a link. Keys with different prefixes are ordered as
// their prefixes are.
func prefixOf(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

// lowest is a heap of block indices with the least on top.
type lowest []uint32

func (h *lowest) push(x uint32) {
	s := append(*h, x)
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if s[up] <= s[i] {
			break
		}
		s[up], s[i] = s[i], s[up]
		i = up
	}
	*h = s
}

func (h *lowest) pop() uint32 {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	s = s[:last]
	for i := 0; ; {
		least := i
		for _, down := range [...]int{2*i + 1, 2*i + 2} {
			if down < len(s) && s[down] < s[least] {
				least = down
			}
		}
		if least == i {
			break
		}
		s[i], s[least] = s[least], s[i]
		i = least
	}
	*h = s
	return top
}
