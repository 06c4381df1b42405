package avlstar

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"runtime"
	"sync"

	"github.com/starling-kv/starling/avlstar/record"
)

// loader fills the memory of a new tree with runs. Inner node n of the tree gets the key of leaf n.
// So the position of a run is known as soon as the number of leaves before it is known, and runs
// are placed in parallel.
//
//	leaves        0 ……… a-1 │ a ……… b-1 │ b ………        a run each
//	inner nodes   1 ……… a-1 │ a ……… b-1 │ b ………        a, b: above the runs, made when all are placed
type loader struct {
	tree       *tree
	chunkBytes uint64
	mu         sync.Mutex // guards the tree's memory while runs are placed
	leaves     allocator  // for records
	placed     placedList
	joiner     builder // makes the tree above the first joined runs of placed
	joined     int
	paged      bool // load only nodes above pages: nodes are then numbered in order of arrival
}

func newLoader(chunkBytes uint64) loader {
	t := new(tree)
	return loader{tree: t, chunkBytes: chunkBytes, leaves: newAllocator(&t.mu.memory, false)}
}

// placed describes a run that was placed, as the tree above it needs it.
type placed struct {
	base     uint32 // leaves before it
	boundary uint8  // height of the inner node that has its least key
	root     sub
	leaf     ref // the first leaf
	keyHash  Hash
}

// placedList is a list in blocks of placedBlock items. Unlike a slice, it copies no items when it
// grows: those copies took half of the time to load a page list.
type placedList struct {
	blocks [][]placed
	n      int
}

const placedBlock = 1 << 8

func (l *placedList) add(p placed) {
	if l.n%placedBlock == 0 {
		l.blocks = append(l.blocks, make([]placed, placedBlock))
	}
	*l.at(l.n) = p
	l.n++
}

func (l *placedList) at(k int) *placed { return &l.blocks[k/placedBlock][k%placedBlock] }

// reserve creates the nodes for the first n leaves. The caller holds mu, or no other goroutine uses
// the loader yet.
func (l *loader) reserve(n uint64) error {
	if l.paged {
		return nil
	}
	if n >= uint64(leafBit) {
		return fmt.Errorf("%w: more than 2^31 leaves", ErrTooLarge)
	}
	m := &l.tree.mu.memory
	for uint64(len(m.slabs))<<slabShift < n {
		m.addSlab()
	}
	return nil
}

// place copies the nodes and leaves of a run into the tree, behind base other leaves. reserve must
// have been called for them. place may be called concurrently.
func (l *loader) place(r *run, base uint32, boundary uint8) (placed, error) {
	if l.paged {
		return l.placeUpper(r, base, boundary), nil
	}
	refs := make([]ref, r.len())
	l.mu.Lock()
	m := &l.tree.mu.memory
	eighths := 0
	for i := range refs {
		eighths += pageEighths(r.end(i) - int(r.at[i]))
	}
	if len(m.pages)+eighths/8+1+len(classBytes) >= maxPages {
		l.mu.Unlock()
		return placed{}, fmt.Errorf("%w: %d pages of records", ErrTooLarge, len(m.pages))
	}
	for i := range refs {
		refs[i], _ = l.leaves.newRecord(recordHeader - 1 + r.end(i) - int(r.at[i]))
	}
	w := m.view
	l.mu.Unlock()

	relocate := func(n ref) ref {
		if n.isLeaf() {
			return refs[n&^leafBit]
		}
		return ref(base) + n
	}
	for i, to := range refs {
		b := w.record(to)
		binary.LittleEndian.PutUint32(b, 0)
		copy(b[recordHeader:], r.data[r.at[i]+1:r.end(i)])
		if i == 0 {
			continue
		}
		n := ref(base) + ref(i)
		from := &r.links[i]
		*w.link(n) = link{from.prefix, [2]ref{relocate(from.child[left]), relocate(from.child[right])}}
		image := w.image(n)
		*image = r.images[i]
		image.setLeaf(to)
	}
	p := placed{base: base, boundary: boundary, root: r.root, leaf: refs[0], keyHash: r.first}
	p.root.n = relocate(r.root.n)
	return p, nil
}

// placeUpper does what place does, but only for the nodes above pages, and for the root in any
// case.
func (l *loader) placeUpper(r *run, base uint32, boundary uint8) placed {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := placed{base: base, boundary: boundary, root: r.root, keyHash: r.first}
	if r.root.n.isLeaf() {
		first := r.leaf(0)
		p.root.n = l.leaves.putRecord(0, first.Key, first.Value)
		p.leaf = p.root.n
		return p
	}
	p.root.n = l.upper(r, r.root.n)
	if base > 0 { // otherwise no inner node has the first key
		p.leaf = l.leaves.putRecord(0, r.leaf(0).Key, nil)
	}
	return p
}

