package fastsync

import (
	"bytes"
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/transport"
)

const (
	// manifestRange is the limit of what one request asks for of a manifest.
	manifestRange = 1 << 20
	// idleDrafts is how many drafts of a manifest are kept beside those that grow, and idleSketches
	// the same of heights. What is kept has arrived, and is at most 70·m bytes for each draft.
	idleDrafts   = 8
	idleSketches = 8
	maxAtOnce    = math.MaxUint32 // of a node of an older version
)

// sketches are what has come of manifests, by height, until one is proved. A question that is
// abandoned because others are faster continues from there.
type sketches struct {
	sync.Mutex
	of    map[int64]*sketch
	order []int64 // the heights, by when they were last asked for
}

// at returns what has come of the manifest of a height. It forgets the heights that were not asked
// for for longest.
func (s *sketches) at(height int64, appHash avlstar.Hash) *sketch {
	s.Lock()
	defer s.Unlock()
	if s.of == nil {
		s.of = map[int64]*sketch{}
	}
	k := s.of[height]
	if k == nil {
		k = &sketch{height: height, appHash: appHash}
		k.mu.of = map[transport.ID]*draft{}
		s.of[height] = k
	}
	s.order = append(slices.DeleteFunc(s.order, func(h int64) bool { return h == height }), height)
	for len(s.order) > idleSketches {
		delete(s.of, s.order[0])
		s.order = s.order[1:]
	}
	return k
}

// received returns how many bytes have come of the manifest of a height, from all peers.
func (s *sketches) received(height int64) int64 {
	s.Lock()
	k := s.of[height]
	s.Unlock()
	if k == nil {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	total := k.mu.received
	for _, d := range k.mu.of {
		total += d.received.Load()
	}
	return total
}

// sketch is what has come of the manifest of one height.
type sketch struct {
	height  int64
	appHash avlstar.Hash // proved
	mu      struct {
		sync.Mutex
		limit  uint64            // of the manifest, in bytes; 0: no commitment is proved yet
		proved *avlstar.Manifest // nil: none yet
		of     map[transport.ID]*draft
		// received is in bytes, of drafts that were forgotten: the sum never falls.
		received int64
	}
}

// draft is what one peer has given of a manifest. Nothing of a manifest is proved before all of it
// is here, so where one peer continues from what others gave, and that leads nowhere, it is asked
// for the beginning too. Then all is its own word, and proves that it lied.
type draft struct {
	asking   chan struct{} // has an element while the peer is asked
	received atomic.Int64  // bytes, of all questions

	// Guarded by sketch.mu.
	old      bool     // the peer refuses ranges: it gives all of it at once
	doubtful bool     // a manifest that began with it led nowhere
	from     *draft   // whose beginning it continues from; nil: it has its own
	base     [][]byte // that beginning
	tail     []byte   // what the peer said that comes after
	ended    bool     // tail is all of that
	failed   bool     // base and tail together lead nowhere
	head     []byte   // what the peer said instead of base
	short    bool     // head is all that it has to say
}

// bound notes what is proved of the manifest's length.
func (s *sketch) bound(c avlstar.Commitment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.limit = max(entryBytes*uint64(c.Chunks), 16)
}

func (s *sketch) bounded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.limit > 0
}

// receivedFrom returns how many bytes have come from a peer.
func (s *sketch) receivedFrom(id transport.ID) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.mu.of[id]; d != nil {
		return d.received.Load()
	}
	return 0
}

