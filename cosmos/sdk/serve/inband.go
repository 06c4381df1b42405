package serve

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
)

// Limits of in-band snapshots (docs/spec/iavl.md#in-band-snapshots).
const (
	inBandChunkBytes    = 10_000_000
	inBandManifestBytes = 3_999_900
	inBandChunks        = 100_000
)

// formats are the chunk formats, coarsest first. The first one that fits is offered.
var formats = []iavlsync.Format{iavlsync.Format8192, iavlsync.Format512, iavlsync.Format32}

func isOurs(format uint32) bool {
	_, known := iavlsync.Format(format).Leaves()
	return known
}

// state is a served state with its in-band snapshots.
type state struct {
	*nodedb.State
	frozen *frozen

	mu    sync.Mutex
	cuts  map[iavlsync.Format]*cut // the cuts that are ready; guarded by mu
	offer *abci.Snapshot           // nil if not ready, or not offered; guarded by mu
	files *extensions              // set before offer; nil without an SDK snapshot; guarded by mu
}

// cut describes the division of a state into chunks of one format.
type cut struct {
	m       *iavlsync.Manifest
	encoded []byte
	first   []int64 // index of each chunk's first leaf in its store
}

var errNotInBand = errors.New("the state does not fit into an in-band snapshot (too many chunks, manifest too large, or a chunk of 10 MB or more): joiners need starling-iavl")

// prepare computes the cuts and the offer that ABCI calls return. ABCI calls may delay the chain,
// so they must not read the whole state themselves. The chunks of files follow those of the state.
// The error is errNotInBand if the state fits none of the formats.
func (s *state) prepare(files *extensions) error {
	s.mu.Lock()
	s.files = files
	s.mu.Unlock()
	offered := false
	for _, f := range formats {
		c, err := newCut(s.State, f)
		if errors.Is(err, nodedb.ErrTooLarge) || err == nil && (files.outgrow(c)) {
			break // finer formats have even more chunks
		}
		if err != nil {
			return err
		}
		if name := keepsFiles(c.m); name != "" && files.len() == 0 {
			if files != nil {
				return fmt.Errorf("store %q: %w", name, errNoFilesInSnapshot)
			}
			return fmt.Errorf("store %q: %w", name, errNoSnapshot)
		}
		had := offered
		if !had {
			if offered, err = s.fits(c); err != nil {
				return err
			}
		}
		s.mu.Lock() // only after fits: peers may request formats that are not offered
		s.cuts[f] = c
		s.mu.Unlock()
		if had || !offered {
			continue
		}
		offer, err := s.snapshot(c, f, files)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.offer = offer
		s.mu.Unlock()
	}
	if !offered {
		return errNotInBand
	}
	return nil
}

// fits reports whether all chunks are within the size limit. It reads the whole state.
func (s *state) fits(c *cut) (bool, error) {
	for k := range c.m.Chunks() {
		b, err := s.chunk(c, k, s.Answer)
		if err != nil || b == nil || len(b) >= inBandChunkBytes {
			return false, err
		}
	}
	return true, nil
}

func newCut(s *nodedb.State, f iavlsync.Format) (*cut, error) {
	m, err := s.Manifest(f)
	if err != nil {
		return nil, err
	}
	c := &cut{m: m, encoded: m.Encode()}
	for i := range m.Stores {
		u, err := m.Upper(i)
		if err != nil {
			return nil, err
		}
		c.first = append(c.first, u.First...)
	}
	return c, nil
}

// chunk returns chunk k, read with the given method of s, or nil if it is too large for one
// response.
func (s *state) chunk(c *cut, k int, answer func(*iavlsync.Request) ([]byte, error)) ([]byte, error) {
	i, e := c.m.At(k)
	store := &c.m.Stores[i]
	b, err := answer(&iavlsync.Request{Height: s.Height(), Store: store.Name, First: c.first[k], Leaves: store.Entries[e].Root.Size})
	if err != nil {
		return nil, err
	}
	if kind, b, err := iavlsync.SplitAnswer(b); err != nil || kind == iavlsync.AnswerWhole {
		return b, err
	}
	return nil, nil
}

func (s *state) snapshot(c *cut, f iavlsync.Format, files *extensions) (*abci.Snapshot, error) {
	hash, err := c.m.AppHash()
	if err != nil {
		return nil, err
	}
	return &abci.Snapshot{Height: uint64(s.Height()), Format: uint32(f), Chunks: uint32(c.m.Chunks() + files.len()), Hash: hash[:],
		Metadata: slices.Concat(c.encoded, files.encode())}, nil
}

// ListSnapshots implements servertypes.ABCI. It returns the application's own snapshots, and one
// for each served state that is ready.
func (a *App) ListSnapshots(r *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	list, err := a.Application.ListSnapshots(r)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	served := append([]*state{}, a.served...)
	a.mu.Unlock()
	for _, s := range served {
		s.mu.Lock()
		if s.offer != nil {
			list.Snapshots = append(list.Snapshots, s.offer)
		}
		s.mu.Unlock()
	}
	return list, nil
}

// LoadSnapshotChunk implements servertypes.ABCI. It serves all formats, not only the offered one.
func (a *App) LoadSnapshotChunk(r *abci.RequestLoadSnapshotChunk) (*abci.ResponseLoadSnapshotChunk, error) {
	if !isOurs(r.Format) {
		return a.Application.LoadSnapshotChunk(r)
	}
	a.mu.Lock()
	var s *state
	for _, have := range a.served {
		if uint64(have.Height()) == r.Height {
			s = have
		}
	}
	a.mu.Unlock()
	none := &abci.ResponseLoadSnapshotChunk{}
	if s == nil {
		return none, nil
	}
	s.mu.Lock()
	c, files := s.cuts[iavlsync.Format(r.Format)], s.files
	s.mu.Unlock()
	if c == nil || uint64(r.Chunk) >= uint64(c.m.Chunks()+files.len()) {
		return none, nil
	}
	if k := int(r.Chunk) - c.m.Chunks(); k >= 0 {
		return &abci.ResponseLoadSnapshotChunk{Chunk: files.chunks[k]}, nil
	}
	b, err := s.chunk(c, int(r.Chunk), s.AnswerSoon) // the chain waits for this call
	if err != nil {
		a.logger.Error("failed to read a chunk", "height", r.Height, "chunk", r.Chunk, "err", err)
		return none, nil //nolint:nilerr // other peers may have the chunk
	}
	if len(b) >= inBandChunkBytes {
		return none, nil
	}
	return &abci.ResponseLoadSnapshotChunk{Chunk: b}, nil
}
