package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cmtjson "github.com/cometbft/cometbft/libs/json"
	sm "github.com/cometbft/cometbft/state"
	cmtstore "github.com/cometbft/cometbft/store"
	cmt "github.com/cometbft/cometbft/types"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/join"
	"github.com/starling-kv/starling/statesync/lightblocks"
)

// otherParams differ from those of all genesis files here, in fields that headers cover and in
// others.
func otherParams() *cmt.ConsensusParams {
	p := cmt.DefaultConsensusParams()
	p.Block.MaxBytes, p.Block.MaxGas = 3_000_000, 77
	p.Evidence.MaxAgeNumBlocks, p.Evidence.MaxAgeDuration = 12345, 99*time.Hour
	p.ABCI.VoteExtensionsEnableHeight = 9
	return p
}

// writeGenesis writes a genesis file in the SDK's format, with CometBFT's default parameters.
func writeGenesis(t *testing.T, home, chain string) {
	params, err := cmtjson.Marshal(cmt.DefaultConsensusParams())
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(home, "config"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, "config", "genesis.json"),
		fmt.Appendf(nil, `{"app_name":"simd","chain_id":%q,"initial_height":1,"app_state":{"bank":{}},"consensus":{"params":%s}}`, chain, params), 0o600))
}

func writeSettings(t *testing.T, home, name, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(home, "config"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, "config", name), []byte(text), 0o600))
}

func (s *stopped) join(home, address string, more ...string) []string {
	return append([]string{"join", "--home", home, "--chain-id", chainID, "--peers", address,
		"--trust-height", fmt.Sprint(trusted), "--trust-hash", fmt.Sprintf("%X", s.blocks[trusted])}, more...)
}

// checkComet fails unless the home's CometBFT has the chain's state of this height.
func (s *stopped) checkComet(t *testing.T, home string, height int64) {
	t.Helper()
	engine, err := backendOf(dbDir(home, "state"))
	require.NoError(t, err)
	stateDB, err := stockDB("state", engine, dataDir(home))
	require.NoError(t, err)
	defer func() { require.NoError(t, stateDB.Close()) }()
	blockDB, err := stockDB("blockstore", engine, dataDir(home))
	require.NoError(t, err)
	defer func() { require.NoError(t, blockDB.Close()) }()
	states := sm.NewStore(stateDB, sm.StoreOptions{})
	state, err := states.Load()
	require.NoError(t, err)
	require.Equal(t, height, state.LastBlockHeight)
	require.Equal(t, s.hashes[height], state.AppHash)
	require.Equal(t, s.blocks[height], []byte(state.LastBlockID.Hash))
	require.Equal(t, s.params, state.ConsensusParams)
	offline, err := states.GetOfflineStateSyncHeight()
	require.NoError(t, err)
	require.Equal(t, height, offline)
	for h := height; h <= height+2; h++ {
		_, err = states.LoadValidators(h)
		require.NoError(t, err)
	}
	blocks := cmtstore.NewBlockStore(blockDB)
	require.True(t, blocks.IsEmpty(), "as after CometBFT's own bootstrap, there are no blocks")
	require.Equal(t, s.blocks[height], []byte(blocks.LoadSeenCommit(height).BlockID.Hash))
}

// TestCometState: a join writes CometBFT's state, with parameters from the application's store,
// which the genesis file does not have. If it is killed before the database is renamed, it resumes
// without peers.
func TestCometState(t *testing.T) {
	for _, engine := range []dbm.BackendType{dbm.GoLevelDBBackend, dbm.PebbleDBBackend} {
		t.Run(string(engine), func(t *testing.T) { testCometState(t, engine) })
	}
}

