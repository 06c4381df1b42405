package serve

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"cosmossdk.io/store"
	"cosmossdk.io/store/snapshots"
	"cosmossdk.io/store/snapshots/types"
	storetypes "cosmossdk.io/store/types"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/spf13/cast"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
)

// joining is a state that arrives in-band.
//
//	chunks 0 … m-1, in any order ─▶ installer ─▶ the state is there
//	chunks m … m+e-1, in order   ─▶ all of them extensions? ─▶ the application's own snapshot manager
type joining struct {
	m         *iavlsync.Manifest
	installer *nodedb.Installer
	come      map[uint32]bool // chunks of the state, since it was offered
	hashes    [][]byte        // of the chunks of extensions
	complete  bool            // the state is there, and the next chunk is one of the extensions'
	files     [][]byte        // of these, what has come; the next chunk is the one after
}

var errUnfinished = errors.New("the database has a join that is not finished: start with state sync again to resume it, or remove data/application.db")

// filesKey is in the database from before a state that has extensions is visible, until these are
// restored.
var filesKey = []byte("starling-join/files")

var errNoFiles = errors.New("the database has a state whose files have not come: remove data/application.db and data/snapshots, and join again")

// lacksFiles fails with errNoFiles if a join has ended between its state and its extensions. One
// that ended before can be resumed.
func (a *App) lacksFiles() error {
	_, begun, err := nodedb.Unfinished(nodedb.Of(a.db))
	if err != nil || begun != nil {
		return err
	}
	lacks, err := a.db.Has(filesKey)
	if lacks {
		err = errors.Join(err, errNoFiles)
	}
	return err
}

// Info implements servertypes.ABCI. It fails for a state whose files have not come: CometBFT, which
// asks when it starts without state sync and has no block itself, would panic at the state's hash.
// With state sync it asks when the join is over.
func (a *App) Info(r *abci.RequestInfo) (*abci.ResponseInfo, error) {
	if a.joining == nil {
		if err := a.lacksFiles(); err != nil {
			return nil, err
		}
	}
	return a.Application.Info(r)
}

// InitChain implements servertypes.ABCI. IAVL would take the nodes of a join that is not finished
// for those of its latest version.
func (a *App) InitChain(r *abci.RequestInitChain) (*abci.ResponseInitChain, error) {
	if _, begun, err := nodedb.Unfinished(nodedb.Of(a.db)); err != nil || begun != nil {
		return nil, errors.Join(errUnfinished, err)
	}
	if err := a.lacksFiles(); err != nil {
		return nil, err
	}
	return a.Application.InitChain(r)
}

