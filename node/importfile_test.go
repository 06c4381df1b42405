package node

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	dbm "github.com/cometbft/cometbft-db"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync/archive"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// exportOf exports a snapshot of a stopped node into a new folder.
func exportOf(t *testing.T, config *Config, height int64) Exported {
	t.Helper()
	result, err := ExportSnapshot(t.Context(), config, ExportOptions{File: filepath.Join(t.TempDir(), "snapshot"), Height: height})
	require.NoError(t, err)
	return result
}

// keepAll lets no snapshot go while the node is being stopped.
func keepAll(c *AppConfig) { c.Snapshots.Keep = maxSnapshots }

// oldOf exports the oldest stored snapshot: there are blocks after it.
func oldOf(t *testing.T, config *Config) Exported {
	t.Helper()
	seen, err := Inspect(t.Context(), config, false, nil)
	require.NoError(t, err)
	require.Greater(t, len(seen.State.Snapshots), 1)
	return exportOf(t, config, seen.State.Snapshots[0].Height)
}

// joinerOf makes an empty home for the network of another home.
func joinerOf(t *testing.T, config *Config, edit func(*cfg.Config)) *Config {
	t.Helper()
	home, _ := testHome(t, func(o *InitOptions) {
		o.GenesisFile = config.CometBFT.GenesisFile()
		before := o.Edit
		o.Edit = func(c *cfg.Config, a *AppConfig) {
			before(c, a)
			if edit != nil {
				edit(c)
			}
		}
	})
	return load(t, home)
}

// headersOf are the headers of a stopped node, as if a light client had fetched them.
type headersOf struct{ config *Config }

func (h headersOf) open() (d *offline, err error) { return openOffline(h.config, true) }

func (h headersOf) connect(context.Context, *cmttypes.GenesisDoc) (Headers, error) { return h, nil }

func (h headersOf) AppHash(_ context.Context, height uint64) ([]byte, error) {
	d, err := h.open()
	if err != nil {
		return nil, err
	}
	defer d.close()
	hash, _, err := d.appHashAfter(int64(height))
	return hash, err
}

func (h headersOf) State(_ context.Context, height uint64) (sm.State, error) {
	d, err := h.open()
	if err != nil {
		return sm.State{}, err
	}
	defer d.close()
	s, err := d.comet.Load()
	if err != nil {
		return sm.State{}, err
	}
	last, next := d.blocks.LoadBlockMeta(int64(height)), d.blocks.LoadBlockMeta(int64(height)+1)
	if last == nil || next == nil {
		return sm.State{}, errors.New("no such blocks")
	}
	s.LastBlockHeight, s.LastBlockID, s.LastBlockTime = last.Header.Height, last.BlockID, last.Header.Time
	s.AppHash, s.LastResultsHash = next.Header.AppHash, next.Header.LastResultsHash
	s.LastHeightValidatorsChanged, s.LastHeightConsensusParamsChanged = int64(height)+2, int64(height)+1 // one validator, always
	return s, nil
}

func (h headersOf) Commit(_ context.Context, height uint64) (*cmttypes.Commit, error) {
	d, err := h.open()
	if err != nil {
		return nil, err
	}
	defer d.close()
	return d.blocks.LoadBlockCommit(int64(height)), nil
}

// files are all files of a home with their content, but locks and logs of databases.
func files(t *testing.T, home string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(home, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		all[path] = string(content)
		return err
	}))
	return all
}

// requireEmpty: a home has no state, and its node starts from nothing.
func requireEmpty(t *testing.T, config *Config) {
	t.Helper()
	n, err := New(t.Context(), config, log.NewNopLogger())
	require.NoError(t, err)
	require.Zero(t, n.application.Height())
	require.NoError(t, n.Stop())
}

