package snapshot

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

const (
	// manifestRange limits the length of one request for a manifest.
	manifestRange = 1 << 20
	// idleDrafts limits the drafts of a manifest that are kept in addition to those that grow;
	// idleSketches limits the heights. A draft holds only received bytes, at most 70·m.
	idleDrafts   = 8
	idleSketches = 8
)

// sketches holds the received parts of manifests, by height, until one is proved. An abandoned
// request continues from there.
type sketches struct {
	sync.Mutex
	of    map[int64]*sketch
	order []int64 // ascending by last use
}

// at returns the sketch of the manifest of a height. It forgets the least recently used heights.
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

// received returns the number of bytes received of the manifest of a height, from all peers.
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

// sketch holds the received parts of the manifest of one height.
type sketch struct {
	height  int64
	appHash avlstar.Hash // proved
	mu      struct {
		sync.Mutex
		limit  uint64            // maximum length of the manifest; 0: no commitment proved yet
		proved *avlstar.Manifest // nil: none yet
		of     map[transport.ID]*draft
		// received counts the bytes of forgotten drafts, so that the total never decreases.
		received int64
	}
}

// draft is what one peer has sent of a manifest. A manifest can be proved only as a whole. So if a
// peer continues what others have sent, and the whole is invalid, the peer is asked for the
// beginning too. Then all bytes are its own, and prove that it is Byzantine.
type draft struct {
	asking   chan struct{} // holds an element while the peer is being asked
	received atomic.Int64  // holds an element while the peer is being asked

	// Guarded by sketch.mu.
	doubtful bool     // a manifest that began with it was invalid
	from     *draft   // the draft that it continues; nil: none
	base     [][]byte // that draft's bytes
	tail     []byte   // what the peer sent after base
	ended    bool     // tail reaches the end of the manifest
	failed   bool     // base and tail together are invalid
	head     []byte   // what the peer sent in place of base
	short    bool     // the peer has no more than head
}

// bound sets the maximum length of the manifest from the proved commitment.
func (s *sketch) bound(c avlstar.Commitment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.limit = max(protocol.EntryBytes*uint64(c.Chunks), 16)
}

func (s *sketch) bounded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.limit > 0
}

// receivedFrom returns the number of bytes received from a peer.
func (s *sketch) receivedFrom(id transport.ID) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.mu.of[id]; d != nil {
		return d.received.Load()
	}
	return 0
}

// draft returns the draft of a peer, which continues the longest beginning that any peer has sent.
// It waits until an abandoned call to the peer has returned. The caller must call rest when it is
// done with the peer.
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
	if d.ended {
		return d, nil
	}
	for _, other := range s.mu.of {
		if n := other.length(); !other.doubtful && !other.failed && n > d.length() && uint64(n) < s.mu.limit {
			if d.base == nil {
				d.head = d.tail // these are the peer's own bytes, too
			}
			d.from, d.base, d.tail = other, other.beginning(), nil
		}
	}
	return d, nil
}

// rest ends the use of a draft. It forgets the shortest of the idle drafts.
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

// length returns the number of bytes of base and tail.
func (d *draft) length() (n int) {
	for _, part := range d.base {
		n += len(part)
	}
	return n + len(d.tail)
}

// own returns the number of bytes that the peer itself sent.
func (d *draft) own() int { return len(d.head) + len(d.tail) }

func (d *draft) beginning() [][]byte {
	n := len(d.tail)
	return append(slices.Clone(d.base), d.tail[:n:n]) // appending to tail does not change it
}

// next returns the range to request from the peer. A length of 0 proves that the peer is Byzantine:
// it sent more bytes than the manifest can have.
func (s *sketch) next(d *draft) (r protocol.ManifestRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Height = s.height
	left := s.mu.limit
	switch {
	case d.ended:
		r.Offset = uint64(len(d.head))
		left = uint64(d.length()-len(d.tail)) - r.Offset
	default:
		r.Offset = uint64(d.length())
		left -= min(left, r.Offset)
	}
	r.Length = uint32(min(left, manifestRange))
	return r
}

// took adds received bytes of a range. all: the call succeeded; otherwise it failed and b is what
// arrived before.
func (s *sketch) took(d *draft, r protocol.ManifestRequest, b []byte, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := all && len(b) < int(r.Length)
	switch {
	case d.ended:
		d.head = append(d.head, b...)
		d.short = last
	default:
		d.tail = append(d.tail, b...)
		d.ended = last
	}
}

// whole returns the bytes of a complete manifest, or nil while some are missing.
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

// refuted records that the result of whole is invalid. It returns true if that proves that the peer
// is Byzantine, because it sent all bytes.
func (s *sketch) refuted(d *draft) (lied bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.proved != nil {
		return false // proved meanwhile: the drafts are no longer kept
	}
	lied = d.failed || d.base == nil
	if d.from != nil {
		d.from.doubtful = !lied
	}
	d.failed = true
	return lied
}

// proved returns the manifest once it is proved, or nil.
func (s *sketch) proved() *avlstar.Manifest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.proved
}

// prove verifies and stores a manifest.
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

// forget drops the bytes of a Byzantine peer.
func (s *sketch) forget(id transport.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(id)
}