// OfferSnapshot implements servertypes.ABCI. A snapshot of ours is proved by the app hash before
// any chunk is asked for. CometBFT's key of a snapshot joins hash and metadata without a separator:
// so another split of them is not its senders' lie.
func (a *App) OfferSnapshot(r *abci.RequestOfferSnapshot) (*abci.ResponseOfferSnapshot, error) {
	answer := func(result abci.ResponseOfferSnapshot_Result) (*abci.ResponseOfferSnapshot, error) {
		return &abci.ResponseOfferSnapshot{Result: result}, nil
	}
	if err := a.lacksFiles(); err != nil {
		a.logger.Error("the database cannot be joined into", "err", err)
		return answer(abci.ResponseOfferSnapshot_ABORT)
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
	j, err := newJoining(s, encoded, iavlsync.Hash(r.AppHash))
	switch {
	case err != nil:
		a.logger.Error("a snapshot is not the state's", "height", s.Height, "err", err)
		return answer(abci.ResponseOfferSnapshot_REJECT_SENDER)
	case uint64(j.m.Chunks()+len(j.hashes)) != uint64(s.Chunks) || j.m.Chunks() == 0:
		return answer(abci.ResponseOfferSnapshot_REJECT)
	}
	if err := a.refuse(j); err != nil {
		a.logger.Error("the state cannot be joined by this snapshot", "height", s.Height, "err", err)
		return answer(abci.ResponseOfferSnapshot_REJECT)
	}
	if j.installer, err = nodedb.NewInstaller(nodedb.Of(a.db), j.m); err != nil {
		a.logger.Error("the database cannot be joined into", "err", err)
		return answer(abci.ResponseOfferSnapshot_ABORT)
	}
	a.joining = j
	return answer(abci.ResponseOfferSnapshot_ACCEPT)
}

// newJoining proves an offer: all but the hashes of extensions, which follow the manifest.
func newJoining(s *abci.Snapshot, b []byte, app iavlsync.Hash) (*joining, error) {
	encoded, rest, err := iavlsync.SplitManifest(iavlsync.Format(s.Format), b)
	if err != nil {
		return nil, err
	}
	m, err := iavlsync.VerifyManifest(iavlsync.Format(s.Format), encoded, int64(s.Height), app)
	if err != nil {
		return nil, err
	}
	if len(rest)%sha256.Size != 0 {
		return nil, fmt.Errorf("%d bytes of hashes after the manifest", len(rest))
	}
	j := &joining{m: m, come: map[uint32]bool{}}
	for ; len(rest) > 0; rest = rest[sha256.Size:] {
		j.hashes = append(j.hashes, rest[:sha256.Size])
	}
	return j, nil
}

// filesBeside are stores of modules that are known to keep files beside the database, which their
// extensions carry. No hash of the state binds these.
var filesBeside = []string{"wasm", "08-wasm"}

// keepsFiles returns the name of a store with leaves of such a module; empty: there is none.
func keepsFiles(m *iavlsync.Manifest) string {
	for i := range m.Stores {
		if s := &m.Stores[i]; slices.Contains(filesBeside, s.Name) && len(s.Entries) > 0 {
			return s.Name
		}
	}
	return ""
}

// refuse fails if what the snapshot lacks, or what the application does, would leave it without its
// files.
func (a *App) refuse(j *joining) error {
	if len(j.hashes) == 0 {
		if name := keepsFiles(j.m); name != "" {
			return fmt.Errorf("store %q: its module keeps files beside the database, which do not come with this snapshot", name)
		}
		return nil
	}
	if keepsFiles(j.m) == "" {
		return errors.New("files come with it that no hash of the chain binds, and it has no store of a module that is known to keep any")
	}
	if len(j.hashes) > maxExtensions {
		return errLargeExtensions
	}
	manager := a.SnapshotManager()
	if manager == nil {
		return errors.New("files come with it, and the application has no snapshot manager that could take them")
	}
	// The manager keeps what it has restored as a snapshot, which is removed then: see restored.
	have, err := manager.List()
	if err == nil && len(have) > 0 {
		err = errors.New("the home has snapshots of another life: remove data/snapshots")
	}
	return err
}

// ApplySnapshotChunk implements servertypes.ABCI. A chunk that is not the state's is re-requested
// from others.
func (a *App) ApplySnapshotChunk(r *abci.RequestApplySnapshotChunk) (*abci.ResponseApplySnapshotChunk, error) {
	j := a.joining
	if j == nil {
		return a.Application.ApplySnapshotChunk(r)
	}
	abort := func(err error) (*abci.ResponseApplySnapshotChunk, error) {
		advice := "see the error"
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			advice = "make space on the disk"
		}
		if !j.complete {
			advice += "; start again to resume"
		}
		a.logger.Error("the join failed", "chunk", r.Index, "missing", len(j.installer.Missing()), "of", j.m.Chunks(), "err", err, "advice", advice)
		return &abci.ResponseApplySnapshotChunk{Result: abci.ResponseApplySnapshotChunk_ABORT}, nil
	}
	again := func(senders ...string) (*abci.ResponseApplySnapshotChunk, error) {
		return &abci.ResponseApplySnapshotChunk{Result: abci.ResponseApplySnapshotChunk_RETRY,
			RefetchChunks: []uint32{r.Index}, RejectSenders: senders}, nil
	}
	accept := &abci.ResponseApplySnapshotChunk{Result: abci.ResponseApplySnapshotChunk_ACCEPT}
	if k := int(r.Index) - j.m.Chunks(); k >= 0 {
		switch {
		case k >= len(j.hashes):
			return abort(errors.New("no such chunk"))
		case sha256.Sum256(r.Chunk) != [sha256.Size]byte(j.hashes[k]):
			a.logger.Error("a chunk is not the snapshot's", "chunk", r.Index, "sender", r.Sender)
			return again(r.Sender)
		case !j.complete || k > len(j.files):
			return again() // CometBFT keeps the order, others may not
		case k < len(j.files):
			return accept, nil
		}
		if err := a.extend(j, r.Chunk); err != nil {
			return abort(fmt.Errorf("the state is there, but its files are not: remove data/application.db and data/snapshots, and join again: %w", err))
		}
		return accept, nil
	}
	i, e := j.m.At(int(r.Index))
	c, err := iavlsync.VerifyChunk(&j.m.Stores[i].Entries[e].Root, r.Chunk)
	if err != nil {
		a.logger.Error("a chunk is not the state's", "chunk", r.Index, "sender", r.Sender, "err", err)
		return again(r.Sender)
	}
	if j.complete {
		return accept, nil
	}
	if err := j.installer.Install(int(r.Index), c, nil); err != nil {
		return abort(err)
	}
	// A join that is resumed may miss none any more, but CometBFT brings all of them.
	j.come[r.Index] = true
	if len(j.come) == j.m.Chunks() {
		if err := a.finish(j); err != nil {
			return abort(err)
		}
	}
	return accept, nil
}

