package serve

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"syscall"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/spf13/cast"

	"github.com/starling-kv/starling/cosmos/codefiles"
	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
)

// joining is an in-band join in progress.
//
//	chunks 0 … m-1, in any order ─▶ installer ─▶ the state is complete
//	chunks m … m+e-1, in order   ─▶ all of them extensions? ─▶ the application's own snapshot manager
type joining struct {
	m         *iavlsync.Manifest
	installer *nodedb.Installer
	come      map[uint32]bool // chunks of the state received since the offer
	hashes    [][]byte        // SHA-256 of each extension chunk
	complete  bool            // the state is installed; extension chunks follow, if any
	files     [][]byte        // extension chunks received, in order
}

var errUnfinished = errors.New("the database has an unfinished join: restart with state sync enabled to resume it, or remove data/application.db")

// filesKey marks a database whose extensions are not restored yet. It is written before a state
// with extensions becomes visible, and deleted after the extensions are restored.
var filesKey = []byte("starling-join/files")

var errNoFiles = errors.New("the database has a state without its extension files: remove data/application.db and data/snapshots, and join again")

// lacksFiles returns errNoFiles if a join stopped after its state was installed and before its
// extensions were restored. A join that stopped earlier can be resumed.
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

// Info implements servertypes.ABCI. It fails for a state without its extension files. CometBFT
// calls Info when it starts without state sync; it has no blocks then, and would panic because of
// the state's app hash. With state sync, CometBFT calls Info after the join.
func (a *App) Info(r *abci.RequestInfo) (*abci.ResponseInfo, error) {
	if a.joining == nil {
		if err := a.lacksFiles(); err != nil {
			return nil, err
		}
	}
	return a.Application.Info(r)
}

// InitChain implements servertypes.ABCI. It fails after an unfinished join, since IAVL would treat
// the nodes of that join as its latest version.
func (a *App) InitChain(r *abci.RequestInitChain) (*abci.ResponseInitChain, error) {
	if _, begun, err := nodedb.Unfinished(nodedb.Of(a.db)); err != nil || begun != nil {
		return nil, errors.Join(errUnfinished, err)
	}
	if err := a.lacksFiles(); err != nil {
		return nil, err
	}
	return a.Application.InitChain(r)
}

// OfferSnapshot implements servertypes.ABCI. It verifies the manifest of a snapshot of ours against
// the app hash before any chunk is requested. CometBFT identifies a snapshot by its hash and
// metadata, concatenated without a separator. Peers whose hash and metadata are split elsewhere
// therefore share one snapshot, and the split is not evidence against a sender.
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
		// The SDK's restore would overwrite nodes that our join has installed. While a.joining is
		// set, ApplySnapshotChunk would also treat its chunks as ours. Peers can offer any snapshot
		// of the SDK without proof, so that does not end the join either.
		_, begun, err := nodedb.Unfinished(nodedb.Of(a.db))
		switch {
		case err != nil:
			a.logger.Error("the database cannot be joined into", "err", err)
			return answer(abci.ResponseOfferSnapshot_ABORT)
		case a.joining != nil || begun != nil:
			a.logger.Info("rejected the SDK's snapshot format: a join in verified chunks is unfinished; to use the SDK's, remove data/application.db and restart")
			return answer(abci.ResponseOfferSnapshot_REJECT_FORMAT)
		}
		a.restoring = s
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
		a.logger.Error("snapshot does not match the app hash", "height", s.Height, "err", err)
		return answer(abci.ResponseOfferSnapshot_REJECT_SENDER)
	case uint64(j.m.Chunks()+len(j.hashes)) != uint64(s.Chunks) || j.m.Chunks() == 0:
		return answer(abci.ResponseOfferSnapshot_REJECT)
	}
	if err := a.refuse(j); err != nil {
		a.logger.Error("rejected a snapshot", "height", s.Height, "err", err)
		return answer(abci.ResponseOfferSnapshot_REJECT)
	}
	db := nodedb.Of(a.db)
	j.installer, err = nodedb.NewInstaller(db, j.m)
	if errors.Is(err, nodedb.ErrOtherJoin) {
		// CometBFT offers the newest snapshot of its peers. It never offers one again that it has
		// given up, so the join in the database would never end.
		a.logger.Info("another state is offered: discarding an unfinished join", "height", s.Height)
		if err = nodedb.Discard(db); err == nil {
			j.installer, err = nodedb.NewInstaller(db, j.m)
		}
	}
	if err != nil {
		a.logger.Error("the database cannot be joined into", "err", err)
		return answer(abci.ResponseOfferSnapshot_ABORT)
	}
	j.installer.SnapshotInterval = a.interval
	a.joining = j
	return answer(abci.ResponseOfferSnapshot_ACCEPT)
}

// newJoining verifies the manifest of an offer against the app hash. The hashes of extension
// chunks, which follow the manifest, cannot be verified.
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
		return nil, fmt.Errorf("%d bytes after the manifest: not a multiple of the hash size", len(rest))
	}
	j := &joining{m: m, come: map[uint32]bool{}}
	for ; len(rest) > 0; rest = rest[sha256.Size:] {
		j.hashes = append(j.hashes, rest[:sha256.Size])
	}
	return j, nil
}

// keepsFiles returns the name of a non-empty store whose module keeps code in files, or "" if there
// is none. Extensions carry these files.
func keepsFiles(m *iavlsync.Manifest) string {
	for i := range m.Stores {
		if s := &m.Stores[i]; codefiles.Of(s.Name) != nil && len(s.Entries) > 0 {
			return s.Name
		}
	}
	return ""
}

