package home_test

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
	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/statesync/archive"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// exportOf exports a snapshot of a stopped node into a new folder.
func exportOf(t *testing.T, config *config.Config, height int64) home.Exported {
	t.Helper()
	result, err := home.ExportSnapshot(t.Context(), config, home.ExportOptions{File: filepath.Join(t.TempDir(), "snapshot"), Height: height})
	require.NoError(t, err)
	return result
}

// keepAll keeps all snapshots while the node is being stopped.
func keepAll(c *config.App) { c.Snapshots.Keep = config.MaxSnapshots }

// oldOf exports the oldest stored snapshot, which has blocks after it.
func oldOf(t *testing.T, config *config.Config) home.Exported {
	t.Helper()
	seen, err := home.Inspect(t.Context(), config, false, nil)
	require.NoError(t, err)
	require.Greater(t, len(seen.State.Snapshots), 1)
	return exportOf(t, config, seen.State.Snapshots[0].Height)
}

// joinerOf creates an empty home for the network of another home.
func joinerOf(t *testing.T, conf *config.Config, edit func(*cfg.Config)) *config.Config {
	t.Helper()
	home, _ := nodetest.Home(t, func(o *home.InitOptions) {
		o.GenesisFile = conf.CometBFT.GenesisFile()
		before := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			before(c, a)
			if edit != nil {
				edit(c)
			}
		}
	})
	return nodetest.Load(t, home)
}

// headersOf are the headers of a stopped node, as if a light client had fetched them.
type headersOf struct{ config *config.Config }

func (h headersOf) open() (d *home.Offline, err error) { return home.OpenOffline(h.config, true) }

func (h headersOf) connect(context.Context, *cmttypes.GenesisDoc) (home.Headers, error) {
	return h, nil
}

func (h headersOf) AppHash(_ context.Context, height uint64) ([]byte, error) {
	d, err := h.open()
	if err != nil {
		return nil, err
	}
	defer d.Close()
	hash, _, err := d.AppHashAfter(int64(height))
	return hash, err
}

func (h headersOf) State(_ context.Context, height uint64) (sm.State, error) {
	d, err := h.open()
	if err != nil {
		return sm.State{}, err
	}
	defer d.Close()
	s, err := d.CometStates().Load()
	if err != nil {
		return sm.State{}, err
	}
	last, next := d.BlockStore().LoadBlockMeta(int64(height)), d.BlockStore().LoadBlockMeta(int64(height)+1)
	if last == nil || next == nil {
		return sm.State{}, errors.New("no such blocks")
	}
	s.LastBlockHeight, s.LastBlockID, s.LastBlockTime = last.Header.Height, last.BlockID, last.Header.Time
	s.AppHash, s.LastResultsHash = next.Header.AppHash, next.Header.LastResultsHash
	// always one validator
	s.LastHeightValidatorsChanged, s.LastHeightConsensusParamsChanged = int64(height)+2, int64(height)+1
	return s, nil
}

func (h headersOf) Commit(_ context.Context, height uint64) (*cmttypes.Commit, error) {
	d, err := h.open()
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.BlockStore().LoadBlockCommit(int64(height)), nil
}

// files are all files of a home with their content, except locks and logs of databases.
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

// requireEmpty requires that a home has no state, and that its node starts from nothing.
func requireEmpty(t *testing.T, config *config.Config) {
	t.Helper()
	n, err := node.New(t.Context(), config, log.NewNopLogger())
	require.NoError(t, err)
	require.Zero(t, n.Application().Height())
	require.NoError(t, n.Stop())
}