// finish makes the state visible. The restore of extensions may read it.
func (a *App) finish(j *joining) error {
	mark := a.db.DeleteSync // of an earlier offer
	if len(j.hashes) > 0 {
		mark = func(key []byte) error { return a.db.SetSync(key, []byte{1}) }
	}
	if err := mark(filesKey); err != nil {
		return err
	}
	if err := j.installer.Finish(); err != nil {
		return err
	}
	if err := a.reload(); err != nil {
		return err
	}
	j.complete = true
	if len(j.hashes) == 0 {
		a.joining = nil
	}
	return nil
}

// extend takes the next chunk of extensions. When it has all, and they are nothing else, the
// application's own manager restores them, which calls RestoreExtension. No hash of the chain binds
// them: items of stores among them would be written over the state that was proved.
func (a *App) extend(j *joining, chunk []byte) error {
	if j.files = append(j.files, chunk); len(j.files) < len(j.hashes) {
		return nil
	}
	if err := onlyExtensions(j.files); err != nil {
		return err
	}
	manager := a.SnapshotManager()
	err := manager.Restore(types.Snapshot{Height: uint64(j.m.Height), Format: types.CurrentFormat,
		Chunks: uint32(len(j.hashes)), Metadata: types.Metadata{ChunkHashes: j.hashes}})
	if err != nil {
		return err
	}
	done := false
	for _, file := range j.files {
		if done, err = manager.RestoreChunk(file); err != nil {
			return err
		}
	}
	if !done {
		return errors.New("the application's snapshot manager waits for more")
	}
	a.joining = nil
	if err := restored(manager); err != nil {
		return err
	}
	return a.db.DeleteSync(filesKey)
}

// restored removes what a manager keeps as a snapshot of the SDK's format, which has no stores.
// There are no others: see refuse.
func restored(manager *snapshots.Manager) error {
	_, err := manager.Prune(0)
	return err
}

// reload opens the state that was joined. The cache between blocks keeps the stores that it was
// given first, which are empty: it has to be another one.
func (a *App) reload() error {
	var cache storetypes.MultiStorePersistentCache // none
	if cast.ToBool(a.options.Get(optionCache)) {
		cache = store.NewCommitKVStoreCacheManager()
	}
	a.CommitMultiStore().SetInterBlockCache(cache)
	return a.CommitMultiStore().LoadLatestVersion()
}
