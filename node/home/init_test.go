package home_test

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

func TestInitOverwritesNothing(t *testing.T) {
	dir, _ := nodetest.Home(t, nil)
	for _, name := range []string{"config/config.toml", "config/app.toml", "config/genesis.json", "config/node_key.json",
		"config/priv_validator_key.json", "data/priv_validator_state.json"} {
		other := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(other, filepath.Dir(name)), 0o700))
		raw, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(other, name), raw, 0o600))
		_, err = home.Init(home.InitOptions{Home: other})
		require.ErrorIs(t, err, home.ErrInitialised)
		require.ErrorContains(t, err, filepath.Base(name))
		after, err := os.ReadFile(filepath.Join(other, name))
		require.NoError(t, err)
		require.Equal(t, raw, after)
	}
}

// TestInitAtOnce: of several concurrent Inits of one home one succeeds, and the others remove none
// of its files.
func TestInitAtOnce(t *testing.T) {
	for range 5 {
		dir := filepath.Join(t.TempDir(), "home")
		var done sync.WaitGroup
		var made atomic.Int64
		for range 4 {
			done.Go(func() {
				if _, err := home.Init(home.InitOptions{Home: dir}); err == nil {
					made.Add(1)
				}
			})
		}
		done.Wait()
		require.EqualValues(t, 1, made.Load())
		for _, file := range []string{"config/app.toml", "config/config.toml", "config/genesis.json", "config/node_key.json", "config/priv_validator_key.json", "data/priv_validator_state.json"} {
			require.FileExists(t, filepath.Join(dir, file))
		}
	}
}

func TestInitFilesArePrivate(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	for name, mode := range map[string]os.FileMode{
		"": 0o700, "config": 0o700, "data": 0o700, "config/node_key.json": 0o600, "config/priv_validator_key.json": 0o600,
		"data/priv_validator_state.json": 0o600, "config/config.toml": 0o600, "config/app.toml": 0o600,
	} {
		info, err := os.Stat(filepath.Join(home, name))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), name)
	}
}

func TestInitRefusesAWrongGenesisBeforeItWrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "home")
	for _, opts := range []home.InitOptions{
		{App: app.Genesis{Admins: []string{"nobody"}}},
		{App: app.Genesis{ChunkBytes: 1 << 40}},
		{App: app.Genesis{SnapshotInterval: -1}},
		{ChainID: "a chain id that is much longer than the fifty characters that CometBFT allows"},
		{GenesisFile: filepath.Join(dir, "none.json")},
	} {
		opts.Home = dir
		_, err := home.Init(opts)
		require.Error(t, err)
		require.NoDirExists(t, dir)
	}
}

func TestInitFromAGenesisFile(t *testing.T) {
	first, _ := nodetest.Home(t, nil)
	genesis := filepath.Join(first, "config", "genesis.json")
	home, result := nodetest.Home(t, func(o *home.InitOptions) { o.ChainID, o.GenesisFile = "", genesis })
	require.Equal(t, "test-chain", result.ChainID)
	doc, err := config.LoadGenesis(filepath.Join(home, "config", "genesis.json"))
	require.NoError(t, err)
	old, err := config.LoadGenesis(genesis)
	require.NoError(t, err)
	require.NoError(t, config.SameGenesis(doc, old))
}

func TestInitNamesAChainAtRandom(t *testing.T) {
	_, a := nodetest.Home(t, func(o *home.InitOptions) { o.ChainID = "" })
	_, b := nodetest.Home(t, func(o *home.InitOptions) { o.ChainID = "" })
	require.Regexp(t, `^starling-[a-z0-9]{6}$`, a.ChainID)
	require.NotEqual(t, a.ChainID, b.ChainID)
}