func TestExport(t *testing.T) {
	config := offlineHome(t, 3, keepAll)
	seen, err := Inspect(t.Context(), config, false, nil)
	require.NoError(t, err)
	snapshots := seen.State.Snapshots
	newest := exportOf(t, config, 0)
	require.Equal(t, snapshots[len(snapshots)-1].Height, newest.Height)
	require.True(t, newest.Stored)
	require.Equal(t, newest.Height+1, newest.Header)
	require.Equal(t, "test-chain", newest.ChainID)
	require.Greater(t, newest.Chunks, uint32(1))
	oldest := exportOf(t, config, snapshots[0].Height)
	require.Equal(t, snapshots[0].Height, oldest.Height)

	// The same state, from the stored snapshot and from the disk of a node that was rolled back to it.
	last := snapshots[len(snapshots)-1].Height
	require.NoError(t, storage.RollbackToPin(StateDir(config.CometBFT.DBDir()), last, stateOptions(config.CometBFT.DBDir(), false)))
	require.NoError(t, os.RemoveAll(SnapshotsDir(config.CometBFT.DBDir())))
	read := uint64(0)
	file := filepath.Join(t.TempDir(), "snapshot")
	again, err := ExportSnapshot(t.Context(), config, ExportOptions{File: file, Reading: func(done, total uint64) {
		require.LessOrEqual(t, done, total)
		read = done
	}})
	require.NoError(t, err)
	require.False(t, again.Stored)
	require.EqualValues(t, 12+2, read)
	first, err := os.ReadFile(newest.File)
	require.NoError(t, err)
	second, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.Equal(first, second))

	_, err = ExportSnapshot(t.Context(), config, ExportOptions{File: file})
	require.ErrorIs(t, err, ErrFileExists)
	_, err = ExportSnapshot(t.Context(), config, ExportOptions{File: file, Overwrite: true, Height: last + 100})
	require.ErrorIs(t, err, ErrNoSnapshot)
	require.ErrorContains(t, err, fmt.Sprintf("the state on disk is of %d", last))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = ExportSnapshot(ctx, config, ExportOptions{File: file + "2"})
	require.ErrorIs(t, err, context.Canceled)
	goesOn(t, config) // nothing was changed, and no lock is held
}

func TestExportOfDamagedData(t *testing.T) {
	config := offlineHome(t, 3, keepAll)
	dir := config.CometBFT.DBDir()
	file := filepath.Join(t.TempDir(), "snapshot")
	seen, err := Inspect(t.Context(), config, false, nil)
	require.NoError(t, err)
	pins := seen.State.Snapshots
	newest := filepath.Join(SnapshotsDir(dir), strconv.FormatInt(pins[len(pins)-1].Height, 10))
	damage(t, newest)
	_, err = ExportSnapshot(t.Context(), config, ExportOptions{File: file})
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, newest)
	require.ErrorContains(t, err, "remove that folder")
	require.NoFileExists(t, file)
	require.NoFileExists(t, file+".partial")

	require.NoError(t, os.RemoveAll(SnapshotsDir(dir)))
	damage(t, StateDir(dir))
	_, err = ExportSnapshot(t.Context(), config, ExportOptions{File: file})
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "unsafe-reset-all")
	require.NoFileExists(t, file)
}

