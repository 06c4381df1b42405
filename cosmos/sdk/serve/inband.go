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

// Bounds of in-band snapshots (docs/spec/iavl.md#in-band-snapshots).
const (
	inBandChunkBytes    = 10_000_000
	inBandManifestBytes = 3_999_900
	inBandChunks        = 100_000
)

// formats are those of which one is offered, the coarsest first.
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
	cuts  map[iavlsync.Format]*cut // those that are ready; guarded by mu
	offer *abci.Snapshot           // nil: it is not ready, or there is none; guarded by mu
	files *extensions              // set before offer; nil: the SDK has no snapshot; guarded by mu
}

// cut is a state in chunks of a format.
type cut struct {
	m       *iavlsync.Manifest
	encoded []byte
	first   []int64 // of each chunk: its first leaf in its store
}

var errNotInBand = errors.New("no snapshot in-band: too many chunks, too long a manifest, or a leaf of 10 MB: joiners need starling-iavl")

// prepare makes what ABCI's calls answer from: these may hold up the chain, and must not read the
// state. files travel after its chunks. It fails with errNotInBand if there is nothing to offer.
func (s *state) prepare(files *extensions) error {
	s.mu.Lock()
	s.files = files
	s.mu.Unlock()
	offered := false
	for _, f := range formats {
		c, err := newCut(s.State, f)
		if errors.Is(err, nodedb.ErrTooLarge) || err == nil && (files.outgrow(c)) {
			break // finer ones have more chunks
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
		s.mu.Lock() // not before: peers may ask for what was not offered
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

// fits reports whether all chunks are short enough. It reads the state.
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

// chunk returns chunk k, as a method of s answers; nil: it is too long to travel whole.
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

// ListSnapshots implements servertypes.ABCI: the application's own snapshots, and one of each
// state.
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

// LoadSnapshotChunk implements servertypes.ABCI. It answers in all formats, whichever was offered.
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
	b, err := s.chunk(c, int(r.Chunk), s.AnswerSoon) // the chain waits
	if err != nil {
		a.logger.Error("a chunk could not be read", "height", r.Height, "chunk", r.Chunk, "err", err)
		return none, nil //nolint:nilerr // others may have it
	}
	if len(b) >= inBandChunkBytes {
		return none, nil
	}
	return &abci.ResponseLoadSnapshotChunk{Chunk: b}, nil
}
