package nodedb

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// sweep holds the newest leaf and the newest inner node with each key, from one pass over the node
// records of a store in database order. For the keys in the tree, these are the tree's nodes: a
// node in the trees of two versions is in all trees between, and no tree has two leaves, or two
// inner nodes, with the same key. So no node has to be looked up.
//
//	records of nodes ─▶ key ─▶ slot   (newest wins)      one pass, on s.processors
//	fast index       ─▶ key ─▶ slot ─▶ chunk             for each chunk
//
// Chunks made from a sweep are verified, so damaged records and collisions of tags are harmless. A
// sweep takes 20 bytes per leaf (slots of 16 bytes, a fifth of them free). It is dropped when all
// leaves have been requested, after sweepIdle without requests, or when its state is closed.
type sweep struct {
	height  int64
	seed    maphash.Seed
	regions []region
	limit   int64 // maximum number of records

	records atomic.Int64 // records so far
	failed  atomic.Bool
}

// region is a part of the hash table, with open addressing.
type region struct {
	mu    sync.Mutex
	slots []slot // guarded by mu until the pass is complete; read-only afterwards
	used  int    // used slots: < len(slots), so that each search ends; guarded by mu
}

// slot has the newest nodes with a key.
type slot struct {
	tag    uint32 // a part of the key's hash; 0: the slot is free
	leaf   uint32 // 1 + how far the leaf's version is below the height; 0: no leaf
	inner  uint32 // the same for the inner node with this key
	travel uint32 // of the inner node: height << aboveBits | above
}

const (
	aboveBits    = 26
	regionLeaves = 1 << 14
	regionBuffer = 64 // records written to a region at a time
	// worthRecords is the maximum number of records read per leaf: two for a leaf and an inner node
	// of the tree, and those of older versions that are not pruned. A walk takes as long as reading
	// 5 to 15 records per leaf.
	worthRecords = 8
	mostSwept    = 1 << 25 // maximum number of leaves in all sweeps, to limit memory
	sweepPieces  = 64      // ranges of versions, which processors take one by one
	sweepReport  = 1 << 10 // records between two updates of the shared count
)

var errNoSweep = errors.New("a sweep would not save time")

