package serve

import (
	"bytes"
	"errors"
	"fmt"
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
}

// cut is a state in chunks of a format.
type cut struct {
	m       *iavlsync.Manifest
	encoded []byte
	first   []int64 // of each chunk: its first leaf in its store
}

var errNotInBand = errors.New("no snapshot in-band: too many chunks, too long a manifest, or a leaf of 10 MB: joiners need starling-iavl")

// prepare makes what ABCI's calls answer from: these may hold up the chain, and must not read the
// state. It fails with errNotInBand if there is nothing to offer.
func (s *state) prepare() error {
	offered := false
	for _, f := range formats {
		c, err := newCut(s.State, f)
		if errors.Is(err, nodedb.ErrTooLarge) || err == nil && (len(c.encoded) > inBandManifestBytes || c.m.Chunks() > inBandChunks) {
			break // finer ones have more chunks
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.cuts[f] = c
		s.mu.Unlock()
		if offered {
			continue
		}
		if offered, err = s.fits(c); err != nil {
			return err
		}
		if !offered {
			continue
		}
		offer, err := s.snapshot(c, f)
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
		b, err := s.chunk(c, k)
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

// chunk returns chunk k; nil: it is too long to travel whole.
func (s *state) chunk(c *cut, k int) ([]byte, error) {
	i, e := c.m.At(k)
	store := &c.m.Stores[i]
	b, err := s.Answer(&iavlsync.Request{Height: s.Height(), Store: store.Name, First: c.first[k], Leaves: store.Entries[e].Root.Size})
	if err != nil {
		return nil, err
	}
	if kind, b, err := iavlsync.SplitAnswer(b); err != nil || kind == iavlsync.AnswerWhole {
		return b, err
	}
	return nil, nil
}

func (s *state) snapshot(c *cut, f iavlsync.Format) (*abci.Snapshot, error) {
	hash, err := c.m.AppHash()
	if err != nil {
		return nil, err
	}
	return &abci.Snapshot{Height: uint64(s.Height()), Format: uint32(f), Chunks: uint32(c.m.Chunks()), Hash: hash[:], Metadata: c.encoded}, nil
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
	c := s.cuts[iavlsync.Format(r.Format)]
	s.mu.Unlock()
	if c == nil || uint64(r.Chunk) >= uint64(c.m.Chunks()) {
		return none, nil
	}
	b, err := s.chunk(c, int(r.Chunk))
	if err != nil {
		a.logger.Error("a chunk could not be read", "height", r.Height, "chunk", r.Chunk, "err", err)
		return none, nil //nolint:nilerr // others may have it
	}
	if len(b) >= inBandChunkBytes {
		return none, nil
	}
	return &abci.ResponseLoadSnapshotChunk{Chunk: b}, nil
}

// joining is a state that arrives in-band.
type joining struct {
	m         *iavlsync.Manifest
	installer *nodedb.Installer
}

// OfferSnapshot implements servertypes.ABCI. A snapshot of ours is proved by the app hash before
// any chunk is asked for. CometBFT's key of a snapshot joins hash and metadata without a separator:
// so another split of them is not its senders' lie.
func (a *App) OfferSnapshot(r *abci.RequestOfferSnapshot) (*abci.ResponseOfferSnapshot, error) {
	answer := func(result abci.ResponseOfferSnapshot_Result) (*abci.ResponseOfferSnapshot, error) {
		return &abci.ResponseOfferSnapshot{Result: result}, nil
	}
	s := r.Snapshot
	if s == nil || !isOurs(s.Format) {
		// The SDK's restore would take our chunks for its own, and write over nodes of ours.
		if _, begun, err := nodedb.Unfinished(nodedb.Of(a.db)); a.joining != nil || err != nil || begun != nil {
			a.logger.Error("a join in verified chunks is not finished: start again to resume it, or with an empty database", "err", err)
			return answer(abci.ResponseOfferSnapshot_ABORT)
		}
		return a.Application.OfferSnapshot(r)
	}
	joined := append(bytes.Clone(s.Hash), s.Metadata...)
	encoded, ok := bytes.CutPrefix(joined, r.AppHash)
	if !ok || len(r.AppHash) != len(iavlsync.Hash{}) {
		return answer(abci.ResponseOfferSnapshot_REJECT_SENDER)
	}
	m, err := iavlsync.VerifyManifest(iavlsync.Format(s.Format), encoded, int64(s.Height), iavlsync.Hash(r.AppHash))
	switch {
	case err != nil:
		a.logger.Error("a snapshot is not the state's", "height", s.Height, "err", err)
		return answer(abci.ResponseOfferSnapshot_REJECT_SENDER)
	case uint32(m.Chunks()) != s.Chunks || m.Chunks() == 0:
		return answer(abci.ResponseOfferSnapshot_REJECT)
	}
	if err := a.refuse(m); err != nil {
		a.logger.Error("the state cannot be joined in-band", "height", s.Height, "err", err)
		return answer(abci.ResponseOfferSnapshot_REJECT_FORMAT)
	}
	a.joining = &joining{m: m}
	if a.joining.installer, err = nodedb.NewInstaller(nodedb.Of(a.db), m); err != nil {
		a.joining = nil
		a.logger.Error("the database cannot be joined into", "err", err)
		return answer(abci.ResponseOfferSnapshot_ABORT)
	}
	return answer(abci.ResponseOfferSnapshot_ACCEPT)
}

// filesBeside are stores of modules that keep files beside the database. The SDK's own snapshots
// carry these files as extensions; the app hash does not bind them.
var filesBeside = []string{"wasm", "08-wasm"}

func (a *App) refuse(m *iavlsync.Manifest) error {
	for i := range m.Stores {
		for _, name := range filesBeside {
			if m.Stores[i].Name == name && len(m.Stores[i].Entries) > 0 {
				return fmt.Errorf("store %q: its module keeps files beside the database, which do not come with it", name)
			}
		}
	}
	return nil
}

// ApplySnapshotChunk implements servertypes.ABCI. A chunk that is not the state's is re-requested
// from others.
func (a *App) ApplySnapshotChunk(r *abci.RequestApplySnapshotChunk) (*abci.ResponseApplySnapshotChunk, error) {
	j := a.joining
	if j == nil {
		return a.Application.ApplySnapshotChunk(r)
	}
	abort := func(err error) (*abci.ResponseApplySnapshotChunk, error) {
		a.logger.Error("the join failed", "chunk", r.Index, "err", err)
		return &abci.ResponseApplySnapshotChunk{Result: abci.ResponseApplySnapshotChunk_ABORT}, nil
	}
	if int(r.Index) >= j.m.Chunks() {
		return abort(errors.New("no such chunk"))
	}
	i, e := j.m.At(int(r.Index))
	c, err := iavlsync.VerifyChunk(&j.m.Stores[i].Entries[e].Root, r.Chunk)
	if err != nil {
		a.logger.Error("a chunk is not the state's", "chunk", r.Index, "sender", r.Sender, "err", err)
		return &abci.ResponseApplySnapshotChunk{Result: abci.ResponseApplySnapshotChunk_RETRY,
			RefetchChunks: []uint32{r.Index}, RejectSenders: []string{r.Sender}}, nil //nolint:nilerr // it is the sender's
	}
	if err := j.installer.Install(int(r.Index), c, nil); err != nil {
		return abort(err)
	}
	if len(j.installer.Missing()) == 0 {
		if err := j.installer.Finish(); err != nil {
			return abort(err)
		}
		a.joining = nil
		if err := a.CommitMultiStore().LoadLatestVersion(); err != nil {
			return abort(err)
		}
	}
	return &abci.ResponseApplySnapshotChunk{Result: abci.ResponseApplySnapshotChunk_ACCEPT}, nil
}
