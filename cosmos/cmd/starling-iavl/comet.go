package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	cmtdb "github.com/cometbft/cometbft-db"
	cmtjson "github.com/cometbft/cometbft/libs/json"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	sm "github.com/cometbft/cometbft/state"
	cmtstore "github.com/cometbft/cometbft/store"
	cmttypes "github.com/cometbft/cometbft/types"
	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/internal/durable"
)

// databaseOnly is the flag for homes whose CometBFT gets its state by other means.
const databaseOnly = "database-only"

// cometFolder is the folder in joiningDir for CometBFT's databases until they are complete.
const cometFolder = "comet"

// comet is the CometBFT of a new node. Its records are those of CometBFT's own BootstrapState
// (node/node.go). The SDK's v0.38 can read what v0.40 writes: the only addition is a field of the
// consensus parameters, which v0.38 ignores.
type comet struct {
	home    string
	engine  dbm.BackendType
	genesis *cmttypes.GenesisDoc // without the application's state
}

// openComet reads the settings and the genesis file of a new node.
func openComet(home, chainID string) (*comet, error) {
	settings, err := readSettings(home, "config.toml")
	if err != nil {
		return nil, err
	}
	engine := dbm.BackendType(cmp.Or(topSetting(settings, "db_backend"), string(dbm.GoLevelDBBackend)))
	if !known(engine) {
		return nil, fmt.Errorf("config.toml has db_backend = %q: CometBFT's state can only be written with %s or %s. "+
			"Join with --%s, and then run the node's own command \"comet bootstrap-state\"",
			engine, dbm.GoLevelDBBackend, dbm.PebbleDBBackend, databaseOnly)
	}
	if dir := topSetting(settings, "db_dir"); dir != "" && filepath.Clean(dir) != "data" {
		return nil, fmt.Errorf("config.toml has db_dir = %q: CometBFT's state can only be written to data. "+
			"Join with --%s, and then run the node's own command \"comet bootstrap-state\"", dir, databaseOnly)
	}
	path := filepath.Join(home, "config", "genesis.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("genesis file: %w\nInitialise the home first, with the chain's genesis file, "+
			"or join with --%s, which writes only the application's database", err, databaseOnly)
	}
	genesis, err := decodeGenesis(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if genesis.ChainID != chainID {
		return nil, fmt.Errorf("%s is for chain %q, not %q", path, genesis.ChainID, chainID)
	}
	return &comet{home: home, engine: engine, genesis: genesis}, nil
}

// readSettings returns the text of a settings file in a home, or "" if it does not exist.
func readSettings(home, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(home, "config", name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}

// topSetting returns a setting before the first section of a settings file, or "" if it is not set.
func topSetting(text, name string) string { return setting(text, "", name) }

// setting returns a setting in a section, or "" if it is not set.
func setting(text, section, name string) string {
	if section != "" {
		at := regexp.MustCompile(`(?m)^\s*\[` + regexp.QuoteMeta(section) + `\]`).FindStringIndex(text)
		if at == nil {
			return ""
		}
		text = text[at[1]:]
	}
	if i := strings.Index("\n"+text, "\n["); i >= 0 {
		text = text[:i]
	}
	m := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(name) + `\s*=\s*(?:["']([^"'\n]*)["']|(\d\w*))`).FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return m[1] + m[2]
}

// decodeGenesis reads the chain ID, the initial height and the consensus parameters from a genesis
// file in the SDK's format (x/genutil/types, AppGenesis) or in CometBFT's.
func decodeGenesis(b []byte) (*cmttypes.GenesisDoc, error) {
	var file struct {
		ChainID       string          `json:"chain_id"`
		InitialHeight json.RawMessage `json:"initial_height"` // SDK: a number; CometBFT: a string
		Params        json.RawMessage `json:"consensus_params"`
		Consensus     struct {
			Params json.RawMessage `json:"params"`
		} `json:"consensus"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, fmt.Errorf("genesis: %w", err)
	}
	g := &cmttypes.GenesisDoc{ChainID: file.ChainID}
	if text := strings.Trim(string(file.InitialHeight), `"`); text != "" && text != "null" {
		if err := json.Unmarshal([]byte(text), &g.InitialHeight); err != nil {
			return nil, fmt.Errorf("genesis: initial_height: %w", err)
		}
	}
	for _, params := range []json.RawMessage{file.Consensus.Params, file.Params} {
		if len(params) == 0 || string(params) == "null" {
			continue
		}
		if err := cmtjson.Unmarshal(params, &g.ConsensusParams); err != nil {
			return nil, fmt.Errorf("genesis: consensus parameters: %w", err)
		}
		break
	}
	return g, nil
}