func TestExport(t *testing.T) {
	conf := offlineHome(t, 3, keepAll)
	seen, err := home.Inspect(t.Context(), conf, false, nil)
	require.NoError(t, err)
	snapshots := seen.State.Snapshots
	newest := exportOf(t, conf, 0)
	require.Equal(t, snapshots[len(snapshots)-1].Height, newest.Height)
	require.True(t, newest.Stored)
	require.Equal(t, newest.Height+1, newest.Header)
	require.Equal(t, "test-chain", newest.ChainID)
	require.Greater(t, newest.Chunks, uint32(1))
	oldest := exportOf(t, conf, snapshots[0].Height)
	require.Equal(t, snapshots[0].Height, oldest.Height)

	// The same state, from the stored snapshot and from the disk of a rolled-back node.
	last := snapshots[len(snapshots)-1].Height
	require.NoError(t, storage.RollbackToPin(config.StateDir(conf.CometBFT.DBDir()), last, home.StateOptions(conf.CometBFT.DBDir(), false)))
	require.NoError(t, os.RemoveAll(config.SnapshotsDir(conf.CometBFT.DBDir())))
	var read, leaves uint64
	file := filepath.Join(t.TempDir(), "snapshot")
	again, err := home.ExportSnapshot(t.Context(), conf, home.ExportOptions{File: file, Reading: func(done, total uint64) {
		require.LessOrEqual(t, done, total)
		read, leaves = done, total
	}})
	require.NoError(t, err)
	require.False(t, again.Stored)
	require.Equal(t, leaves, read)
	require.Positive(t, read) // the last keys may be newer than the snapshot
	first, err := os.ReadFile(newest.File)
	require.NoError(t, err)
	second, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.Equal(first, second))

	_, err = home.ExportSnapshot(t.Context(), conf, home.ExportOptions{File: file})
	require.ErrorIs(t, err, home.ErrFileExists)
	_, err = home.ExportSnapshot(t.Context(), conf, home.ExportOptions{File: file, Overwrite: true, Height: last + 100})
	require.ErrorIs(t, err, home.ErrNoSnapshot)
	require.ErrorContains(t, err, fmt.Sprintf("the state on disk has height %d", last))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = home.ExportSnapshot(ctx, conf, home.ExportOptions{File: file + "2"})
	require.ErrorIs(t, err, context.Canceled)
	goesOn(t, conf) // nothing was changed, and no lock is held
}

func TestExportOfDamagedData(t *testing.T) {
	conf := offlineHome(t, 3, keepAll)
	dir := conf.CometBFT.DBDir()
	file := filepath.Join(t.TempDir(), "snapshot")
	seen, err := home.Inspect(t.Context(), conf, false, nil)
	require.NoError(t, err)
	pins := seen.State.Snapshots
	newest := filepath.Join(config.SnapshotsDir(dir), strconv.FormatInt(pins[len(pins)-1].Height, 10))
	damage(t, newest)
	_, err = home.ExportSnapshot(t.Context(), conf, home.ExportOptions{File: file})
	require.ErrorIs(t, err, home.ErrDamaged)
	require.ErrorContains(t, err, newest)
	require.ErrorContains(t, err, "remove that folder")
	require.NoFileExists(t, file)
	require.NoFileExists(t, file+".partial")

	require.NoError(t, os.RemoveAll(config.SnapshotsDir(dir)))
	damage(t, config.StateDir(dir))
	_, err = home.ExportSnapshot(t.Context(), conf, home.ExportOptions{File: file})
	require.ErrorIs(t, err, home.ErrDamaged)
	require.ErrorContains(t, err, "unsafe-reset-all")
	require.NoFileExists(t, file)
}

