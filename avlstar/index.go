package avlstar

import (
	"bytes"
	"hash/maphash"
	"math"
	"math/bits"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// index finds the leaf of a key by its hash, which reads two or three cache lines instead of
// walking the tree (docs/decisions/0037-index-by-hash.md). It belongs to a tree, and all versions
// share it.
//
//	cell   seq │ 5 tags │ 5 refs │ 5 epochs of birth      a cache line
//	pair   cell │ cell                                    a key's home is one of them
//	table  pair │ pair │ pair │ …                         a key has two: the second for what does not fit in the first
//
// An entry names the newest leaf of a key. So it is valid in each version in use that is not older
// than the leaf; readers of an older version walk. Before a version is published, the entries of
// all leaves that it replaces or deletes are removed. Hence a leaf that a reader finds is in the
// reader's own version, which keeps the leaf alive even if the entry is removed meanwhile.
//
// A missing entry proves nothing: the reader walks, and enters the leaf that it finds if its
// version is the newest. An entry may be missing at any time: when both pairs are full, after a
// tree was loaded, while entries move, or while a cell is being written.
//
// The writers are Apply, which holds tree.mu, and readers that enter a leaf. While Apply changes
// entries, it closes the index to these readers (open), and waits for any cell that one of them has
// locked. A lookup never waits.
//
// Untrusted clients choose the keys, but cannot know their hashes, since the seed is random. If
// they did, keys beyond the ten of a pair would be found by walking.
type index struct {
	seed  maphash.Seed
	tags  uint32 // mask for the bits of a hash that are used: all of them, except in tests
	table atomic.Pointer[table]
	// open is the epoch of the newest version, whose readers may enter leaves. It is closed if no
	// reader may.
	open atomic.Uint32
	used atomic.Int64 // number of entries
}

// closed is an epoch that no version has.
const closed = freed

// table has the pairs of an index. It grows by one pair at a time, which takes over half of the
// entries of another pair (linear hashing: Litwin 1980), so that no block has to move all entries.
type table struct {
	segments []*segment
	pairs    uint32
	mask     uint32 // the least 2^k - 1 that is at least pairs
}

type (
	cell    [16]atomic.Uint32
	pair    [2]cell
	segment [segmentPairs]pair
)

const (
	segmentPairs = 2 << 20 / 128
	// cellSlots is the number of entries in a cell. The words of a cell are grouped by kind.
	cellSlots = 5
	cellTags  = 1
	cellRefs  = cellTags + cellSlots
	cellBorn  = cellRefs + cellSlots

	// pairEntries is the average number of entries in a pair, out of ten, above which the table
	// grows. An entry then takes 22 bytes.
	pairEntries = 5.8
	minPairs    = 64
	// maxSplits limits the number of pairs that a part of a block adds in addition to those for its
	// own leaves: the table grows slowly to fit the entries of readers.
	maxSplits = 256
)

// indexOp is a change of an index: leaf now replaces leaf old of a key with this tag. 0 stands for
// no leaf.
type indexOp struct {
	tag      uint32
	old, now ref
}

// EnableIndex adds an index by hash to v's tree, which makes View, Get, Has and ViewMany faster in
// the versions that Apply makes from now on. It takes about 22 bytes for each key in memory. No
// result depends on it, and absence is always proved by a walk.
func (v *Version) EnableIndex() {
	t := v.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.index != nil {
		return
	}
	x := &index{seed: maphash.MakeSeed(), tags: math.MaxUint32}
	x.open.Store(closed)
	first := &table{}
	n := max(minPairs, uint32(float64(t.mu.leaves)/pairEntries))
	for range (n + segmentPairs - 1) / segmentPairs {
		first.segments = append(first.segments, t.mu.newSegment())
	}
	first.setPairs(n)
	x.table.Store(first)
	t.mu.index = x
}

// newSegment returns a segment without entries.
func (m *memory) newSegment() *segment {
	piece, _ := m.newPiece(indexPieces) // the segment stays until the tree ends
	if piece == nil {
		return new(segment)
	}
	clear(piece)
	return (*segment)(unsafe.Pointer(&piece[0])) //nolint:gosec // its length is that of a segment
}

func (x *index) tag(key []byte) uint32 { return uint32(maphash.Bytes(x.seed, key)) & x.tags }

func (t *table) setPairs(n uint32) { t.pairs, t.mask = n, 1<<bits.Len32(n)-1 }

// at returns the number of the pair for a hash.
func (t *table) at(hash uint32) uint32 {
	i := hash & t.mask
	if i >= t.pairs {
		i &= t.mask >> 1
	}
	return i
}

func (t *table) pair(i uint32) *pair { return &t.segments[i/segmentPairs][i%segmentPairs] }

// second returns the hash that determines a tag's second pair.
func second(tag uint32) uint32 { return uint32(uint64(tag) * 0x9e37_79b9_7f4a_7c15 >> 32) }

// cells returns the cells where an entry with this tag may be, its home first.
func (t *table) cells(tag uint32) [4]*cell {
	a, b, home := t.pair(t.at(tag)), t.pair(t.at(second(tag))), tag>>31
	return [4]*cell{&a[home], &a[1-home], &b[home], &b[1-home]}
}

// match returns the first leaf with this tag, from slot i on, that the version of this epoch may
// contain, and the slot after it. The leaf is 0 if there is none, or if the cell is being written.
func (c *cell) match(tag, epoch uint32, i int) (ref, int) {
	seq := c[0].Load()
	if seq%2 != 0 {
		return 0, cellSlots
	}
	for ; i < cellSlots; i++ {
		if c[cellTags+i].Load() != tag {
			continue
		}
		n, born := ref(c[cellRefs+i].Load()), c[cellBorn+i].Load()
		if c[0].Load() != seq {
			return 0, cellSlots
		}
		if n != 0 && born <= epoch {
			return n, i + 1
		}
	}
	return 0, cellSlots
}

// find returns the leaf of key in v, or 0 if the index does not have it.
func (x *index) find(v *Version, key []byte, tag uint32) ref {
	t := x.table.Load()
	home := tag >> 31
	for _, hash := range [2]uint32{tag, second(tag)} {
		p := t.pair(t.at(hash))
		prefetchPair(p)
		for side := range uint32(2) {
			c := &p[home^side]
			for n, i := c.match(tag, v.epoch, 0); n != 0; n, i = c.match(tag, v.epoch, i) {
				if bytes.Equal(v.key(n), key) {
					return n
				}
			}
		}
	}
	return 0
}

// leafOf returns the leaf of v with this key, as findEqual does, and adds it to the index if it is
// not there.
func (x *index) leafOf(v *Version, key []byte) ref {
	v.inUse()
	defer runtime.KeepAlive(v)
	tag := x.tag(key)
	if n := x.find(v, key, tag); n != 0 {
		return n
	}
	n := v.findEqual(key)
	if n != 0 {
		x.enter(v, n, tag)
	}
	return n
}

// leafGroup implements Version.leafGroup.
func (x *index) leafGroup(v *Version, keys [][]byte) (at [manyWalks]ref) {
	t := x.table.Load()
	var tags [manyWalks]uint32
	for i, key := range keys {
		tags[i] = x.tag(key)
		prefetchPair(t.pair(t.at(tags[i])))
	}
	for i := range keys { // prefetch the records that find will compare, unless the pair is full
		p := t.pair(t.at(tags[i]))
		for side := range p {
			if n, _ := p[side].match(tags[i], v.epoch, 0); n != 0 {
				prefetchRecord(&v.record(n)[0])
			}
		}
	}
	var missing [manyWalks][]byte
	var places [manyWalks]int
	rest := 0
	for i, key := range keys {
		if at[i] = x.find(v, key, tags[i]); at[i] == 0 {
			missing[rest], places[rest] = key, i
			rest++
		}
	}
	if rest == 0 {
		return at
	}
	walked := v.walkGroup(missing[:rest])
	for k, n := range walked[:rest] {
		i := places[k]
		if at[i] = n; n != 0 && bytes.Equal(v.key(n), keys[i]) {
			x.enter(v, n, tags[i])
		}
	}
	return at
}

// enter adds leaf n of v to the index, if v is the newest version and there is room. It gives up if
// another goroutine is writing to the cell.
func (x *index) enter(v *Version, n ref, tag uint32) {
	if x.open.Load() != v.epoch {
		return
	}
	t := x.table.Load()
	cells := t.cells(tag)
	// The home cell is locked first, so that the leaf is entered only once.
	if !cells[0].tryLock() {
		return
	}
	defer cells[0].unlock()
	var room *cell
	for _, c := range cells {
		if c.slot(n) >= 0 {
			return
		}
		if room == nil && c.slot(0) >= 0 {
			room = c
		}
	}
	if room == nil {
		return
	}
	if room != cells[0] {
		if !room.tryLock() {
			return
		}
		defer room.unlock()
	}
	// Apply closes the index before it reads a cell, so an entry written while open is v.epoch is
	// seen.
	if i := room.slot(0); i >= 0 && x.open.Load() == v.epoch && x.table.Load() == t {
		room.set(i, tag, n, v.recordEpoch(n))
		x.used.Add(1)
	}
}

// slot returns the slot of leaf n, or an empty slot if n is 0; -1 if there is none.
func (c *cell) slot(n ref) int {
	for i := range cellSlots {
		if ref(c[cellRefs+i].Load()) == n {
			return i
		}
	}
	return -1
}

// set writes an entry. The caller has locked the cell, or no other goroutine can find it.
func (c *cell) set(i int, tag uint32, n ref, born uint32) {
	c[cellTags+i].Store(tag)
	c[cellRefs+i].Store(uint32(n))
	c[cellBorn+i].Store(born)
}

func (c *cell) tryLock() bool {
	seq := c[0].Load()
	return seq%2 == 0 && c[0].CompareAndSwap(seq, seq+1)
}

func (c *cell) unlock() { c[0].Add(1) }

// lock locks the cell, after waiting for a reader that is entering a leaf.
func (c *cell) lock() {
	for !c.tryLock() {
		runtime.Gosched()
	}
}

// await returns when no reader that found the index open is writing to the cell.
func (c *cell) await() {
	for c[0].Load()%2 != 0 {
		runtime.Gosched()
	}
}

// close stops readers from entering leaves. The caller holds tree.mu.
func (x *index) close() { x.open.Store(closed) }

// change makes changes, with new leaves that were born in epoch. The caller holds tree.mu and has
// closed the index.
func (x *index) change(ops []indexOp, epoch uint32) {
	const ahead = 8
	t := x.table.Load()
	for i, op := range ops {
		if i+ahead < len(ops) {
			prefetchPair(t.pair(t.at(ops[i+ahead].tag)))
		}
		x.put(t, op, epoch)
	}
}

// put makes one change.
func (x *index) put(t *table, op indexOp, born uint32) {
	var room *cell
	for _, c := range t.cells(op.tag) {
		c.await()
		if op.old != 0 {
			if i := c.slot(op.old); i >= 0 {
				c.lock()
				c.set(i, op.tag, op.now, born)
				c.unlock()
				if op.now == 0 {
					x.used.Add(-1)
				}
				return
			}
		}
		if room == nil && c.slot(0) >= 0 {
			if room = c; op.old == 0 {
				break
			}
		}
	}
	if op.now == 0 || room == nil {
		return
	}
	room.lock()
	room.set(room.slot(0), op.tag, op.now, born)
	room.unlock()
	x.used.Add(1)
}

// grow adds pairs until there is room for the present entries and more new ones. The caller holds
// tree.mu and has closed the index.
func (x *index) grow(m *memory, more int) {
	old := x.table.Load()
	want := uint32(min(float64(x.used.Load()+int64(more))/pairEntries, 1<<30))
	if want <= old.pairs {
		return
	}
	t := &table{segments: old.segments}
	t.setPairs(old.pairs)
	for range min(want-old.pairs, maxSplits+uint32(more)) {
		if int(t.pairs/segmentPairs) == len(t.segments) {
			t.segments = append(t.segments, m.newSegment())
		}
		t.split()
	}
	x.table.Store(t)
}

// split adds a pair, and moves the entries that belong there. Readers that still use a table
// without the new pair do not find these entries.
func (t *table) split() {
	was := *t
	t.setPairs(t.pairs + 1)
	to := t.pairs - 1
	from := to &^ (1 << (bits.Len32(to) - 1))
	target := t.pair(to)
	for _, side := range [2]int{0, 1} {
		c := &was.pair(from)[side]
		c.await()
		for i := range cellSlots {
			n, tag := ref(c[cellRefs+i].Load()), c[cellTags+i].Load()
			hash := tag
			if was.at(tag) != from {
				hash = second(tag)
			}
			if n == 0 || t.at(hash) != to {
				continue
			}
			room := &target[tag>>31]
			if room.slot(0) < 0 {
				room = &target[1-tag>>31]
			}
			room.set(room.slot(0), tag, n, c[cellBorn+i].Load())
			c.lock()
			c.set(i, 0, 0, 0)
			c.unlock()
		}
	}
}

func prefetchPair(p *pair) { prefetchRecord((*byte)(unsafe.Pointer(p))) } //nolint:gosec // it is two cache lines long
