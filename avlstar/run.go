package avlstar

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/avlstar/sha256mb"
)

// run is a complete subtree that was made from its leaf records, as in a chunk. Its nodes are
// numbered by their keys: inner node i has the key of leaf i; the inner node that has the key of
// leaf 0 is not part of the run. So the number of leaves before a run determines the refs of its
// nodes in a tree (load.go).
//
//	leaf       0   1   2   3        data, from offset at[i] on
//	inner          1   2   3        links[i], images[i]; refs in them count from the start of the run
type run struct {
	data   []byte
	at     []uint32
	links  []link
	images []image
	root   sub
	upper  uint64
	first  Hash // SHA256 of the least key
}

// limits holds what is known about a run before it is decoded.
type limits struct {
	chunkBytes uint64
	// No inner node may be higher. So there are at most 2^height leaves, and the verified height
	// limits the allocations.
	height uint8
	check  func(i int, l Leaf) error
	// short says that the run is short-lived: it reuses lists that another run gave back (done).
	short bool
}

// newRun decodes records and builds their subtree with its hashes. The run refers to data. The
// height of the first record is ignored.
func newRun(data []byte, lim limits) (*run, error) {
	r := new(run)
	if lim.short {
		r = spareRuns.take()
	}
	r.data = data
	if err := r.decode(lim); err != nil {
		return nil, err
	}
	s := getScratch(len(r.at))
	defer putScratch(s)
	if err := r.shape(lim, s); err != nil {
		return nil, err
	}
	r.hash(s)
	return r, nil
}

// spares holds runs of which only the lists are left. A sync.Pool would lose them in most garbage
// collections, which are frequent because a large tree is not in Go's heap.
type spares struct {
	sync.Mutex
	runs []*run
}

var spareRuns spares

const (
	maxSpareRuns = 8
	// maxSpareRun is the length above which the lists of a run are not kept: most chunks have fewer
	// leaves.
	maxSpareRun = 1 << 14
)

// take returns a spare run, or a new one.
func (s *spares) take() *run {
	s.Lock()
	defer s.Unlock()
	last := len(s.runs) - 1
	if last < 0 {
		return new(run)
	}
	r := s.runs[last]
	s.runs = s.runs[:last]
	return r
}

// forget leaves all spare runs to the garbage collector, when loading has ended.
func (s *spares) forget() {
	s.Lock()
	defer s.Unlock()
	s.runs = nil
}

// done gives back the lists of a short run, which must not be used any more.
func (r *run) done() {
	const most = maxSpareRun + maxSpareRun/8 // see resized
	if cap(r.links) <= most && cap(r.at) <= 2*most {
		spareRuns.Lock()
		defer spareRuns.Unlock()
		if len(spareRuns.runs) < maxSpareRuns {
			spareRuns.runs = append(spareRuns.runs, &run{at: r.at[:0], links: r.links[:0], images: r.images[:0]})
		}
	}
	r.at, r.links, r.images = nil, nil, nil
}

// resized returns a list of n elements, in the memory of s if that is enough. The content is
// arbitrary. A long list, as for a chunk, gets some extra capacity: chunks have similar lengths,
// and the next one may be a little longer.
func resized[T any](s []T, n int) []T {
	const long = 1 << 10
	switch {
	case n <= cap(s):
		return s[:n]
	case n < long:
		return make([]T, n)
	}
	return make([]T, n, n+n/8)
}

// len returns the number of leaves.
func (r *run) len() int { return len(r.at) }

// leaf returns leaf i, with the height in its record. The capacities of key and value exceed their
// lengths, so that they can be hashed in place.
func (r *run) leaf(i int) (l Leaf) {
	at := int(r.at[i])
	l.Height = r.data[at]
	n, at := record.Length(r.data, at+1)
	l.Key = r.data[at : at+n]
	n, at = record.Length(r.data, at+n)
	l.Value = r.data[at : at+n]
	return l
}

// end returns the offset at which record i ends.
func (r *run) end(i int) int {
	if i+1 < len(r.at) {
		return int(r.at[i+1])
	}
	return len(r.data)
}

// decode finds the records, and checks each of them and that their keys ascend.
func (r *run) decode(lim limits) error {
	if len(r.data) > math.MaxUint32 {
		return fmt.Errorf("%d bytes of records", len(r.data))
	}
	var before []byte
	r.at = resized(r.at, len(r.data)/64+1)[:0]
	for rest := r.data; len(rest) > 0; {
		i := len(r.at)
		l, after, err := record.Decode(rest)
		switch {
		case err != nil:
		case i > 0 && l.Height > lim.height:
			err = fmt.Errorf("height %d in a chunk of height %d", l.Height, lim.height)
		case lim.height < 32 && i >= 1<<lim.height:
			err = fmt.Errorf("more than 2^%d leaves in a chunk of height %d", lim.height, lim.height)
		case i > 0 && string(l.Key) <= string(before):
			err = fmt.Errorf("key %s does not ascend", abbreviate(l.Key))
		case lim.check != nil:
			err = lim.check(i, l)
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", i, err)
		}
		r.at = append(r.at, uint32(len(r.data)-len(rest)))
		before, rest = l.Key, after
	}
	if len(r.at) == 0 {
		return errors.New("it is empty")
	}
	return nil
}