// upper copies inner node n of a run, and the nodes below it that are above pages.
func (l *loader) upper(r *run, n ref) ref {
	c := l.leaves.newNode()
	*l.leaves.image(c) = r.images[n]
	i := link{prefix: r.links[n].prefix}
	for side, child := range r.links[n].child {
		if s := r.images[n].stat(side); !isPage(s, l.chunkBytes) {
			i.child[side] = l.upper(r, child)
		}
	}
	*l.leaves.link(c) = i
	l.leaves.image(c).setLeaf(l.leaves.putRecord(0, r.leaf(int(n)).Key, nil))
	return c
}

// finish makes the upper tree and publishes the version. leaves is the number of all leaves. upper
// is the number of nodes of the runs that are in no chunk.
func (l *loader) finish(upperOnly bool, leaves, upper uint64) (*Version, error) {
	v := &Version{chunkBytes: l.chunkBytes, leaves: leaves, top: emptyStub, upper: upper, partial: l.paged}
	if err := l.joinPlaced(v, upperOnly); err != nil {
		return nil, err
	}
	return l.tree.publish(v)
}

// joinPlaced makes the upper tree and sets the root of v. v.leaves is the number of leaves and
// stubs.
func (l *loader) joinPlaced(v *Version, upperOnly bool) error {
	if v.leaves > 0 {
		if err := l.joinMore(upperOnly); err != nil {
			return err
		}
		root, err := l.joiner.root()
		if err != nil {
			return err
		}
		v.root, v.top, v.upper = root.n, root.Stub, v.upper+l.joiner.upper
		if !l.paged {
			l.settle(v.leaves)
		}
	}
	l.leaves.close()
	spareRuns.forget()
	return nil
}

// joinMore adds the runs that have been placed since the last call to the upper tree.
func (l *loader) joinMore(upperOnly bool) error {
	l.joiner.chunkBytes, l.joiner.upperOnly, l.joiner.join = l.chunkBytes, upperOnly, l.join
	for ; l.joined < l.placed.n; l.joined++ {
		p := l.placed.at(l.joined)
		if err := l.joiner.add(p.boundary, &p.root); err != nil {
			return fmt.Errorf("leaf %d: %w", p.base, err)
		}
	}
	return nil
}

// join makes an inner node above the runs.
func (l *loader) join(k uint32, _ Stat, lt, rt *sub) (ref, Hash) {
	p := l.placed.at(int(k))
	w, n := &l.tree.mu.view, ref(p.base)
	if l.paged {
		n = l.leaves.newNode()
		w = &l.tree.mu.view
	}
	*w.link(n) = link{prefixOf(w.key(p.leaf)), [2]ref{lt.n, rt.n}}
	i := w.image(n)
	*i = image{0: 0x01}
	i.setStub(left, lt.Stub)
	i.setStub(right, rt.Stub)
	*i.keyHash() = p.keyHash
	i.setLeaf(p.leaf)
	return n, i.sum()
}

// settle marks the nodes of n leaves as in use.
func (l *loader) settle(n uint64) {
	m := &l.tree.mu.memory
	m.nodes = n - 1
	for s := range m.slabBlocks {
		b := newBlock(slabNodes, 0)
		b.places = m.slabBlocks[s].places
		// Node 0, which does not exist, counts as in use.
		for range min(slabNodes, n-uint64(s)<<slabShift) {
			b.take()
		}
		m.slabBlocks[s] = b
		m.giveSlab(uint32(s))
	}
}

// runHeight is the height of the subtrees that FromLeaves builds at a time: they have 377 to 4,096
// leaves, and their nodes fit into a core's cache.
const runHeight = 12

// FromLeaves rebuilds a version in one linear pass from its leaves in key order, as Leaves yields
// them. The height of the first leaf is ignored; every other must be that of the inner node with
// the same key. Keys and values are copied. It fails with the error that leaves yields, or if the
// leaves are not those of a proper tree. Subtrees are built and hashed in parallel while leaves are
// read.
func FromLeaves(chunkBytes uint64, leaves iter.Seq2[Leaf, error]) (*Version, error) {
	return treeFromLeaves(chunkBytes, nil, leaves)
}

// FromLeavesPaged does what FromLeaves does, for a tree with Paging. The leaves must be stored: no
// page stays in memory.
func FromLeavesPaged(chunkBytes uint64, p Paging, leaves iter.Seq2[Leaf, error]) (*Version, error) {
	return treeFromLeaves(chunkBytes, &p, leaves)
}