func testCometState(t *testing.T, engine dbm.BackendType) {
	s := newChain(t, dbm.GoLevelDBBackend, 0, 2, otherParams())
	address := serving(t, "--home", s.home)
	home := t.TempDir()
	writeGenesis(t, home, chainID)
	writeSettings(t, home, "config.toml", fmt.Sprintf("db_backend = %q\n[rpc]\n", engine))
	backend := func(name string) {
		t.Helper()
		got, err := backendOf(dbDir(home, name))
		require.NoError(t, err)
		require.Equal(t, engine, got, name)
	}
	var out, progress bytes.Buffer
	require.NoError(t, run(context.Background(), s.join(home, address), &out, &progress), "%s", &progress)
	require.Contains(t, out.String(), fmt.Sprintf("joined at height %d,", latest))
	s.checkComet(t, home, latest)
	for _, name := range []string{applicationDB, "state", "blockstore"} {
		backend(name)
	}

	// As after a kill between writing CometBFT's state and renaming the database, and between
	// completing the database and writing CometBFT's state.
	for _, lost := range []string{"", "state", "blockstore"} {
		require.NoError(t, os.Rename(dbDir(home, applicationDB), dbDir(home, joiningDB)))
		require.NoError(t, trust{ChainID: chainID, Height: trusted, Hash: fmt.Sprintf("%x", s.blocks[trusted])}.write(home))
		peer := "127.0.0.1:1"
		if lost != "" {
			require.NoError(t, os.RemoveAll(dbDir(home, "state")))
			require.NoError(t, os.RemoveAll(dbDir(home, lost)))
			peer = address
		}
		out.Reset()
		require.NoError(t, run(context.Background(), s.join(home, peer), &out, &progress), "%s", &progress)
		require.Contains(t, out.String(), "already joined at height 12")
		s.checkComet(t, home, latest)
		require.DirExists(t, dbDir(home, applicationDB))
	}

	// A join at another height does not accept this state as its own.
	require.NoError(t, os.RemoveAll(dbDir(home, applicationDB)))
	err := run(context.Background(), s.join(home, address), io.Discard, io.Discard)
	require.ErrorIs(t, err, errHasState)
}

// TestHeadersMissing: without the headers nothing is downloaded. If the header with the app hash is
// missing, the error is not errNoState, because a join of the database alone also needs this
// header.
func TestHeadersMissing(t *testing.T) {
	s := newStopped(t, dbm.GoLevelDBBackend)
	for heights, lacks := range map[string]string{"1": "light block 13", "2": errNoState.Error()} {
		t.Run(heights, func(t *testing.T) {
			// A stopped node does not have the headers after its two newest states.
			address := serving(t, "--home", s.home, "--heights", heights)
			home := t.TempDir()
			writeGenesis(t, home, chainID)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			log := watched{words: lacks, found: cancel}
			require.ErrorIs(t, run(ctx, s.join(home, address), io.Discard, &log), errInterrupted)
			require.Equal(t, lacks == errNoState.Error(), strings.Contains(log.String(), errNoState.Error()), "%s", &log)
			require.NoDirExists(t, filepath.Join(joiningDir(home), chunksFolder))
			require.NoDirExists(t, dbDir(home, applicationDB))
			if heights == "2" {
				require.NoError(t, run(t.Context(), s.join(home, address, "--database-only"), io.Discard, io.Discard))
				require.DirExists(t, dbDir(home, applicationDB))
			}
		})
	}
}

// TestCometStateUnknown: if the parameters are unknown, the database keeps its temporary name,
// which no node opens, and the error names the remedy.
func TestCometStateUnknown(t *testing.T) {
	s := newChain(t, dbm.GoLevelDBBackend, 0, 2, nil)
	s.params = *otherParams()
	require.NoError(t, os.RemoveAll(dbDir(s.home, "state")))
	require.NoError(t, os.RemoveAll(dbDir(s.home, "blockstore")))
	s.consensus(t, 1, latest+2)
	address := serving(t, "--home", s.home)
	home := t.TempDir()
	writeGenesis(t, home, chainID)
	err := run(t.Context(), s.join(home, address), io.Discard, io.Discard)
	require.ErrorContains(t, err, "parameters are unknown")
	require.ErrorContains(t, err, "bootstrap-state")
	require.NoDirExists(t, dbDir(home, applicationDB))
	require.NoError(t, run(t.Context(), s.join(home, address, "--database-only"), io.Discard, io.Discard))
	require.DirExists(t, dbDir(home, applicationDB))
}

// TestStoppedAlone: a stopped node has the headers for the state before its two newest ones, so no
// running node is needed.
func TestStoppedAlone(t *testing.T) {
	s := newChain(t, dbm.PebbleDBBackend, 0, 0, nil)
	home := t.TempDir()
	writeGenesis(t, home, chainID)
	var out bytes.Buffer
	require.NoError(t, run(context.Background(), s.join(home, serving(t, "--home", s.home)), &out, io.Discard))
	require.Contains(t, out.String(), fmt.Sprintf("joined at height %d,", latest-2))
	s.checkComet(t, home, latest-2)
}