// A new home gets the state from the file and all else from a light client; then it follows the network.
func TestImportWithALightClient(t *testing.T) {
	config := offlineHome(t, 3, keepAll)
	exported := exportOf(t, config, 0)
	n, err := New(t.Context(), config, log.NewNopLogger())
	require.NoError(t, err)
	require.NoError(t, n.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, n.Stop()) })
	client := rpcOf(t, config.Home)
	until(t, "two blocks more", func() bool { return n.Comet().BlockStore().Height() >= exported.Height+2 })

	joiner := joinerOf(t, config, func(c *cfg.Config) {
		c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", n.ID(), config.CometBFT.P2P.ListenAddress[len("tcp://"):])
		c.StateSync.RPCServers = []string{RPCAddress(config.Home), RPCAddress(config.Home)}
		c.StateSync.TrustHeight = 1
	})
	trusted := n.Comet().BlockStore().LoadBlockMeta(1).BlockID.Hash
	for hash, want := range map[string]string{"": "trust_hash is", "zz": "trust_hash is", hex.EncodeToString(make([]byte, 32)): "must answer"} {
		joiner.CometBFT.StateSync.TrustHash = hash
		_, err = ImportSnapshot(t.Context(), joiner, ImportOptions{File: exported.File})
		require.ErrorIs(t, err, ErrNoTrust)
		require.ErrorContains(t, err, want)
	}
	joiner.CometBFT.StateSync.TrustHash = trusted.String()
	_, err = ImportSnapshot(t.Context(), joiner, ImportOptions{File: exported.File, AppHash: make([]byte, 32)})
	require.ErrorIs(t, err, ErrOtherState)

	// The transport of a peer will do.
	other := joinerOf(t, config, func(c *cfg.Config) { c.StateSync.TrustHeight, c.StateSync.TrustHash = 1, trusted.String() })
	other.App.Join.Peers = n.serving.server.Addr().String()
	byTransport, err := ImportSnapshot(t.Context(), other, ImportOptions{File: exported.File})
	require.NoError(t, err)
	require.Equal(t, exported.AppHash, byTransport.AppHash)
	require.Equal(t, "the light client", byTransport.Trust)
	made, err := openOffline(other, false)
	require.NoError(t, err)
	require.NotNil(t, made.blocks.LoadBlockMeta(exported.Height), "evidence may be about it")
	require.NoError(t, made.close())

	signing, err := os.ReadFile(joiner.CometBFT.PrivValidatorStateFile())
	require.NoError(t, err)
	told := map[ImportStage]uint64{}
	imported, err := ImportSnapshot(t.Context(), joiner, ImportOptions{File: exported.File, Progress: func(stage ImportStage, done, total uint64) {
		require.GreaterOrEqual(t, done, told[stage])
		require.LessOrEqual(t, done, total)
		told[stage] = done
	}})
	require.NoError(t, err)
	require.Equal(t, exported.AppHash, imported.AppHash)
	require.Equal(t, exported.Bytes, told[ImportWriting])
	require.EqualValues(t, 12+2, told[ImportChecking])
	after, err := os.ReadFile(joiner.CometBFT.PrivValidatorStateFile())
	require.NoError(t, err)
	require.Equal(t, signing, after)
	_, err = ImportSnapshot(t.Context(), joiner, ImportOptions{File: exported.File})
	require.ErrorIs(t, err, ErrNotEmpty, "there is one now")

	j, err := New(t.Context(), joiner, log.NewNopLogger())
	require.NoError(t, err)
	require.Equal(t, exported.Height, j.application.Height())
	require.NoError(t, j.Start(t.Context()))
	defer func() { require.NoError(t, j.Stop()) }()
	put(t, client, "after", "it")
	head := n.application.Height()
	until(t, "the joiner at the head", func() bool { return j.application.Height() >= head })
	require.Equal(t, exported.Height+1, j.Comet().BlockStore().Base(), "it has the blocks since the snapshot")
	require.Equal(t, fmt.Sprintf("%0100d", 7), get(t, rpcOf(t, joiner.Home), "key-07"))
	require.Equal(t, "it", get(t, rpcOf(t, joiner.Home), "after"))
	requireSameHashes(t, j)
}

// Killed at any time, the home is empty, and can import, or complete, and starts.
func importIsKilled(t *testing.T, config *Config, exported Exported) {
	joiner := joinerOf(t, config, nil)
	o := ImportOptions{File: exported.File, Headers: headersOf{config}.connect}
	copied := func(home string) string {
		to := filepath.Join(t.TempDir(), "home")
		require.NoError(t, os.CopyFS(to, os.DirFS(home)))
		return to
	}
	killed := map[string]string{} // copies of the home
	o.reached = func(step string) { killed[step] = copied(joiner.Home) }
	o.Progress = func(stage ImportStage, done, _ uint64) {
		if stage == ImportWriting && killed["half"] == "" && done > exported.Bytes/2 {
			killed["half"] = copied(joiner.Home)
		}
	}
	_, err := ImportSnapshot(t.Context(), joiner, o)
	require.NoError(t, err)
	o.reached, o.Progress = nil, nil

	// The steps of databases.bootstrap.
	headers := headersOf{config}
	state, err := headers.State(t.Context(), uint64(exported.Height))
	require.NoError(t, err)
	commit, err := headers.Commit(t.Context(), uint64(exported.Height))
	require.NoError(t, err)
	killed["commit saved"] = copied(killed["restored"])
	withDatabase(t, load(t, killed["commit saved"]).CometBFT, "blockstore", func(db dbm.DB) error {
		return store.NewBlockStore(db).SaveSeenCommit(exported.Height, commit)
	})
	killed["state saved"] = copied(killed["commit saved"])
	withDatabase(t, load(t, killed["state saved"]).CometBFT, "state", func(db dbm.DB) error {
		return sm.NewStore(db, sm.StoreOptions{}).Bootstrap(state)
	})
	for step, complete := range map[string]bool{"half": false, "restored": false, "commit saved": false, "state saved": true} {
		t.Run(step, func(t *testing.T) {
			require.NotEmpty(t, killed[step])
			for _, again := range []bool{false, true} { // a start first, or another import
				c := load(t, copied(killed[step]))
				switch {
				case complete:
					_, err := ImportSnapshot(t.Context(), c, o)
					require.ErrorIs(t, err, ErrNotEmpty)
				case !again:
					requireEmpty(t, c) // and it has begun at genesis, as a new home does: there is no block yet
					fallthrough
				default:
					_, err := ImportSnapshot(t.Context(), c, o)
					require.NoError(t, err)
				}
				n, err := New(t.Context(), c, log.NewNopLogger())
				require.NoError(t, err)
				require.Equal(t, exported.Height, n.application.Height())
				require.NoError(t, n.Stop())
			}
		})
	}
}

