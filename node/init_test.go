package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
)

func TestInitOverwritesNothing(t *testing.T) {
	home, _ := testHome(t, nil)
	for _, name := range []string{"config/config.toml", "config/app.toml", "config/genesis.json", "config/node_key.json",
		"config/priv_validator_key.json", "data/priv_validator_state.json"} {
		other := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(other, filepath.Dir(name)), 0o700))
		raw, err := os.ReadFile(filepath.Join(home, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(other, name), raw, 0o600))
		_, err = Init(InitOptions{Home: other})
		require.ErrorIs(t, err, ErrInitialised)
		require.ErrorContains(t, err, filepath.Base(name))
		after, err := os.ReadFile(filepath.Join(other, name))
		require.NoError(t, err)
		require.Equal(t, raw, after)
	}
}

func TestInitFilesArePrivate(t *testing.T) {
	home, _ := testHome(t, nil)
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
	home := filepath.Join(t.TempDir(), "home")
	for _, opts := range []InitOptions{
		{App: app.Genesis{Admins: []string{"nobody"}}},
		{App: app.Genesis{ChunkBytes: 1 << 40}},
		{App: app.Genesis{SnapshotInterval: -1}},
		{ChainID: "a chain id that is much longer than the fifty characters that CometBFT allows"},
		{GenesisFile: filepath.Join(home, "none.json")},
	} {
		opts.Home = home
		_, err := Init(opts)
		require.Error(t, err)
		require.NoDirExists(t, home)
	}
}

func TestInitFromAGenesisFile(t *testing.T) {
	first, _ := testHome(t, nil)
	genesis := filepath.Join(first, "config", "genesis.json")
	home, result := testHome(t, func(o *InitOptions) { o.ChainID, o.GenesisFile = "", genesis })
	require.Equal(t, "test-chain", result.ChainID)
	doc, err := LoadGenesis(filepath.Join(home, "config", "genesis.json"))
	require.NoError(t, err)
	old, err := LoadGenesis(genesis)
	require.NoError(t, err)
	require.NoError(t, sameGenesis(doc, old))
}

func TestInitNamesAChainAtRandom(t *testing.T) {
	_, a := testHome(t, func(o *InitOptions) { o.ChainID = "" })
	_, b := testHome(t, func(o *InitOptions) { o.ChainID = "" })
	require.Regexp(t, `^starling-[a-z0-9]{6}$`, a.ChainID)
	require.NotEqual(t, a.ChainID, b.ChainID)
}

func TestWrongGenesisIsRefusedByName(t *testing.T) {
	home, _ := testHome(t, nil)
	original, err := os.ReadFile(filepath.Join(home, "config", "genesis.json"))
	require.NoError(t, err)
	params := func(doc map[string]any, section string) map[string]any {
		return doc["consensus_params"].(map[string]any)[section].(map[string]any)
	}
	for name, c := range map[string]struct {
		edit func(map[string]any)
		want string
	}{
		"unknown field":        {func(d map[string]any) { d["chainid"] = "x" }, "unknown field chainid"},
		"unknown parameter":    {func(d map[string]any) { params(d, "block")["max_byte"] = "1" }, "unknown field consensus_params.block.max_byte"},
		"unknown in validator": {func(d map[string]any) { d["validators"].([]any)[0].(map[string]any)["pow"] = "1" }, "unknown field validators[0].pow"},
		"no object":            {func(d map[string]any) { d["consensus_params"] = 5 }, "consensus_params must be an object"},
		"app_state":            {func(d map[string]any) { d["app_state"].(map[string]any)["chunkbytes"] = 1 }, "chunkbytes"},
		"no app_state":         {func(d map[string]any) { delete(d, "app_state") }, "app_state is missing"},
		"application version":  {func(d map[string]any) { params(d, "version")["app"] = "2" }, "consensus_params.version.app is 2"},
		"small blocks":         {func(d map[string]any) { params(d, "block")["max_bytes"] = "2000000" }, "consensus_params.block.max_bytes = 2000000 is too low for the largest value"},
		"vote extensions":      {func(d map[string]any) { params(d, "abci")["vote_extensions_enable_height"] = "5" }, "vote_extensions_enable_height must be 0"},
		"key types":            {func(d map[string]any) { params(d, "validator")["pub_key_types"] = []string{"secp256k1"} }, "ed25519"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "genesis.json")
			writeFile(t, path, string(original))
			editJSON(t, path, c.edit)
			_, err := LoadGenesis(path)
			require.ErrorIs(t, err, ErrGenesis)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, path)
		})
	}
}
