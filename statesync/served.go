package statesync

import (
	"errors"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
)

// Served is a snapshot being served over Starling's own transport (package serve). It stays valid
// until Release, whatever blocks are committed meanwhile.
type Served struct {
	m *Manager
	p *pin
}

// Serve returns the snapshot of a height, if available. Only a request for a chunk counts as a
// request: see Options.Hold. The caller releases the snapshot.
func (m *Manager) Serve(height int64) (*Served, bool) {
	if height <= 0 {
		return nil, false
	}
	p := m.find(uint64(height))
	if p == nil {
		return nil, false
	}
	return &Served{m, p}, true
}

// Heights returns the heights of all complete snapshots that can be served, ascending. It includes
// snapshots that are kept only because of requests, and those too large for CometBFT's messages.
// Incomplete ones are in Parts.
func (m *Manager) Heights() []int64 {
	m.serving.Lock()
	defer m.serving.Unlock()
	if m.serving.closed {
		return nil
	}
	heights := make([]int64, 0, len(m.serving.pins))
	for _, p := range m.serving.pins {
		if p.part == nil {
			heights = append(heights, p.height)
		}
	}
	return heights
}

// Height returns the height of the block after which the state was taken.
func (s *Served) Height() int64 { return s.p.height }

// Commitment returns the commitment behind the app hash.
func (s *Served) Commitment() avlstar.Commitment { return s.p.commitment() }

// Manifest returns the encoded manifest; it must not be modified.
func (s *Served) Manifest() []byte { return s.p.manifest() }

// Chunk returns chunk k; the caller owns it. It fails if there is no such chunk, or if the snapshot
// on disk is damaged; a damaged snapshot is no longer served.
func (s *Served) Chunk(k uint32) ([]byte, error) {
	if err := s.check(k); err != nil {
		return nil, err
	}
	data, err := s.p.chunk(k)
	if err == nil {
		s.m.note(s.p) // only now: a peer that only asks what is available holds nothing
		s.m.opts.Metrics.chunkServed(len(data))
	}
	return data, s.damaged(err)
}

// ChunkBytes returns the length of chunk k, and whether there is one.
func (s *Served) ChunkBytes(k uint32) (n uint64, ok bool) {
	if k >= s.p.numChunks() {
		return 0, false
	}
	return s.p.chunkBytes(k), true
}

// ChunkRange returns the bytes [from, to) of chunk k; the caller owns them. It fails if there is no
// such range, or if the snapshot is damaged, as in Chunk. For a snapshot in memory, the cost is
// that of the range. On disk, the whole chunk is read and verified, unless it was also the previous
// one.
func (s *Served) ChunkRange(k uint32, from, to uint64) ([]byte, error) {
	n, ok := s.ChunkBytes(k)
	switch {
	case !ok || from > to || to > n:
		return nil, fmt.Errorf("no range [%d, %d) of chunk %d", from, to, k)
	case from == 0 && to == n:
		return s.Chunk(k)
	}
	data, err := s.p.chunkRange(k, from, to)
	if err == nil {
		s.m.note(s.p)
		s.m.opts.Metrics.chunkServed(len(data))
	}
	return data, s.damaged(err)
}

// RangeCost returns approximately how many bytes ChunkRange processes, the range included, or 0 if
// there is no such range.
func (s *Served) RangeCost(k uint32, from, to uint64) uint64 {
	n, ok := s.ChunkBytes(k)
	if !ok || from > to || to > n {
		return 0
	}
	return s.p.rangeCost(k, from, to)
}

// SubManifest returns the encoded manifest of chunk k, cut into pieces of at most limit bytes.
func (s *Served) SubManifest(k uint32, limit uint64) ([]byte, error) {
	if err := s.check(k); err != nil {
		return nil, err
	}
	cut, err := s.p.cut(k, limit)
	if err != nil {
		return nil, s.damaged(err)
	}
	return cut.Manifest().Encode(), nil
}

func (s *Served) check(k uint32) error {
	if n := s.p.numChunks(); k >= n {
		return fmt.Errorf("no chunk %d, the snapshot has %d", k, n)
	}
	return nil
}

func (s *Served) damaged(err error) error {
	if errors.Is(err, ErrDamagedPin) {
		s.m.remove(s.p, err)
	}
	return err
}

// Release releases the snapshot.
func (s *Served) Release() { s.p.release() }