// draft returns that of a peer. It continues from the longest beginning that anybody gave. The
// caller calls rest when it has asked the peer. It waits for a question that was abandoned to
// return.
func (s *sketch) draft(ctx context.Context, id transport.ID) (*draft, error) {
	s.mu.Lock()
	d := s.mu.of[id]
	if d == nil {
		d = &draft{asking: make(chan struct{}, 1)}
		s.mu.of[id] = d
	}
	s.mu.Unlock()
	select {
	case d.asking <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.ended || d.old {
		return d, nil
	}
	for _, other := range s.mu.of {
		if n := other.length(); !other.doubtful && !other.failed && n > d.length() && uint64(n) < s.mu.limit {
			if d.base == nil {
				d.head = d.tail // its own word all the same
			}
			d.from, d.base, d.tail = other, other.beginning(), nil
		}
	}
	return d, nil
}

// rest ends what draft began. Of the drafts that do not grow it forgets the shortest.
func (s *sketch) rest(d *draft) {
	<-d.asking
	s.mu.Lock()
	defer s.mu.Unlock()
	var idle []transport.ID
	for id, d := range s.mu.of {
		if len(d.asking) == 0 {
			idle = append(idle, id)
		}
	}
	slices.SortFunc(idle, func(a, b transport.ID) int { return s.mu.of[b].own() - s.mu.of[a].own() })
	for _, id := range idle[min(idleDrafts, len(idle)):] {
		s.drop(id)
	}
}

// drop forgets a draft. The caller holds s.mu.
func (s *sketch) drop(id transport.ID) {
	if d := s.mu.of[id]; d != nil {
		s.mu.received += d.received.Load()
		delete(s.mu.of, id)
	}
}

// length is how long the beginning of the manifest is that the draft knows of.
func (d *draft) length() (n int) {
	for _, part := range d.base {
		n += len(part)
	}
	return n + len(d.tail)
}

// own is how much of the draft is the peer's own word.
func (d *draft) own() int { return len(d.head) + len(d.tail) }

func (d *draft) beginning() [][]byte {
	n := len(d.tail)
	return append(slices.Clone(d.base), d.tail[:n:n]) // appending to tail does not change it
}

// next returns the range to ask the peer for. A length of 0 proves that it lies: what it gave is
// longer than the manifest can be.
func (s *sketch) next(d *draft) (r manifestRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.height = s.height
	left := s.mu.limit
	switch {
	case d.old:
		r.length = uint32(min(left, maxAtOnce))
		return r
	case d.ended:
		r.offset = uint64(len(d.head))
		left = uint64(d.length()-len(d.tail)) - r.offset
	default:
		r.offset = uint64(d.length())
		left -= min(left, r.offset)
	}
	r.length = uint32(min(left, manifestRange))
	return r
}

// took adds what came of a range: all that the peer has of it, or what arrived before the question
// ended.
func (s *sketch) took(d *draft, r manifestRequest, b []byte, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := all && len(b) < int(r.length)
	switch {
	case d.old:
		if len(b) > len(d.tail) {
			d.tail = b
		}
		d.ended = all
	case d.ended:
		d.head = append(d.head, b...)
		d.short = last
	default:
		d.tail = append(d.tail, b...)
		d.ended = last
	}
}

// refused notes that a peer refuses ranges, as an older version does. It returns false if that was
// known: then it refuses everything.
func (s *sketch) refused(d *draft) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.old {
		return false
	}
	d.old, d.from, d.base, d.tail, d.head = true, nil, nil, nil, nil
	d.ended, d.failed, d.short = false, false, false // the next answer is all its own word
	return true
}

// body is that of a request for a range.
func (s *sketch) body(d *draft, r manifestRequest) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.old {
		return heightBody(s.height)
	}
	return r.encode()
}

// whole returns the manifest that a draft makes; nil while parts are missing.
func (s *sketch) whole(d *draft) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !d.ended:
		return nil
	case !d.failed:
		return slices.Concat(d.beginning()...)
	case d.short || len(d.head) == d.length()-len(d.tail):
		return slices.Concat(d.head, d.tail)
	}
	return nil
}

// refuted notes that what a draft made is no manifest. It reports whether that proves a lie of its
// peer: that all of it is its own word.
func (s *sketch) refuted(d *draft) (lied bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.proved != nil {
		return false // meanwhile: what it continued from is no longer kept
	}
	lied = d.failed || d.base == nil
	if d.from != nil {
		d.from.doubtful = !lied
	}
	d.failed = true
	return lied
}

// proved returns the manifest, once it is here.
func (s *sketch) proved() *avlstar.Manifest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.proved
}

// prove verifies a manifest, and keeps it.
func (s *sketch) prove(b []byte) error {
	m, err := avlstar.VerifyManifest(b, s.appHash)
	if err != nil {
		return err
	}
	if !bytes.Equal(m.Encode(), b) {
		return avlstar.ErrInvalidManifest
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.proved = m
	for _, d := range s.mu.of {
		d.base, d.tail, d.head = nil, nil, nil
	}
	return nil
}

// forget drops what a liar gave.
func (s *sketch) forget(id transport.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(id)
}