// newSweep reads the records of a store with this number of leaves.
func newSweep(s *store, leaves int64) (*sweep, error) {
	n := leaves/regionLeaves + 1
	w := &sweep{height: s.height, seed: maphash.MakeSeed(), regions: make([]region, n), limit: worthRecords * leaves}
	oldest, err := s.oldest()
	if err != nil {
		return nil, err
	}
	if err := w.estimate(s, oldest); err != nil {
		return nil, err
	}
	size := leaves/n*5/4 + 64
	for i := range w.regions {
		w.regions[i].slots = make([]slot, size)
	}
	pieces := min(sweepPieces, s.height-oldest+1)
	at := func(i int64) int64 {
		hi, lo := bits.Mul64(uint64(s.height-oldest+1), uint64(i))
		q, _ := bits.Div64(hi, lo, uint64(pieces))
		return oldest + int64(q)
	}
	err = parallelUpTo(s.processors, int(pieces), func(i int) error {
		newer := pieces - int64(i) // newest first, so that older records change no slots
		return w.read(s, at(newer-1), at(newer))
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// oldest returns the version of the first node in the database.
func (s *store) oldest() (version int64, err error) {
	it, err := s.db.Iterator(s.key(kindNode, nil), s.key(kindNode, nodeKey(s.height+1, 0)))
	if err != nil {
		return 0, err
	}
	defer it.Close() //nolint:errcheck // only read from
	if !it.Valid() || len(it.Key()) != len(s.prefix)+1+nodeKeyBytes {
		return 0, errors.Join(errNoSweep, it.Error())
	}
	version, _ = splitNodeKey(it.Key()[len(s.prefix)+1:])
	if version < 1 || version > s.height {
		return 0, errNoSweep
	}
	return version, nil
}

const (
	samples    = 32 // number of versions whose nodes estimate counts
	sampleMost = 1 << 10
)

// estimate fails if a sample of versions shows too many records for a pass over all of them. If the
// sample misses them, read stops at the limit.
func (w *sweep) estimate(s *store, oldest int64) error {
	versions := w.height - oldest + 1
	if versions <= samples {
		return nil
	}
	seen, step := int64(0), versions/samples
	for i := range int64(samples) {
		v := oldest + i*step + int64(maphash.Comparable(w.seed, i)%uint64(step))
		it, err := s.db.Iterator(s.key(kindNode, nodeKey(v, 0)), s.key(kindNode, nodeKey(v+1, 0)))
		if err != nil {
			return err
		}
		for n := 0; n < sampleMost && it.Valid(); n++ {
			seen++
			it.Next()
		}
		if err := errors.Join(it.Error(), it.Close()); err != nil {
			return err
		}
	}
	if hi, lo := bits.Mul64(uint64(seen), uint64(step)); hi > 0 || lo > uint64(w.limit) {
		return errNoSweep
	}
	return nil
}

// read reads the nodes of the versions in [from, to).
func (w *sweep) read(s *store, from, to int64) (err error) {
	it, err := s.db.Iterator(s.key(kindNode, nodeKey(from, 0)), s.key(kindNode, nodeKey(to, 0)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	prefix := len(s.prefix) + 1
	buffers := make([][]found, len(w.regions))
	for n := int64(1); it.Valid(); n++ {
		if n%sweepReport == 0 && (w.records.Add(sweepReport) > w.limit || w.failed.Load()) {
			return errNoSweep
		}
		if key := it.Key(); len(key) == prefix+nodeKeyBytes {
			version, _ := splitNodeKey(key[prefix:])
			if f, ok := w.decode(version, it.Value()); ok {
				i, _ := bits.Mul64(f.hash, uint64(len(w.regions)))
				if buffers[i] = append(buffers[i], f); len(buffers[i]) == regionBuffer {
					if !w.put(int(i), buffers[i]) {
						return errNoSweep
					}
					buffers[i] = buffers[i][:0]
				}
			}
		}
		it.Next()
	}
	for i, b := range buffers {
		if !w.put(i, b) {
			return errNoSweep
		}
	}
	return it.Error()
}

// found is a record's part of a slot.
type found struct {
	hash   uint64
	age    uint32 // 1 + how far the node's version is below the height
	travel uint32 // as in slot; 0: the record is a leaf
}

// decode decodes the record of a node. It returns false if the record does not fit a slot; chunks
// with this node are then made without the sweep.
func (w *sweep) decode(version int64, b []byte) (f found, ok bool) {
	below := w.height - version
	if len(b) == 0 || b[0] == kindNode || below < 0 || below >= math.MaxUint32 {
		return f, false // the root of another version, or of an empty store
	}
	f.age = uint32(below + 1)
	d := decoder{b: b}
	var n iavlsync.Node
	d.head(&n)
	f.hash = maphash.Bytes(w.seed, n.Key)
	if n.Height == 0 {
		return f, d.err == nil
	}
	d.bytes() // hash
	d.mode()
	left := d.varint(1, version)
	d.varint(0, math.MaxUint32)
	above := version - max(left, d.varint(1, version))
	f.travel = uint32(n.Height)<<aboveBits | uint32(above)
	return f, d.err == nil && above < 1<<aboveBits && n.Height < 1<<(32-aboveBits)
}

// put writes decoded records to a region. It returns false if the region is full, because the
// records have too many keys that the tree no longer has.
func (w *sweep) put(i int, all []found) bool {
	r := &w.regions[i]
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.failed.Load() {
		return false
	}
	for _, f := range all {
		s := r.slot(w.place(f.hash))
		if s.tag == 0 {
			if r.used+1 >= len(r.slots) {
				w.failed.Store(true)
				return false
			}
			r.used++
			s.tag = tagOf(f.hash)
		}
		switch {
		case f.travel == 0 && (s.leaf == 0 || f.age < s.leaf):
			s.leaf = f.age
		case f.travel != 0 && (s.inner == 0 || f.age < s.inner):
			s.inner, s.travel = f.age, f.travel
		}
	}
	return true
}

func tagOf(hash uint64) uint32 { return uint32(hash) | 1 }

// slot returns the slot of a tag, or the free slot for it, searching from index at.
func (r *region) slot(at int, tag uint32) *slot {
	for r.slots[at].tag != tag && r.slots[at].tag != 0 {
		if at++; at == len(r.slots) {
			at = 0
		}
	}
	return &r.slots[at]
}

// place returns where the search for a hash starts in its region, and the hash's tag.
func (w *sweep) place(hash uint64) (at int, tag uint32) {
	i, rest := bits.Mul64(hash, uint64(len(w.regions)))
	p, _ := bits.Mul64(rest, uint64(len(w.regions[i].slots)))
	return int(p), tagOf(hash)
}

// get returns the leaf version and the inner node of a key. Version 0 or height 0 means unknown.
func (w *sweep) get(key []byte) (version int64, node inner) {
	hash := maphash.Bytes(w.seed, key)
	i, _ := bits.Mul64(hash, uint64(len(w.regions)))
	s := w.regions[i].slot(w.place(hash))
	if s.leaf != 0 {
		version = w.height + 1 - int64(s.leaf)
	}
	if s.inner != 0 {
		node = inner{uint8(s.travel >> aboveBits), int64(s.travel & (1<<aboveBits - 1))}
	}
	return version, node
}

// sweeping manages the sweep of a store.
type sweeping struct {
	mu    sync.Mutex
	asked int64       // requested leaves in chunks without a shape; guarded by mu
	begun bool        // a sweep was begun, or no sweep may be made anymore; guarded by mu
	done  bool        // no sweep may be kept anymore; guarded by mu
	took  int64       // leaves reserved in room; guarded by mu
	ready *sweep      // nil: no sweep; guarded by mu
	idle  *time.Timer // drops ready; nil: never set; guarded by mu
}

// sweepRoom is that of all states: a server may have several heights, and other joiners for each.
var sweepRoom = newRoom(mostSwept)

// room limits memory: the number of leaves by which sweeps may still grow.
type room struct{ leaves atomic.Int64 }

func newRoom(leaves int64) *room {
	r := new(room)
	r.leaves.Store(leaves)
	return r
}

// take reserves room for a sweep; give releases it. take returns false if there is too little.
func (r *room) take(leaves int64) bool {
	if r.leaves.Add(-leaves) < 0 {
		r.give(leaves)
		return false
	}
	return true
}

func (r *room) give(leaves int64) { r.leaves.Add(leaves) }

// sweepIdle is how long a sweep is kept without requests.
const sweepIdle = 10 * time.Minute

// worthSweep is the divisor of a store's size that gives the number of leaves read by walks before
// the store is swept: if there are many servers, each gets requests for only a few chunks.
const worthSweep = 32

// swept returns the sweep of a store for a chunk, or nil if there is none. size is the number of
// leaves in the store, leaves that in the chunk. If mayBegin is set, it makes a sweep if that saves
// time; other requests walk meanwhile.
func (s *store) swept(size, leaves int64, mayBegin bool) *sweep {
	w := &s.sweeping
	ready, begin := w.ask(size, leaves, mayBegin && leaves >= leastShape)
	if !begin {
		return ready
	}
	made, _ := newSweep(s, size) // ignore errors: the walk reads the same records, and reports them
	w.keep(made, size)
	return made
}

// ask records a request for leaves of a store of this size. It returns the sweep, if there is one,
// or whether the caller must make a sweep and then call keep.
func (w *sweeping) ask(size, leaves int64, mayBegin bool) (ready *sweep, begin bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := w.asked < size
	w.asked += leaves
	if mayBegin && first && !w.begun && w.asked > size/worthSweep && sweepRoom.take(size) {
		w.begun, w.took = true, size
		return nil, true
	}
	if ready = w.ready; ready == nil {
		return nil, false
	}
	if w.asked >= size {
		w.drop()
	} else {
		w.idle.Reset(sweepIdle)
	}
	return ready, false
}

// keep keeps a new sweep, unless it is nil, or no further requests are expected.
func (w *sweeping) keep(made *sweep, size int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if made == nil {
		w.drop()
		return
	}
	w.ready = made
	w.idle = time.AfterFunc(sweepIdle, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.drop()
	})
	if w.done || w.asked >= size {
		w.drop()
	}
}

// drop frees the memory of the sweep. The caller holds mu.
func (w *sweeping) drop() {
	w.ready = nil
	sweepRoom.give(w.took)
	w.took = 0
	if w.idle != nil {
		w.idle.Stop()
	}
}

// close drops the sweep. A sweep in progress will not be kept.
func (w *sweeping) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun, w.done = true, true
	if w.ready != nil {
		w.drop()
	}
}

// lookup writes a subtree with this number of leaves from the fast index and a sweep.
func (w *scan) lookup(s *sweep, leaves int64) error {
	for i := range leaves {
		key, indexed, value, err := w.indexed()
		if err != nil {
			return err
		}
		version, node := s.get(key)
		if i > 0 {
			if w.gap = node; node.height == 0 {
				return fmt.Errorf("%w: no inner node has the key %.20x", errScan, key)
			}
		}
		if err := w.leaf(key, indexed, version, value); err != nil {
			return err
		}
	}
	return nil
}
