package home_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	cmtjson "github.com/cometbft/cometbft/libs/json"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// validatorFiles creates the files of n homes of one chain.
func validatorFiles(t *testing.T, n int) (files []home.NamedFile) {
	t.Helper()
	for i := range n {
		dir, _ := nodetest.Home(t, nil)
		_, raw, err := home.NewGenesisValidator(nodetest.Load(t, dir), home.GenesisValidator{
			Power: int64(10 + i), Name: fmt.Sprintf("node <%d>", i), Address: fmt.Sprintf("10.0.0.%d:26656", i),
		})
		require.NoError(t, err)
		files = append(files, home.NamedFile{Name: fmt.Sprintf("%d.json", i), Content: raw})
	}
	return files
}

// genesisOf reads the genesis file of a home.
func genesisOf(t *testing.T, dir string) *cmttypes.GenesisDoc {
	t.Helper()
	doc, err := config.LoadGenesis(filepath.Join(dir, "config", "genesis.json"))
	require.NoError(t, err)
	return doc
}

func TestCollectedGenesisDoesNotDependOnOrder(t *testing.T) {
	files, random := validatorFiles(t, 5), seeds.Rand(t)
	dir, _ := nodetest.Home(t, nil)
	var first []byte
	for range 10 {
		random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
		doc := genesisOf(t, dir)
		list, err := home.CollectGenesis(doc, files)
		require.NoError(t, err)
		require.Len(t, list, len(files))
		for i, v := range list {
			require.Equal(t, []byte(v.PublicKey), doc.Validators[i].PubKey.Bytes())
			require.Equal(t, v.NodeID+"@"+v.Address, v.Peer())
		}
		_, err = home.WriteGenesis(filepath.Join(dir, "collected.json"), doc)
		require.NoError(t, err)
		raw, err := os.ReadFile(filepath.Join(dir, "collected.json"))
		require.NoError(t, err)
		if first == nil {
			first = raw
		}
		require.Equal(t, string(first), string(raw))
	}
	left, err := filepath.Glob(filepath.Join(dir, "collected.json.*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// Any single change of a field, or of a byte of the file, is refused, or gives an equivalent file
// of the same validator.
func TestChangedValidatorFileIsRefused(t *testing.T) {
	raw := validatorFiles(t, 1)[0].Content
	original, err := home.ParseGenesisValidator(raw)
	require.NoError(t, err)
	same := func(content []byte) {
		v, err := home.ParseGenesisValidator(content)
		if err == nil {
			require.Equal(t, original, v, "%s", content)
		}
	}
	for i := range raw {
		for _, bit := range []byte{1, 2, 4, 32} {
			changed := bytes.Clone(raw)
			changed[i] ^= bit
			same(changed)
		}
		same(raw[:i])
		same(append(bytes.Clone(raw[:i]), raw[i+1:]...))
	}
	for field, value := range map[string]any{
		"starling_genesis_validator": 2, "chain_id": "other", "name": "mallory", "power": 1000, "node_id": "0123456789012345678901234567890123456789",
		"address": "10.0.0.66:26656", "public_key": "1e322f2ce1ecba50dc54b361baf8ac12c1ec782aa32f304749a4b8ddc10ad914", "signature": "",
	} {
		var object map[string]any
		require.NoError(t, json.Unmarshal(raw, &object))
		require.Contains(t, object, field)
		object[field] = value
		changed, err := json.Marshal(object)
		require.NoError(t, err)
		_, err = home.ParseGenesisValidator(changed)
		require.Error(t, err, field)
		delete(object, field)
		changed, err = json.Marshal(object)
		require.NoError(t, err)
		_, err = home.ParseGenesisValidator(changed)
		require.Error(t, err, field)
	}
	_, err = home.ParseGenesisValidator(append(raw, bytes.Repeat([]byte(" "), home.MaxGenesisValidatorBytes)...))
	require.ErrorContains(t, err, "more than 65536 bytes")
}

func FuzzParseGenesisValidator(f *testing.F) {
	f.Add([]byte(`{"starling_genesis_validator":1,"chain_id":"c","name":"n","public_key":"00","power":1,"node_id":"","signature":"00"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if v, err := home.ParseGenesisValidator(raw); err == nil {
			require.Positive(t, v.Power)
			require.LessOrEqual(t, uint64(v.Power), uint64(app.MaxTotalPower))
		}
	})
}

// stockGenesis is the output of `cometbft init`.
func stockGenesis(t *testing.T) *cmttypes.GenesisDoc {
	t.Helper()
	dir, _ := nodetest.Home(t, nil)
	doc := genesisOf(t, dir)
	stock := &cmttypes.GenesisDoc{
		ChainID: "test-chain-x", GenesisTime: doc.GenesisTime, ConsensusParams: cmttypes.DefaultConsensusParams(), Validators: doc.Validators,
	}
	require.NoError(t, stock.ValidateAndComplete())
	return stock
}

func TestAdoptGenesis(t *testing.T) {
	doc := stockGenesis(t)
	path := filepath.Join(t.TempDir(), "a genesis.json")
	_, err := home.WriteGenesis(path, doc)
	require.NoError(t, err)
	_, err = config.LoadGenesis(path)
	require.ErrorIs(t, err, config.ErrInvalid)
	require.ErrorContains(t, err, "app_state is missing")
	require.ErrorContains(t, err, "run `starlingd genesis adopt '"+path+"' --admin PUBKEY`")

	require.ErrorIs(t, home.AdoptGenesis(doc, app.Genesis{Admins: []string{"nobody"}}), config.ErrInvalid)
	require.NoError(t, home.AdoptGenesis(doc, app.Genesis{Open: true}))
	_, err = home.WriteGenesis(path, doc)
	require.NoError(t, err)
	adopted, err := config.LoadGenesis(path)
	require.NoError(t, err)
	require.Equal(t, "test-chain-x", adopted.ChainID)
	summary, err := home.DescribeGenesis(adopted)
	require.NoError(t, err)
	require.True(t, summary.CanWrite())
	require.Len(t, summary.AppHash, 32)
	require.ErrorIs(t, home.AdoptGenesis(doc, app.Genesis{Open: true}), home.ErrAdopted)

	// its own app_state stays
	doc.ConsensusParams.Version.App = 0
	state := doc.AppState
	_, err = home.WriteGenesis(path, doc)
	require.NoError(t, err)
	_, err = config.LoadGenesis(path)
	require.ErrorContains(t, err, "consensus_params.version.app is 0")
	require.ErrorContains(t, err, "starlingd genesis adopt '"+path+"'")
	require.NoError(t, home.AdoptGenesis(doc, app.Genesis{}))
	require.Equal(t, state, doc.AppState)
}

func TestDescribeGenesisRefusesWhatAStartWould(t *testing.T) {
	dir, _ := nodetest.Home(t, nil)
	for name, c := range map[string]struct {
		edit func(*cmttypes.GenesisDoc)
		want string
	}{
		"no validators": {func(d *cmttypes.GenesisDoc) { d.Validators = nil }, "no validators"},
		"twice":         {func(d *cmttypes.GenesisDoc) { d.Validators = append(d.Validators, d.Validators[0]) }, `validators[1] ("test") has the same key as validators[0]`},
		"no power":      {func(d *cmttypes.GenesisDoc) { d.Validators[0].Power = -1 }, "has power -1"},
		"too much":      {func(d *cmttypes.GenesisDoc) { d.Validators[0].Power = app.MaxTotalPower + 1 }, "it must be from 1 to"},
		"version":       {func(d *cmttypes.GenesisDoc) { d.ConsensusParams.Version.App = 7 }, "version.app is 7"},
	} {
		doc := genesisOf(t, dir)
		c.edit(doc)
		_, err := home.DescribeGenesis(doc)
		require.ErrorIs(t, err, config.ErrInvalid, name)
		require.ErrorContains(t, err, c.want, name)
	}
}

// An arbitrary genesis file never causes a panic.
func FuzzDecodeGenesis(f *testing.F) {
	f.Add([]byte(`{"chain_id":"c","validators":[{"power":"1"}]}`))
	f.Add([]byte(`{"chain_id":"c","validators":[{"pub_key":null,"power":"1"}],"consensus_params":null,"app_state":null}`))
	f.Add([]byte(`{"chain_id":"c","validators":[{"pub_key":{"type":"tendermint/PubKeyEd25519","value":"AA=="},"power":"1"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		doc, err := config.DecodeGenesisStrictly(raw)
		if err != nil {
			return
		}
		_, _ = home.DescribeGenesis(doc)
		_, err = cmtjson.Marshal(doc)
		require.NoError(t, err)
	})
}
