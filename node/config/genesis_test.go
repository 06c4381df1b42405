package config_test

import (
	"os"
	"path/filepath"
	"testing"

	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

func TestWrongGenesisIsRefusedByName(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
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
			nodetest.WriteFile(t, path, string(original))
			nodetest.EditJSON(t, path, c.edit)
			_, err := config.LoadGenesis(path)
			require.ErrorIs(t, err, config.ErrGenesis)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, path)
		})
	}
}

func TestSameGenesisIgnoresWhiteSpace(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	path := filepath.Join(home, "config", "genesis.json")
	doc, err := config.LoadGenesis(path)
	require.NoError(t, err)
	nodetest.EditJSON(t, path, func(map[string]any) {})
	other, err := config.LoadGenesis(path)
	require.NoError(t, err)
	require.NoError(t, config.SameGenesis(doc, other))
	other.Validators = append([]cmttypes.GenesisValidator(nil), other.Validators...)
	other.Validators[0].Power++
	require.ErrorIs(t, config.SameGenesis(doc, other), app.ErrOtherChain)
}
