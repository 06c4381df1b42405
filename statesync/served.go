package statesync

import (
	"errors"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
)

// Served is a snapshot that somebody is served from over our own transport (package fastsync). It
// stays as it is until Release, whatever the chain does meanwhile.
type Served struct {
	m *Manager
	p *pin
}

// Serve returns the snapshot of a height, if it is there. Only a chunk of it marks it as asked for:
// see Options.Hold. The caller releases it.
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

// Heights returns the heights of all snapshots that can be served, ascending: also those that are
// only held because somebody asks for them, and those too large for CometBFT's messages. Those of
// which only a part is there are in Parts.
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

// Height is that of the block whose state it is.
func (s *Served) Height() int64 { return s.p.height }

// Commitment is what the app hash commits to.
func (s *Served) Commitment() avlstar.Commitment { return s.p.commitment() }

// Manifest is encoded; it must not be modified.
func (s *Served) Manifest() []byte { return s.p.manifest() }

// Chunk returns chunk k, which is the caller's. An index that is not there is an error; so is a
// snapshot on disk that turns out to be damaged, which is not served any more.
func (s *Served) Chunk(k uint32) ([]byte, error) {
	if err := s.check(k); err != nil {
		return nil, err
	}
	data, err := s.p.chunk(k)
	if err == nil {
		s.m.note(s.p) // not before: who only asks what there is holds nothing
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

// ChunkRange returns the bytes [from, to) of chunk k, which are the caller's. A range that is not
// there is an error; so is a damaged snapshot, as in Chunk. Of a snapshot in memory it costs what
// the range costs; on disk the whole chunk is read and verified, unless it was the last.
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

// RangeCost returns about how many bytes ChunkRange takes, the range included; 0 if there is no
// such range.
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

// Release gives it up.
func (s *Served) Release() { s.p.release() }