// state returns the height of CometBFT's state, or 0 if it has none. It fails if there are blocks.
func (c *comet) state() (height int64, err error) {
	for _, name := range []string{"blockstore", "state"} {
		db, err := openCometDB(c.home, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("%w (is its node running? If it is damaged, or belongs to another engine, a join would replace it: %w)", err, errHasState)
		}
		if name == "blockstore" {
			if blocks := cmtstore.NewBlockStore(db); !blocks.IsEmpty() {
				err = fmt.Errorf("%s: %w: %w", dbDir(c.home, name), errHasBlocks, errHasState)
			}
		} else {
			var state sm.State
			state, err = sm.NewStore(db, sm.StoreOptions{}).Load()
			height = state.LastBlockHeight
		}
		if err = errors.Join(err, db.Close()); err != nil {
			return 0, err
		}
	}
	return height, nil
}

var errHasBlocks = errors.New("the block store has blocks")

var errHasState = errors.New("a join needs a home without a state: remove data/state.db and data/blockstore.db, or use another home")

// empty fails unless CometBFT has no state or, if height is not 0, the state of this height, left
// by a killed join. there reports the latter.
func (c *comet) empty(height int64) (there bool, err error) {
	h, err := c.state()
	switch {
	case err != nil || h == 0:
	case h != height:
		err = fmt.Errorf("CometBFT in %s has the state of height %d: %w", dataDir(c.home), h, errHasState)
	default:
		err = sameEngine(dbDir(c.home, "state"), c.engine)
	}
	return h != 0, err
}

// consensusParams is the key under which the SDK keeps all consensus parameters that the
// application last returned to CometBFT (x/consensus/keeper, ParamsStore); each block's response
// contains them (baseapp/abci.go). The app hash covers the store.
const consensusParams = "s/k:consensus/fConsensus"

// document returns the genesis document with the consensus parameters after the application's last
// height: those of the genesis file, updated by those in the application's database.
func (c *comet) document(app dbm.DB) (*cmttypes.GenesisDoc, error) {
	g := *c.genesis
	params := *cmttypes.DefaultConsensusParams()
	if g.ConsensusParams != nil {
		params = *g.ConsensusParams
	}
	b, err := app.Get([]byte(consensusParams))
	if err != nil {
		return nil, err
	}
	if b != nil {
		_, value, err := nodedb.DecodeFast(b)
		if err != nil {
			return nil, err
		}
		var stored cmtproto.ConsensusParams
		if err := stored.Unmarshal(value); err != nil {
			return nil, fmt.Errorf("consensus parameters in the application's database: %w", err)
		}
		params = params.Update(&stored)
	}
	g.ConsensusParams = &params
	return &g, nil
}

// write writes CometBFT's databases for a state and its commit. Each is renamed into place once it
// is complete and durable, the state's last. Until then the home is either unchanged, or does not
// start and its join resumes.
func (c *comet) write(state sm.State, commit *cmttypes.Commit) error {
	blockDB, stateDB := cmtdb.NewMemDB(), cmtdb.NewMemDB()
	if err := cmtstore.NewBlockStore(blockDB).SaveSeenCommit(state.LastBlockHeight, commit); err != nil {
		return err
	}
	states := sm.NewStore(stateDB, sm.StoreOptions{})
	if err := errors.Join(states.SetOfflineStateSyncHeight(state.LastBlockHeight), states.Bootstrap(state)); err != nil {
		return err
	}
	err := c.make("blockstore", blockDB)
	if err == nil {
		err = c.make("state", stateDB)
	}
	if err != nil {
		return fmt.Errorf("CometBFT's databases in %s: %w", dataDir(c.home), err)
	}
	return nil
}

// madeComet is called at each step of writing CometBFT's databases. Tests end the process there.
var madeComet = func(string) {}

// make writes one of CometBFT's databases, replacing one that has no state.
func (c *comet) make(name string, records cmtdb.DB) error {
	making := filepath.Join(joiningDir(c.home), cometFolder, name+dbm.DBFileSuffix)
	if err := os.MkdirAll(filepath.Dir(making), 0o700); err != nil {
		return err
	}
	db, err := newTables(making, c.engine)
	if err != nil {
		return err
	}
	madeComet(name + " begun")
	it, err := records.Iterator(nil, nil)
	if err != nil {
		return err
	}
	var all []nodedb.Record
	for ; it.Valid(); it.Next() {
		all = append(all, nodedb.Record{Key: bytes.Clone(it.Key()), Value: bytes.Clone(it.Value())})
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return err
	}
	if err := db.Commit(all); err != nil {
		return err
	}
	madeComet(name + " filled")
	// Move the old database away as a whole, because a partly removed folder could not be opened.
	old := making + ".old"
	if err := os.RemoveAll(old); err != nil {
		return err
	}
	if err := os.Rename(dbDir(c.home, name), old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	madeComet(name + " replaced")
	if err := os.Rename(making, dbDir(c.home, name)); err != nil {
		return err
	}
	madeComet(name + " named")
	return durable.SyncDir(dataDir(c.home))
}