// A new home gets the state from the file and the rest from a light client; then it follows the
// network.
func TestImportWithALightClient(t *testing.T) {
	conf := offlineHome(t, 3, keepAll)
	exported := exportOf(t, conf, 0)
	conf.App.Transport.ListenAddress = fmt.Sprintf("127.0.0.1:%d", nodetest.FreePorts(t, 1)[0])
	n, err := node.New(t.Context(), conf, log.NewNopLogger())
	require.NoError(t, err)
	require.NoError(t, n.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, n.Stop()) })
	client := nodetest.RPC(t, conf.Home)
	nodetest.Until(t, "two blocks more", func() bool { return n.Comet().BlockStore().Height() >= exported.Height+2 })

	joiner := joinerOf(t, conf, func(c *cfg.Config) {
		c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", n.ID(), conf.CometBFT.P2P.ListenAddress[len("tcp://"):])
		c.StateSync.RPCServers = []string{config.RPCAddress(conf.Home), config.RPCAddress(conf.Home)}
		c.StateSync.TrustHeight = 1
	})
	trusted := n.Comet().BlockStore().LoadBlockMeta(1).BlockID.Hash
	for hash, want := range map[string]string{"": "trust_hash is", "zz": "trust_hash is", hex.EncodeToString(make([]byte, 32)): "must answer"} {
		joiner.CometBFT.StateSync.TrustHash = hash
		_, err = home.ImportSnapshot(t.Context(), joiner, home.ImportOptions{File: exported.File})
		require.ErrorIs(t, err, home.ErrNoTrust)
		require.ErrorContains(t, err, want)
	}
	joiner.CometBFT.StateSync.TrustHash = trusted.String()
	_, err = home.ImportSnapshot(t.Context(), joiner, home.ImportOptions{File: exported.File, AppHash: make([]byte, 32)})
	require.ErrorIs(t, err, home.ErrOtherState)

	// A peer's transport is sufficient.
	other := joinerOf(t, conf, func(c *cfg.Config) { c.StateSync.TrustHeight, c.StateSync.TrustHash = 1, trusted.String() })
	other.App.Join.Peers = conf.App.Transport.ListenAddress
	byTransport, err := home.ImportSnapshot(t.Context(), other, home.ImportOptions{File: exported.File})
	require.NoError(t, err)
	require.Equal(t, exported.AppHash, byTransport.AppHash)
	require.Equal(t, "the light client", byTransport.Trust)
	made, err := home.OpenOffline(other, false)
	require.NoError(t, err)
	require.NotNil(t, made.BlockStore().LoadBlockMeta(exported.Height), "evidence may be about it")
	require.NoError(t, made.Close())

	signing, err := os.ReadFile(joiner.CometBFT.PrivValidatorStateFile())
	require.NoError(t, err)
	told := map[home.ImportStage]uint64{}
	imported, err := home.ImportSnapshot(t.Context(), joiner, home.ImportOptions{File: exported.File, Progress: func(stage home.ImportStage, done, total uint64) {
		require.GreaterOrEqual(t, done, told[stage])
		require.LessOrEqual(t, done, total)
		told[stage] = done
	}})
	require.NoError(t, err)
	require.Equal(t, exported.AppHash, imported.AppHash)
	require.Equal(t, exported.Bytes, told[home.ImportWriting])
	require.EqualValues(t, 12+2, told[home.ImportChecking])
	after, err := os.ReadFile(joiner.CometBFT.PrivValidatorStateFile())
	require.NoError(t, err)
	require.Equal(t, signing, after)
	_, err = home.ImportSnapshot(t.Context(), joiner, home.ImportOptions{File: exported.File})
	require.ErrorIs(t, err, home.ErrNotEmpty, "there is one now")

	j, err := node.New(t.Context(), joiner, log.NewNopLogger())
	require.NoError(t, err)
	require.Equal(t, exported.Height, j.Application().Height())
	require.NoError(t, j.Start(t.Context()))
	defer func() { require.NoError(t, j.Stop()) }()
	nodetest.Put(t, client, "after", "it")
	head := n.Application().Height()
	nodetest.Until(t, "the joiner at the head", func() bool { return j.Application().Height() >= head })
	require.Equal(t, exported.Height+1, j.Comet().BlockStore().Base(), "it has the blocks since the snapshot")
	require.Equal(t, fmt.Sprintf("%0100d", 7), nodetest.Get(t, nodetest.RPC(t, joiner.Home), "key-07"))
	require.Equal(t, "it", nodetest.Get(t, nodetest.RPC(t, joiner.Home), "after"))
	nodetest.SameHashes(t, j.Application(), j.Comet)
}

// After a kill at any time, the home is empty and can import, or is complete and starts.
func importIsKilled(t *testing.T, config *config.Config, exported home.Exported) {
	joiner := joinerOf(t, config, nil)
	o := home.ImportOptions{File: exported.File, Headers: headersOf{config}.connect}
	copied := func(home string) string {
		to := filepath.Join(t.TempDir(), "home")
		require.NoError(t, os.CopyFS(to, os.DirFS(home)))
		// CopyFS makes its copies readable for others
		require.NoError(t, os.Chmod(filepath.Join(to, "config", "priv_validator_key.json"), 0o600))
		return to
	}
	killed := map[string]string{} // copies of the home
	home.Reached(&o, func(step string) { killed[step] = copied(joiner.Home) })
	o.Progress = func(stage home.ImportStage, done, _ uint64) {
		if stage == home.ImportWriting && killed["half"] == "" && done > exported.Bytes/2 {
			killed["half"] = copied(joiner.Home)
		}
	}
	_, err := home.ImportSnapshot(t.Context(), joiner, o)
	require.NoError(t, err)
	home.Reached(&o, nil)
	o.Progress = nil

	// The steps of databases.bootstrap.
	headers := headersOf{config}
	state, err := headers.State(t.Context(), uint64(exported.Height))
	require.NoError(t, err)
	commit, err := headers.Commit(t.Context(), uint64(exported.Height))
	require.NoError(t, err)
	killed["commit saved"] = copied(killed["restored"])
	withDatabase(t, nodetest.Load(t, killed["commit saved"]).CometBFT, "blockstore", func(db dbm.DB) error {
		return store.NewBlockStore(db).SaveSeenCommit(exported.Height, commit)
	})
	killed["state saved"] = copied(killed["commit saved"])
	withDatabase(t, nodetest.Load(t, killed["state saved"]).CometBFT, "state", func(db dbm.DB) error {
		return sm.NewStore(db, sm.StoreOptions{}).Bootstrap(state)
	})
	for step, complete := range map[string]bool{"half": false, "restored": false, "commit saved": false, "state saved": true} {
		t.Run(step, func(t *testing.T) {
			require.NotEmpty(t, killed[step])
			for _, again := range []bool{false, true} { // first a start, or first another import
				c := nodetest.Load(t, copied(killed[step]))
				switch {
				case complete:
					_, err := home.ImportSnapshot(t.Context(), c, o)
					require.ErrorIs(t, err, home.ErrNotEmpty)
				case !again:
					// and it has begun at genesis, as a new home does: no block yet
					requireEmpty(t, c)
					fallthrough
				default:
					_, err := home.ImportSnapshot(t.Context(), c, o)
					require.NoError(t, err)
				}
				n, err := node.New(t.Context(), c, log.NewNopLogger())
				require.NoError(t, err)
				require.Equal(t, exported.Height, n.Application().Height())
				require.NoError(t, n.Stop())
			}
		})
	}
}