func treeFromLeaves(chunkBytes uint64, p *Paging, leaves iter.Seq2[Leaf, error]) (*Version, error) {
	if err := checkChunkBytes(chunkBytes); err != nil {
		return nil, fmt.Errorf("avlstar: %w", err)
	}
	s := newStream(chunkBytes)
	s.paged = p != nil
	err := s.read(leaves)
	if waited := s.wait(); waited != nil { // the error of the earlier leaf, if there are two
		err = waited
	}
	if err == nil {
		var v *Version
		if v, err = s.finish(false, s.count, s.above); err == nil {
			if p != nil {
				v.EnablePaging(*p)
			}
			return v, nil
		}
	}
	return nil, fmt.Errorf("avlstar: tree from leaves: %w", err)
}

// stream cuts leaves into runs, which other goroutines build.
type stream struct {
	loader
	count uint64 // leaves so far, and stubs of the boundary proof
	// If apart is set, other leaves may precede the first one, in one run with it; if open is set,
	// other leaves may follow the last one, in one run with it. Then each leaf, up to a boundary
	// above all runs, is a run of its own.
	apart, open bool

	now  *piece
	work chan *piece
	free chan *piece // a fixed number of pieces, which limits the memory
	wg   sync.WaitGroup

	mu     sync.Mutex
	above  uint64 // number of nodes of runs that are in no chunk
	failed error
	at     uint32 // leaf at which failed occurred
}

// piece is a run that is being built.
type piece struct {
	data     []byte
	index    int // index in placed
	base     uint32
	boundary uint8
}

func newStream(chunkBytes uint64) *stream {
	workers := runtime.GOMAXPROCS(0)
	s := &stream{loader: newLoader(chunkBytes), work: make(chan *piece, workers), free: make(chan *piece, 2*workers)}
	for range 2 * workers {
		s.free <- &piece{}
	}
	for range workers {
		s.wg.Go(func() {
			for p := range s.work {
				s.build(p)
				s.free <- p
			}
		})
	}
	return s
}

// read cuts the leaves into runs.
func (s *stream) read(leaves iter.Seq2[Leaf, error]) error {
	var last []byte // key of the previous leaf
	inRun := 0
	for l, err := range leaves {
		if err == nil {
			err = checkKey(l.Key)
		}
		if err == nil {
			err = checkValue(l.Value)
		}
		// A run that would have more leaves than this is invalid, and is refused later.
		if err == nil && s.now != nil && (s.apart || l.Height > runHeight || inRun > 1<<runHeight) {
			if bytes.Compare(l.Key, last) <= 0 {
				err = fmt.Errorf("key %s does not ascend", abbreviate(l.Key))
			} else {
				err = s.cut()
			}
			inRun = 0
		}
		if err != nil {
			return fmt.Errorf("leaf %d: %w", s.count, err)
		}
		if s.now == nil {
			s.now = <-s.free
			s.now.data, s.now.base, s.now.boundary, s.now.index = s.now.data[:0], uint32(s.count), l.Height, -1
		}
		s.apart = s.apart && l.Height <= runHeight
		s.now.data = record.Append(s.now.data, l)
		last = append(last[:0], l.Key...)
		s.count++
		inRun++
	}
	switch {
	case s.now == nil:
		return nil
	case s.open:
		return s.cutEach()
	}
	return s.cut()
}

// cutEach passes the leaves since the last cut to workers, each as a run of its own.
func (s *stream) cutEach() error {
	all := s.now
	defer func() { s.free <- all }()
	base, boundary := all.base, all.boundary
	for rest := all.data; len(rest) > 0; base++ {
		n := record.Size(rest)
		s.now = <-s.free
		s.now.data, s.now.base, s.now.boundary, s.now.index = append(s.now.data[:0], rest[:n]...), base, boundary, -1
		if err := s.cut(); err != nil {
			return err
		}
		if rest = rest[n:]; len(rest) > 0 {
			boundary = rest[0]
		}
	}
	return nil
}

// cut passes the leaves since the last cut to a worker.
func (s *stream) cut() error {
	p := s.now
	s.now = nil
	s.loader.mu.Lock()
	err := s.reserve(s.count)
	p.index = s.placed.n
	s.placed.add(placed{})
	s.loader.mu.Unlock()
	if err == nil {
		s.mu.Lock()
		err = s.failed
		s.mu.Unlock()
	}
	if err != nil {
		return err
	}
	s.work <- p
	return nil
}

// build builds and places one run.
func (s *stream) build(p *piece) {
	r, err := newRun(p.data, limits{chunkBytes: s.chunkBytes, height: 255, short: true})
	var done placed
	var above uint64
	if err == nil {
		done, err = s.place(r, p.base, p.boundary)
		above = r.upper
		r.done()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.above += above
		s.loader.mu.Lock()
		*s.placed.at(p.index) = done
		s.loader.mu.Unlock()
	case s.failed == nil || p.base < s.at:
		s.failed, s.at = fmt.Errorf("from leaf %d on: %w", p.base, err), p.base
	}
}

// wait ends the workers and returns the error of the first run that failed.
func (s *stream) wait() error {
	close(s.work)
	s.wg.Wait()
	return s.failed
}