// withDatabase works on one of CometBFT's databases of a stopped node.
func withDatabase(t *testing.T, c *cfg.Config, id string, work func(dbm.DB) error) {
	t.Helper()
	d := newDatabases(c, blocks.Options{})
	db, err := d.provide(&cfg.DBContext{ID: id, Config: c})
	require.NoError(t, err)
	require.NoError(t, work(db))
	require.NoError(t, d.closeAll())
}

// The blocks are here, only the state is gone: their headers say what to trust, and they are executed again.
func TestImportBesideBlocks(t *testing.T) {
	config := offlineHome(t, 3, keepAll)
	exported := oldOf(t, config)
	_, last := heights(t, config)
	_, err := ImportSnapshot(t.Context(), config, ImportOptions{File: exported.File})
	require.ErrorIs(t, err, ErrNotEmpty)
	require.NoError(t, os.RemoveAll(StateDir(config.CometBFT.DBDir())))

	// Another state of that height, and this one as if it were of a height that the blocks do not have.
	v, err := avlstar.Empty(512)
	require.NoError(t, err)
	defer v.Release()
	for height, want := range map[int64]error{exported.Height: ErrOtherState, last + 1: ErrNoTrust} {
		other := filepath.Join(t.TempDir(), "other")
		_, err = archive.WriteFile(t.Context(), other, false, versionSource{v, height}, archive.Options{ChainID: "test-chain"})
		require.NoError(t, err)
		_, err = ImportSnapshot(t.Context(), config, ImportOptions{File: other})
		require.ErrorIs(t, err, want)
	}
	imported, err := ImportSnapshot(t.Context(), config, ImportOptions{File: exported.File})
	require.NoError(t, err)
	require.Equal(t, last-exported.Height, imported.Executes)
	require.Contains(t, imported.Trust, fmt.Sprintf("header %d", exported.Height+1))
	goesOn(t, config)
}

// One network for what does not change it.
func TestImportIntoANewHome(t *testing.T) {
	config := offlineHome(t, 3, keepAll)
	exported := oldOf(t, config)
	t.Run("state only", func(t *testing.T) { importTheStateOnly(t, config, exported) })
	t.Run("fails", func(t *testing.T) { importThatFails(t, config, exported) })
	t.Run("without headers", func(t *testing.T) { importWithoutHeaders(t, config, exported) })
	t.Run("killed", func(t *testing.T) { importIsKilled(t, config, exported) })
}

func importTheStateOnly(t *testing.T, config *Config, exported Exported) {
	hash, err := hex.DecodeString(exported.AppHash)
	require.NoError(t, err)
	joiner := joinerOf(t, config, nil)
	for _, o := range []ImportOptions{{}, {AppHash: hash}, {StateOnly: true}} {
		o.File = exported.File
		_, err = ImportSnapshot(t.Context(), joiner, o)
		require.ErrorIs(t, err, ErrNoTrust)
		require.NoDirExists(t, StateDir(joiner.CometBFT.DBDir()), "nothing was touched")
	}
	hash[0] ^= 1
	_, err = ImportSnapshot(t.Context(), joiner, ImportOptions{File: exported.File, StateOnly: true, AppHash: hash})
	require.ErrorIs(t, err, ErrOtherState)
	hash[0] ^= 1
	_, err = ImportSnapshot(t.Context(), joiner, ImportOptions{File: exported.File, StateOnly: true, AppHash: hash})
	require.NoError(t, err)
	found, err := Verify(t.Context(), joiner, VerifyOptions{})
	require.NoError(t, err)
	require.Equal(t, exported.AppHash, found.State.AppHash)
	requireEmpty(t, joiner) // a node with its own CometBFT has no block that leads on from it, and removes it
}