// withDatabase works on one of CometBFT's databases of a stopped node.
func withDatabase(t *testing.T, c *cfg.Config, id string, work func(dbm.DB) error) {
	t.Helper()
	d := comet.NewDatabases(c, log.NewNopLogger(), blocks.Options{})
	db, err := d.DB(id)
	require.NoError(t, err)
	require.NoError(t, work(db))
	require.NoError(t, d.Close())
}

// The blocks exist, only the state is missing: their headers provide the trust, and the blocks are
// executed again.
func TestImportBesideBlocks(t *testing.T) {
	conf := offlineHome(t, 3, keepAll)
	exported := oldOf(t, conf)
	_, last := heights(t, conf)
	_, err := home.ImportSnapshot(t.Context(), conf, home.ImportOptions{File: exported.File})
	require.ErrorIs(t, err, home.ErrNotEmpty)
	require.NoError(t, os.RemoveAll(config.StateDir(conf.CometBFT.DBDir())))

	// A different state at that height, and this state labelled with a height that the blocks do
	// not have.
	v, err := avlstar.Empty(512)
	require.NoError(t, err)
	defer v.Release()
	for height, want := range map[int64]error{exported.Height: home.ErrOtherState, last + 1: home.ErrNoTrust} {
		other := filepath.Join(t.TempDir(), "other")
		_, err = archive.WriteFile(t.Context(), other, false, home.SourceOf(v, height), archive.Options{ChainID: "test-chain"})
		require.NoError(t, err)
		_, err = home.ImportSnapshot(t.Context(), conf, home.ImportOptions{File: other})
		require.ErrorIs(t, err, want)
	}
	imported, err := home.ImportSnapshot(t.Context(), conf, home.ImportOptions{File: exported.File})
	require.NoError(t, err)
	require.Equal(t, last-exported.Height, imported.Executes)
	require.Contains(t, imported.Trust, fmt.Sprintf("header %d", exported.Height+1))
	goesOn(t, conf)
}

// One network for the cases that do not change it.
func TestImportIntoANewHome(t *testing.T) {
	config := offlineHome(t, 3, keepAll)
	exported := oldOf(t, config)
	t.Run("state only", func(t *testing.T) { importTheStateOnly(t, config, exported) })
	t.Run("fails", func(t *testing.T) { importThatFails(t, config, exported) })
	t.Run("without headers", func(t *testing.T) { importWithoutHeaders(t, config, exported) })
	t.Run("killed", func(t *testing.T) { importIsKilled(t, config, exported) })
}