// TestEngine: the application's database uses the engine that the node will expect.
func TestEngine(t *testing.T) {
	for _, c := range []struct {
		app, comet, asked string
		want              dbm.BackendType
		said              string // a warning, or an error if want is empty
	}{
		{"", "", "", dbm.GoLevelDBBackend, ""},
		{"", "goleveldb", "", dbm.GoLevelDBBackend, ""},
		{"", "pebbledb", "", dbm.PebbleDBBackend, ""},
		{"pebbledb", "goleveldb", "", dbm.PebbleDBBackend, ""},
		{"", "goleveldb", "pebbledb", dbm.PebbleDBBackend, "warning: --db-backend is pebbledb, but "},
		{"", "rocksdb", "", "", "can only be written with goleveldb or pebbledb"},
		{"pebbledb", "rocksdb", "", dbm.PebbleDBBackend, ""},
		{"", "rocksdb", "goleveldb", dbm.GoLevelDBBackend, "warning: "},
		{"", "", "rocksdb", "", "--db-backend \"rocksdb\" is neither goleveldb nor pebbledb"},
	} {
		home := t.TempDir()
		writeSettings(t, home, "app.toml", fmt.Sprintf("app-db-backend = %q\n[api]\n", c.app))
		writeSettings(t, home, "config.toml", fmt.Sprintf("db_backend = %q\n[rpc]\n", c.comet))
		var warned bytes.Buffer
		got, err := chooseEngine(home, c.asked, &warned)
		require.Equal(t, c.want, got, "%+v", c)
		if c.want == "" {
			require.ErrorContains(t, err, c.said)
			continue
		}
		require.NoError(t, err)
		require.Contains(t, warned.String(), c.said)
		require.Equal(t, c.said == "", warned.Len() == 0)
	}
}

// TestCometHome: missing requirements of a home are reported before anything is fetched.
func TestCometHome(t *testing.T) {
	refused := func(home, want string) {
		t.Helper()
		_, err := openComet(home, chainID)
		require.ErrorContains(t, err, want)
	}
	home := t.TempDir()
	refused(home, "Initialise the home first")
	writeGenesis(t, home, "demo-2")
	refused(home, `is for chain "demo-2", not "demo-1"`)
	writeGenesis(t, home, chainID)
	c, err := openComet(home, chainID)
	require.NoError(t, err)
	require.Equal(t, cmt.DefaultConsensusParams(), c.genesis.ConsensusParams)
	for text, want := range map[string]string{
		"moniker = \"x\"\ndb_backend = \"rocksdb\"\n[rpc]\n": "only be written with goleveldb or pebbledb",
		"db_dir = \"/disk\"\n":                               "only be written to data",
	} {
		writeSettings(t, home, "config.toml", text)
		refused(home, want)
	}
	app := "snapshot-interval = 5\n[api]\nsnapshot-interval = 6\n[state-sync]\n# a comment\nsnapshot-interval = 1_000 # blocks\n[other]\nmore = 2\n"
	require.Equal(t, "1_000", setting(app, "state-sync", "snapshot-interval"))
	require.Empty(t, setting(app, "state-sync", "more"))
	require.Empty(t, setting(app, "mempool", "more"))
	require.Empty(t, topSetting("[rpc]\ndb_backend = \"pebbledb\"\n", "db_backend"))

	g, err := decodeGenesis([]byte(`{"chain_id":"a","initial_height":"7","consensus_params":{"block":{"max_bytes":"5","max_gas":"-1"}}}`))
	require.NoError(t, err)
	require.EqualValues(t, 7, g.InitialHeight)
	require.EqualValues(t, 5, g.ConsensusParams.Block.MaxBytes)
}