// shape makes the nodes without their hashes.
func (r *run) shape(lim limits, s *scratch) error {
	n := r.len()
	// join sets its images and links completely, so only those of node 0, which does not exist,
	// must be cleared.
	r.links, r.images = resized(r.links, n), resized(r.images, n)
	r.links[0], r.images[0] = link{}, image{}
	b := builder{chunkBytes: lim.chunkBytes, join: func(k uint32, stat Stat, l, rt *sub) (ref, Hash) {
		r.links[k].child = [2]ref{l.n, rt.n}
		i := &r.images[k]
		*i = image{0: 0x01}
		i.setStat(left, l.Stat)
		i.setStat(right, rt.Stat)
		i.setLeaf(leafBit | ref(k))
		s.parent(l.n, k, left)
		s.parent(rt.n, k, right)
		s.heights.heights[k] = stat.Height
		return ref(k), Hash{} // hashed later
	}}
	for i := range n {
		l := r.leaf(i)
		r.links[i].prefix = prefixOf(l.Key)
		leaf := sub{Stub: Stub{Stat: Stat{Bytes: RecordBytes(len(l.Key), len(l.Value))}}, n: leafBit | ref(i)}
		if err := b.add(l.Height, &leaf); err != nil {
			return fmt.Errorf("record %d: %w", i, err)
		}
	}
	root, err := b.root()
	if err != nil {
		return err
	}
	r.root, r.upper = *root, b.upper
	s.parent(root.n, 0, left) // image 0 belongs to no node: the root's hash is written to it
	return nil
}

// hash computes the hashes of keys and values, then of the leaves, then level by level.
func (r *run) hash(s *scratch) {
	n := r.len()
	for i := range n {
		l := r.leaf(i)
		s.bulk.add(l.Key, r.images[i].keyHash())
		s.bulk.add(l.Value, &s.values[i])
	}
	s.bulk.flush()
	r.first = *r.images[0].keyHash()
	var leaves leafImages
	for i := range n {
		leaves.add(r.images[i].keyHash(), &s.values[i], s.to(r.images, leafBit|ref(i)))
	}
	leaves.flush()
	s.hashInner(r.images)
	r.root.Hash = *r.images[0].hash(left)
}

// scratch holds memory that newRun needs only while it runs.
type scratch struct {
	values         []Hash
	leafTo, nodeTo []uint32 // 2·parent + side of each leaf and inner node
	heights        levels   // heights of inner nodes; 0: there is none
	bulk           bulk
}

var scratchPool = sync.Pool{New: func() any { return new(scratch) }}

func getScratch(n int) *scratch {
	s := scratchPool.Get().(*scratch)
	s.values, s.leafTo, s.nodeTo = resized(s.values, n), resized(s.leafTo, n), resized(s.nodeTo, n)
	s.heights.heights = resized(s.heights.heights, n)
	s.heights.heights[0] = 0
	return s
}

// putScratch keeps s for the next run, unless it is much larger than most runs need.
func putScratch(s *scratch) {
	if cap(s.values) <= 1<<16 {
		scratchPool.Put(s)
	}
}

// parent records where the hash of n is written: child side of inner node k.
func (s *scratch) parent(n ref, k uint32, side int) {
	to := 2*k + uint32(side)
	if n.isLeaf() {
		s.leafTo[n&^leafBit] = to
	} else {
		s.nodeTo[n] = to
	}
}

// to returns where the hash of n is written.
func (s *scratch) to(images []image, n ref) *Hash {
	var to uint32
	if n.isLeaf() {
		to = s.leafTo[n&^leafBit]
	} else {
		to = s.nodeTo[n]
	}
	return images[to/2].hash(int(to % 2))
}

// hashInner hashes the inner nodes, level by level, after the hashes of leaves and keys were
// written.
func (s *scratch) hashInner(images []image) {
	var b imageBatch
	for _, level := range s.heights.sort()[1:] { // without node 0
		for len(level) > 0 {
			some := level[:min(batch, len(level))]
			for i, n := range some {
				b.messages[i] = images[n].hashed()
			}
			sha256mb.Sum(b.out[:len(some)], b.messages[:len(some)])
			for i, n := range some {
				*s.to(images, ref(n)) = b.out[i]
			}
			level = level[len(some):]
		}
	}
}