// A file that is damaged, cut short or of another chain, Ctrl-C: the home stays as it was.
func importThatFails(t *testing.T, config *Config, exported Exported) {
	good, err := os.ReadFile(exported.File)
	require.NoError(t, err)
	joiner := joinerOf(t, config, nil)
	headers := headersOf{config}.connect
	bad := filepath.Join(t.TempDir(), "bad")
	before := files(t, joiner.Home)
	for at := 200; at < len(good); at += len(good) / 7 {
		damaged := bytes.Clone(good)
		damaged[at] ^= 4
		require.NoError(t, os.WriteFile(bad, damaged, 0o600))
		_, err = ImportSnapshot(t.Context(), joiner, ImportOptions{File: bad, Headers: headers})
		require.ErrorIs(t, err, ErrDamaged)
		require.ErrorIs(t, err, archive.ErrDamaged)
		require.ErrorContains(t, err, "get the file again")
		requireNoState(t, joiner)
	}
	require.NoError(t, os.WriteFile(bad, good[:len(good)-1], 0o600))
	_, err = ImportSnapshot(t.Context(), joiner, ImportOptions{File: bad, Headers: headers})
	require.ErrorIs(t, err, archive.ErrTruncated)
	require.ErrorIs(t, err, ErrDamaged)

	ctx, cancel := context.WithCancel(t.Context())
	for _, stage := range []ImportStage{ImportWriting, ImportChecking} {
		_, err = ImportSnapshot(ctx, joiner, ImportOptions{File: exported.File, Headers: headers, Progress: func(s ImportStage, done, _ uint64) {
			if s == stage && done > 0 {
				cancel()
			}
		}})
		if stage == ImportWriting {
			require.ErrorIs(t, err, context.Canceled)
			requireNoState(t, joiner)
			ctx, cancel = context.WithCancel(t.Context())
		}
	}
	cancel()
	for path, content := range before {
		now, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, content, string(now), path)
	}

	chain, _ := testHome(t, func(o *InitOptions) { o.ChainID, o.App = "other-chain", app.Genesis{Open: true} })
	_, err = ImportSnapshot(t.Context(), load(t, chain), ImportOptions{File: exported.File, Headers: headers})
	require.ErrorIs(t, err, ErrOtherChain)
	_, err = ImportSnapshot(t.Context(), joiner, ImportOptions{File: bad + "none"})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func requireNoState(t *testing.T, config *Config) {
	t.Helper()
	seen, err := Inspect(t.Context(), config, true, func(uint64, uint64) {})
	require.NoError(t, err)
	require.Zero(t, seen.State.Height)
	require.Zero(t, seen.State.Keys)
}

// A header that is not there yet, headers that fail.
func importWithoutHeaders(t *testing.T, config *Config, exported Exported) {
	joiner := joinerOf(t, config, nil)
	failed := errors.New("nobody answers")
	_, err := ImportSnapshot(t.Context(), joiner, ImportOptions{File: exported.File, Headers: func(context.Context, *cmttypes.GenesisDoc) (Headers, error) {
		return nil, failed
	}})
	require.ErrorIs(t, err, failed)
	require.ErrorIs(t, err, ErrNoTrust)
	require.ErrorContains(t, err, fmt.Sprintf("headers %d to %d", exported.Height, exported.Height+2))
	require.NoDirExists(t, StateDir(joiner.CometBFT.DBDir()))
}

func TestExportAndImportKeepOffARunningNode(t *testing.T) {
	config := offlineHome(t, 3, keepAll)
	exported := exportOf(t, config, 0)
	run(t, config, func(*Node) {
		_, err := ExportSnapshot(t.Context(), config, ExportOptions{File: exported.File, Overwrite: true})
		require.ErrorIs(t, err, storage.ErrLocked)
		require.ErrorContains(t, err, "stop the node, or")
		_, err = ImportSnapshot(t.Context(), config, ImportOptions{File: exported.File})
		require.ErrorIs(t, err, storage.ErrLocked)
		require.ErrorContains(t, err, "stop the node, or")
	})
}
