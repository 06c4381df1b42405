package home

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	cometed25519 "github.com/cometbft/cometbft/crypto/ed25519"
	cmtjson "github.com/cometbft/cometbft/libs/json"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/node/config"
)

// A genesis file of several validators is made like with gentx and collect-gentxs of the Cosmos
// SDK:
//
//	each operator      NewGenesisValidator ──► validator's file, signed by its key ──┐
//	the coordinator    a home's genesis ── AddAdmin, AddGrant ──► CollectGenesis ◄───┘
//	                                                                  │
//	each operator      DescribeGenesis ◄── genesis.json, the same for all
//
// The functions here change documents. Only WriteGenesis writes a file.

// ErrStarted: a home has data that belong to its genesis file, so the file cannot be changed.
var ErrStarted = errors.New("the node was started with this genesis file")

// NewGenesisValidator creates the file of this home's validator. Chain id, keys and (unless v has
// one) the name are those of the home; v provides the other fields.
func NewGenesisValidator(c *config.Config, v GenesisValidator) (*GenesisValidator, []byte, error) {
	doc, err := config.LoadGenesis(c.CometBFT.GenesisFile())
	if err != nil {
		return nil, nil, err
	}
	nodeKey, err := config.LoadNodeKey(c.CometBFT)
	if err != nil {
		return nil, nil, err
	}
	key, err := config.LoadValidatorKey(c.CometBFT)
	if err != nil {
		return nil, nil, err
	}
	v.ChainID, v.NodeID = doc.ChainID, string(nodeKey.ID())
	if v.Name == "" {
		v.Name = c.CometBFT.Moniker
	}
	raw, err := v.Sign(key)
	return &v, raw, config.Invalid(err)
}

// NamedFile is a file from another operator.
type NamedFile struct {
	Name    string
	Content []byte
}

// CollectGenesis replaces the validators of the document by those of files. The result does not
// depend on the order of files. Errors name the file. The validators are returned in the order of
// the document, by public key.
func CollectGenesis(doc *cmttypes.GenesisDoc, files []NamedFile) ([]*GenesisValidator, error) {
	var (
		list   []*GenesisValidator
		byKey  = map[string]string{} // public keys and node ids, with the file's name
		byNode = map[string]string{}
		sum    uint64
	)
	for _, file := range files {
		v, err := ParseGenesisValidator(file.Content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file.Name, err)
		}
		if v.ChainID != doc.ChainID {
			return nil, fmt.Errorf("%s: the file is for chain %q, but the genesis file has chain %q: its operator must create it again in a home of that chain",
				file.Name, v.ChainID, doc.ChainID)
		}
		if other, is := byKey[string(v.PublicKey)]; is {
			return nil, fmt.Errorf("%s: same validator key as %s: omit one of the two", file.Name, other)
		}
		if other, is := byNode[v.NodeID]; is {
			return nil, fmt.Errorf("%s: same node id as %s: two nodes must not share config/node_key.json", file.Name, other)
		}
		if sum += uint64(v.Power); sum > app.MaxTotalPower {
			return nil, fmt.Errorf("%s: with its power of %d the sum exceeds %d", file.Name, v.Power, uint64(app.MaxTotalPower))
		}
		byKey[string(v.PublicKey)], byNode[v.NodeID] = file.Name, file.Name
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b *GenesisValidator) int { return bytes.Compare(a.PublicKey, b.PublicKey) })
	doc.Validators = nil
	for _, v := range list {
		key := cometed25519.PubKey(v.PublicKey)
		doc.Validators = append(doc.Validators, cmttypes.GenesisValidator{Address: key.Address(), PubKey: key, Power: v.Power, Name: v.Name})
	}
	_, err := DescribeGenesis(doc)
	return list, err
}

// AddAccount makes an account an admin of the document's app_state, if admin is true, and adds
// grants.
func AddAccount(doc *cmttypes.GenesisDoc, account []byte, admin bool, grants ...app.GenesisGrant) error {
	state, err := app.ParseGenesis(doc.AppState)
	if err != nil {
		return err
	}
	if admin {
		state.Admins = append(state.Admins, hex.EncodeToString(account))
	}
	state.Grants = append(state.Grants, grants...)
	raw, err := appState(state)
	if err == nil {
		doc.AppState = raw
	}
	return err
}