func importTheStateOnly(t *testing.T, conf *config.Config, exported home.Exported) {
	hash, err := hex.DecodeString(exported.AppHash)
	require.NoError(t, err)
	joiner := joinerOf(t, conf, nil)
	for _, o := range []home.ImportOptions{{}, {AppHash: hash}, {StateOnly: true}} {
		o.File = exported.File
		_, err = home.ImportSnapshot(t.Context(), joiner, o)
		require.ErrorIs(t, err, home.ErrNoTrust)
		require.NoDirExists(t, config.StateDir(joiner.CometBFT.DBDir()), "nothing was touched")
	}
	hash[0] ^= 1
	_, err = home.ImportSnapshot(t.Context(), joiner, home.ImportOptions{File: exported.File, StateOnly: true, AppHash: hash})
	require.ErrorIs(t, err, home.ErrOtherState)
	hash[0] ^= 1
	_, err = home.ImportSnapshot(t.Context(), joiner, home.ImportOptions{File: exported.File, StateOnly: true, AppHash: hash})
	require.NoError(t, err)
	require.NoDirExists(t, filepath.Join(config.StateDir(joiner.CometBFT.DBDir()), "restore"), "settled")
	found, err := home.Verify(t.Context(), joiner, home.VerifyOptions{})
	require.NoError(t, err)
	require.Equal(t, exported.AppHash, found.State.AppHash)
	// a node with its own CometBFT has no block after it, and removes it
	requireEmpty(t, joiner)
}

// A damaged, truncated or foreign file, or Ctrl-C: the home is unchanged.
func importThatFails(t *testing.T, config *config.Config, exported home.Exported) {
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
		_, err = home.ImportSnapshot(t.Context(), joiner, home.ImportOptions{File: bad, Headers: headers})
		require.ErrorIs(t, err, home.ErrDamaged)
		require.ErrorIs(t, err, archive.ErrDamaged)
		require.ErrorContains(t, err, "get another copy of the file")
		requireNoState(t, joiner)
	}
	require.NoError(t, os.WriteFile(bad, good[:len(good)-1], 0o600))
	_, err = home.ImportSnapshot(t.Context(), joiner, home.ImportOptions{File: bad, Headers: headers})
	require.ErrorIs(t, err, archive.ErrTruncated)
	require.ErrorIs(t, err, home.ErrDamaged)

	ctx, cancel := context.WithCancel(t.Context())
	for _, stage := range []home.ImportStage{home.ImportWriting, home.ImportChecking} {
		_, err = home.ImportSnapshot(ctx, joiner, home.ImportOptions{File: exported.File, Headers: headers, Progress: func(s home.ImportStage, done, _ uint64) {
			if s == stage && done > 0 {
				cancel()
			}
		}})
		if stage == home.ImportWriting {
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

	chain, _ := nodetest.Home(t, func(o *home.InitOptions) { o.ChainID, o.App = "other-chain", app.Genesis{Open: true} })
	_, err = home.ImportSnapshot(t.Context(), nodetest.Load(t, chain), home.ImportOptions{File: exported.File, Headers: headers})
	require.ErrorIs(t, err, app.ErrOtherChain)
	_, err = home.ImportSnapshot(t.Context(), joiner, home.ImportOptions{File: bad + "none"})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func requireNoState(t *testing.T, config *config.Config) {
	t.Helper()
	seen, err := home.Inspect(t.Context(), config, true, func(uint64, uint64) {})
	require.NoError(t, err)
	require.Zero(t, seen.State.Height)
	require.Zero(t, seen.State.Keys)
}

// A missing header, and failing headers.
func importWithoutHeaders(t *testing.T, conf *config.Config, exported home.Exported) {
	joiner := joinerOf(t, conf, nil)
	failed := errors.New("nobody answers")
	_, err := home.ImportSnapshot(t.Context(), joiner, home.ImportOptions{File: exported.File, Headers: func(context.Context, *cmttypes.GenesisDoc) (home.Headers, error) {
		return nil, failed
	}})
	require.ErrorIs(t, err, failed)
	require.ErrorIs(t, err, home.ErrNoTrust)
	require.ErrorContains(t, err, fmt.Sprintf("headers %d to %d", exported.Height, exported.Height+2))
	require.NoDirExists(t, config.StateDir(joiner.CometBFT.DBDir()))
}

func TestExportAndImportKeepOffARunningNode(t *testing.T) {
	config := offlineHome(t, 3, keepAll)
	exported := exportOf(t, config, 0)
	run(t, config, func(*node.Node) {
		_, err := home.ExportSnapshot(t.Context(), config, home.ExportOptions{File: exported.File, Overwrite: true})
		require.ErrorIs(t, err, storage.ErrLocked)
		require.ErrorContains(t, err, "stop the node, or")
		_, err = home.ImportSnapshot(t.Context(), config, home.ImportOptions{File: exported.File})
		require.ErrorIs(t, err, storage.ErrLocked)
		require.ErrorContains(t, err, "stop the node, or")
	})
}