// refuse returns an error if the snapshot's extensions are missing, unexpected or too large, or if
// the application cannot restore them.
func (a *App) refuse(j *joining) error {
	if len(j.hashes) == 0 {
		if name := keepsFiles(j.m); name != "" {
			return fmt.Errorf("store %q: its module keeps files outside the database, which this snapshot does not contain", name)
		}
		return nil
	}
	if keepsFiles(j.m) == "" {
		return errors.New("it contains extension files, which the app hash does not commit to, but no store of a module that is known to keep files")
	}
	if len(j.hashes) > maxExtensions {
		return errLargeExtensions
	}
	manager := a.SnapshotManager()
	if manager == nil {
		return errors.New("it contains extension files, but the application has no snapshot manager to restore them")
	}
	// The manager stores what it restores as a snapshot. Function restored deletes that snapshot
	// with all others, so there must be no others.
	have, err := manager.List()
	if err == nil && len(have) > 0 {
		err = errors.New("the home directory contains earlier snapshots: remove data/snapshots")
	}
	return err
}

// ApplySnapshotChunk implements servertypes.ABCI. A chunk that fails verification is requested
// again from other peers, and its sender is rejected.
func (a *App) ApplySnapshotChunk(r *abci.RequestApplySnapshotChunk) (*abci.ResponseApplySnapshotChunk, error) {
	j := a.joining
	if j == nil {
		return a.restore(r)
	}
	abort := func(err error) (*abci.ResponseApplySnapshotChunk, error) {
		advice := "see the error"
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			advice = "free disk space"
		}
		if !j.complete {
			advice += "; restart to resume"
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
			a.logger.Error("invalid extension chunk", "chunk", r.Index, "sender", r.Sender)
			return again(r.Sender)
		case !j.complete || k > len(j.files):
			return again() // CometBFT applies chunks in order, other callers may not
		case k < len(j.files):
			return accept, nil
		}
		if err := a.extend(j, r.Chunk); err != nil {
			return abort(fmt.Errorf("the state was installed, but its extension files were not restored: remove data/application.db and data/snapshots, and join again: %w", err))
		}
		return accept, nil
	}
	i, e := j.m.At(int(r.Index))
	c, err := iavlsync.VerifyChunk(&j.m.Stores[i].Entries[e].Root, r.Chunk)
	if err != nil {
		a.logger.Error("invalid chunk", "chunk", r.Index, "sender", r.Sender, "err", err)
		return again(r.Sender)
	}
	if j.complete {
		return accept, nil
	}
	if err := j.installer.Install(int(r.Index), c, nil); err != nil {
		return abort(err)
	}
	// CometBFT fetches all chunks, including those that a resumed join already has.
	j.come[r.Index] = true
	if len(j.come) == j.m.Chunks() {
		if err := a.finish(j); err != nil {
			return abort(err)
		}
	}
	return accept, nil
}

// restore passes a chunk of the SDK's format to the application. After the last one, pruning
// continues from the restored state, as after a join of ours (nodedb.SnapshotRecord).
func (a *App) restore(r *abci.RequestApplySnapshotChunk) (*abci.ResponseApplySnapshotChunk, error) {
	answer, err := a.Application.ApplySnapshotChunk(r)
	s := a.restoring
	if err != nil || s == nil || answer.Result != abci.ResponseApplySnapshotChunk_ACCEPT || r.Index+1 != s.Chunks {
		return answer, err
	}
	a.restoring = nil
	if record, ok := nodedb.SnapshotRecord(int64(s.Height), a.interval); ok {
		if err = a.db.SetSync(record.Key, record.Value); err == nil {
			err = a.reload()
		}
	}
	return answer, err
}

// finish makes the state visible, before the extensions are restored: their restore may read it.
func (a *App) finish(j *joining) error {
	mark := a.db.DeleteSync // a mark may be left from an earlier offer
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

// extend adds the next extension chunk. After the last one, it checks that the chunks contain only
// extension items and all code that the state commits to, and the application's snapshot manager
// restores them with RestoreExtension. The check is needed because the app hash does not commit to
// these chunks: store items among them would overwrite the verified state.
func (a *App) extend(j *joining, chunk []byte) error {
	if j.files = append(j.files, chunk); len(j.files) < len(j.hashes) {
		return nil
	}
	if err := verifyExtensions(j.files, nodedb.Of(a.db)); err != nil {
		return err
	}
	manager := a.SnapshotManager()
	err := manager.Restore(generation.Snapshot{Height: uint64(j.m.Height), Format: generation.CurrentFormat,
		Chunks: uint32(len(j.hashes)), Metadata: generation.Metadata{ChunkHashes: j.hashes}})
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
		return errors.New("the application's snapshot manager expects more chunks")
	}
	a.joining = nil
	if err := restored(manager); err != nil {
		return err
	}
	return a.db.DeleteSync(filesKey)
}

// restored deletes the snapshot that the manager has stored, because it contains no stores. The
// manager has no other snapshots: see refuse.
func restored(manager *generation.Manager) error {
	_, err := manager.Prune(0)
	return err
}

// reload opens the installed state. It replaces the inter-block cache, which still refers to the
// empty stores from before the join.
func (a *App) reload() error {
	var cache generation.MultiStorePersistentCache // none
	if cast.ToBool(a.options.Get(optionCache)) {
		cache = generation.NewCommitKVStoreCacheManager()
	}
	a.CommitMultiStore().SetInterBlockCache(cache)
	return a.CommitMultiStore().LoadLatestVersion()
}