// appState completes, checks and encodes an app_state. Errors match config.ErrInvalid.
func appState(state app.Genesis) (json.RawMessage, error) {
	defaults, err := app.ParseGenesis([]byte("{}"))
	if err != nil {
		return nil, err
	}
	if state.ChunkBytes == 0 {
		state.ChunkBytes = defaults.ChunkBytes
	}
	if state.SnapshotInterval == 0 {
		state.SnapshotInterval = defaults.SnapshotInterval
	}
	if state.Admins == nil {
		state.Admins = []string{}
	}
	if state.Grants == nil {
		state.Grants = []app.GenesisGrant{}
	}
	raw, err := json.Marshal(state)
	if err != nil {
		return nil, err
	}
	_, err = app.ParseGenesis(raw)
	return raw, config.Invalid(err)
}

// ErrAdopted: AdoptGenesis has nothing to add.
var ErrAdopted = errors.New("it is already a Starling genesis file")

// AdoptGenesis converts the genesis document of another program, such as `cometbft init`, to one of
// Starling: it adds state as the app_state if there is none, and the application version.
func AdoptGenesis(doc *cmttypes.GenesisDoc, state app.Genesis) error {
	if !config.ForeignGenesis(doc) {
		return ErrAdopted
	}
	if !config.HasAppState(doc) {
		raw, err := appState(state)
		if err != nil {
			return err
		}
		doc.AppState = raw
	}
	doc.ConsensusParams.Version.App = app.GenesisVersion
	_, err := DescribeGenesis(doc)
	return err
}

// GenesisSummary is the summary that operators compare before they start.
type GenesisSummary struct {
	ChainID     string
	GenesisTime time.Time
	AppHash     []byte // app hash of the state before the first block
	TotalPower  uint64
	State       app.Genesis
}

// CanWrite reports whether any transaction could be accepted.
func (s GenesisSummary) CanWrite() bool {
	return s.State.Open || len(s.State.Admins) > 0 || len(s.State.Grants) > 0
}

// DescribeGenesis checks a document like the first start would, and computes the app hash before
// the first block. Errors match config.ErrInvalid.
func DescribeGenesis(doc *cmttypes.GenesisDoc) (GenesisSummary, error) {
	raw, err := cmtjson.Marshal(doc)
	if err == nil {
		doc, err = config.ParseGenesis(raw)
	}
	if err != nil {
		return GenesisSummary{}, config.Invalid(err)
	}
	s := GenesisSummary{ChainID: doc.ChainID, GenesisTime: doc.GenesisTime}
	for _, v := range doc.Validators {
		s.TotalPower += uint64(v.Power)
	}
	if s.State, err = app.ParseGenesis(doc.AppState); err != nil {
		return s, config.Invalid(err)
	}
	v, err := app.GenesisState(config.InitChainRequest(doc))
	if err != nil {
		return s, config.Invalid(err)
	}
	defer v.Release()
	hash := v.AppHash()
	s.AppHash = hash[:]
	return s, nil
}

// NeverStarted returns ErrStarted if a home has data that belong to its genesis file.
func NeverStarted(c *config.Config) error {
	dir := c.CometBFT.DBDir()
	for _, path := range append([]string{config.StateDir(dir)}, config.CometPaths(c.CometBFT)...) {
		if config.Exists(path) {
			return fmt.Errorf("%w: %q exists: change the file before the first start, or remove the data with `starlingd unsafe-reset-all --home %s`",
				ErrStarted, path, config.Quote(c.Home))
		}
	}
	return nil
}

// WriteGenesis replaces the file at path atomically, and returns the SHA-256 of its content.
func WriteGenesis(path string, doc *cmttypes.GenesisDoc) ([]byte, error) {
	raw, err := EncodeGenesis(doc)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)
	return sum[:], durable.Write(path, raw, 0o644) // not secret: all nodes have it
}

// EncodeGenesis returns the content of a genesis file.
func EncodeGenesis(doc *cmttypes.GenesisDoc) ([]byte, error) {
	raw, err := cmtjson.MarshalIndent(doc, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("genesis: %w", err)
	}
	return raw, nil
}
