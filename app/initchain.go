package app

import (
	"context"
	"fmt"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/avlstar"
)

// InitChain builds the genesis state, one block of changes on the empty tree, and answers with its AppHash. It stays in memory:
// CometBFT calls InitChain again as long as no block is committed. An error stops the node.
func (a *App) InitChain(_ context.Context, req *abci.RequestInitChain) (*abci.ResponseInitChain, error) {
	if want := a.options.ChainID; want != "" && req.ChainId != want {
		return nil, fmt.Errorf("genesis: chain_id is %q, this node was started for %q", req.ChainId, want)
	}
	params, v, err := genesisState(req)
	if err != nil {
		return nil, err
	}
	a.block.Lock()
	defer a.block.Unlock()
	if a.block.height > 0 {
		v.Release()
		return nil, fmt.Errorf("InitChain, but there is a state at height %d: CometBFT's data and the state do not belong together, "+
			"restore both or reset both", a.block.height)
	}
	a.block.initial = max(req.InitialHeight, 1)
	a.replace(0, v, params)
	a.check.reset(v, params, nil, false)

	hash := v.AppHash()
	res := &abci.ResponseInitChain{AppHash: hash[:]}
	if given := req.ConsensusParams.Version; given == nil || given.App != GenesisVersion {
		// Else the headers would carry the genesis file's version, which Info contradicts.
		res.ConsensusParams = versionUpdate(GenesisVersion)
	}
	if !params.Open && !canWrite(v) {
		a.logger.Error("nobody can ever write on this chain: genesis is not open and names neither admins nor grants")
	}
	a.logger.Info("genesis state", "chain_id", params.ChainId, "app_hash", hash, "keys", v.Len())
	return res, nil
}

func canWrite(v *avlstar.Version) bool {
	o := newOverlay(v)
	return o.anyUnder(record(tagAdmin)) || o.anyUnder(record(tagGrant))
}

// genesisState is a function of the genesis file alone.
func genesisState(req *abci.RequestInitChain) (*Params, *avlstar.Version, error) {
	g, err := parseGenesis(req.AppStateBytes)
	if err != nil {
		return nil, nil, err
	}
	most, err := maxValidators(req.ConsensusParams)
	if err != nil {
		return nil, nil, err
	}
	empty, err := avlstar.Empty(g.ChunkBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: chunk_bytes: %w", ErrGenesis, err)
	}
	params := &Params{
		ChainId:          req.ChainId,
		ChunkBytes:       g.ChunkBytes,
		SnapshotInterval: g.SnapshotInterval,
		Open:             g.Open,
		AppVersion:       GenesisVersion,
		MaxValidators:    most,
	}
	value, err := params.Marshal()
	if err != nil {
		return nil, nil, fmt.Errorf("genesis: encode the parameters: %w", err)
	}
	o := newOverlay(empty)
	o.set(ParamsKey(), value)
	if err := genesisValidators(o, req.Validators, most); err != nil {
		return nil, nil, err
	}
	for _, account := range g.admins {
		o.set(AdminKey(account), adminValue)
	}
	for _, grant := range g.grants {
		o.setGrant(grant.grantee, grant.prefix, grant.quota, false)
	}
	defer empty.Release()
	v, err := empty.Apply(o.changes())
	if err != nil {
		return nil, nil, fmt.Errorf("genesis: %w", err)
	}
	return params, v, nil
}