// TestNothingIsReplaced: a join must not replace a database that cannot be opened because it is
// damaged or belongs to another engine.
func TestNothingIsReplaced(t *testing.T) {
	for name, file := range map[string]string{"goleveldb": "000001.log", "Pebble": "MANIFEST-000001", "badger": "000001.vlog"} {
		for _, lost := range []string{"state", "blockstore"} {
			t.Run(name+"/"+lost, func(t *testing.T) {
				home := t.TempDir()
				path := filepath.Join(dbDir(home, lost), file)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				require.NoError(t, os.WriteFile(path, []byte("blocks"), 0o600))
				c := &comet{home: home, engine: dbm.GoLevelDBBackend}
				_, err := c.empty(0)
				require.ErrorIs(t, err, errHasState)
				require.ErrorIs(t, err, errNoDatabase)
				require.FileExists(t, path)
			})
		}
	}
	// RocksDB uses the same file names as Pebble, which writes when it opens a database.
	home := t.TempDir()
	for file, text := range map[string]string{"CURRENT": "MANIFEST-000004\n", "OPTIONS-000007": "[Version]\n  rocksdb_version=8.9.1\n"} {
		require.NoError(t, os.MkdirAll(dbDir(home, "blockstore"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dbDir(home, "blockstore"), file), []byte(text), 0o600))
	}
	_, err := (&comet{home: home, engine: dbm.PebbleDBBackend}).empty(0)
	require.ErrorIs(t, err, errHasState)
	require.ErrorContains(t, err, "RocksDB is not supported: ")
	// An engine that ended before it wrote anything leaves nothing to lose.
	home = t.TempDir()
	require.NoError(t, os.MkdirAll(dbDir(home, "state"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dbDir(home, "state"), "LOCK"), nil, 0o600))
	there, err := (&comet{home: home, engine: dbm.GoLevelDBBackend}).empty(0)
	require.NoError(t, err)
	require.False(t, there)
}

// TestEngineIsChanged: a killed join does not continue with a different engine.
func TestEngineIsChanged(t *testing.T) {
	s := newChain(t, dbm.GoLevelDBBackend, 0, 2, nil)
	home := t.TempDir()
	writeGenesis(t, home, chainID)
	address := serving(t, "--home", s.home)
	require.NoError(t, run(t.Context(), s.join(home, address), io.Discard, io.Discard))
	require.NoError(t, os.Rename(dbDir(home, applicationDB), dbDir(home, joiningDB)))
	require.NoError(t, trust{ChainID: chainID, Height: trusted, Hash: fmt.Sprintf("%x", s.blocks[trusted]), State: latest}.write(home))
	settings := filepath.Join(home, "config", "config.toml")
	require.NoError(t, os.WriteFile(settings, []byte(`db_backend = "pebbledb"`), 0o600))
	again := func() error { return run(t.Context(), s.join(home, address), io.Discard, io.Discard) }
	require.ErrorContains(t, again(), "is of goleveldb, but pebbledb is configured")
	require.NoError(t, os.Rename(dbDir(home, joiningDB), dbDir(home, applicationDB)))
	require.ErrorContains(t, again(), "is of goleveldb, but pebbledb is configured")
	require.NoError(t, os.Remove(settings))
	require.NoError(t, again())
	s.checkComet(t, home, latest)
}

// TestAdvice: invalid headers get different advice than missing headers.
func TestAdvice(t *testing.T) {
	unavailable := fmt.Errorf("light block 5: %w", lightblocks.ErrUnavailable)
	for want, err := range map[string]error{
		"--rpc":                missingHeader(unavailable),
		"ask the chain's":      missingHeader(fmt.Errorf("%w: %w", unavailable, lightblocks.ErrConflict)),
		"a newer header":       missingHeader(fmt.Errorf("%w: %w", unavailable, lightblocks.ErrTrustExpired)),
		"this machine's clock": missingHeader(fmt.Errorf("%w: %w", unavailable, lightblocks.ErrFuture)),
		"with another source":  missingHeader(fmt.Errorf("%w: %w", unavailable, lightblocks.ErrTrustMismatch)),
		"running servers of":   missingHeader(lightblocks.ErrNoPeers),
	} {
		require.ErrorContains(t, explainPeers(&join.PeersError{Err: err}), want)
	}
	// Without the app hash, a join of the application's database alone is not a remedy.
	err := explainPeers(&join.PeersError{Err: unavailable})
	require.ErrorContains(t, err, "--rpc")
	require.NotContains(t, err.Error(), databaseOnly)
}
