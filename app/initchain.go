package app

import (
	"context"
	"fmt"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/avlstar"
)

// InitChain builds the genesis state, one block of changes on the empty tree, and returns its
// AppHash. The state stays in memory: CometBFT calls InitChain again until a block is committed. An
// error stops the node.
func (a *App) InitChain(_ context.Context, req *abci.RequestInitChain) (*abci.ResponseInitChain, error) {
	if want := a.options.ChainID; want != "" && req.ChainId != want {
		return nil, fmt.Errorf("genesis: chain_id is %q, this node was started for %q", req.ChainId, want)
	}
	params, v, err := genesisState(req)
	if err != nil {
		return nil, err
	}
	if v, err = a.state.genesis(v); err != nil {
		return nil, err
	}
	writable, err := canWrite(v)
	if err != nil {
		v.Release()
		return nil, err
	}
	a.block.Lock()
	defer a.block.Unlock()
	if a.block.height > 0 {
		v.Release()
		return nil, fmt.Errorf("InitChain was called, but the state is at height %d: CometBFT's data and the state do not match, "+
			"restore both or reset both", a.block.height)
	}
	a.block.initial = max(req.InitialHeight, 1)
	a.replace(0, v, params)
	a.check.reset(v, params, nil, false, nil)

	hash := v.AppHash()
	res := &abci.ResponseInitChain{AppHash: hash[:]}
	if given := req.ConsensusParams.Version; given == nil || given.App != GenesisVersion {
		// Otherwise headers would have the version of the genesis file, and Info another version.
		res.ConsensusParams = versionUpdate(GenesisVersion)
	}
	if !params.Open && !writable {
		a.logger.Error("no account can ever write on this chain: genesis is not open and names neither admins nor grants")
	}
	a.logger.Info("genesis state", "chain_id", params.ChainId, "app_hash", hash, "keys", keysOf(v))
	return res, nil
}

// canWrite reports whether there is an account that can send signed transactions.
func canWrite(v *avlstar.Version) (bool, error) {
	o := newOverlay(v)
	if admins, err := o.anyUnder(record(tagAdmin)); admins || err != nil {
		return admins, err
	}
	return o.anyUnder(record(tagGrant))
}

// GenesisState returns the state before the first block, as InitChain computes it, for programs
// that keep a part of it. The caller releases it. It returns an error if the genesis file is
// invalid.
func GenesisState(req *abci.RequestInitChain) (*avlstar.Version, error) {
	_, v, err := genesisState(req)
	return v, err
}

// genesisState depends only on the genesis file.
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
	defer empty.Release()
	o := newOverlay(empty)
	if _, err := o.set(ParamsKey(), value); err != nil {
		return nil, nil, err
	}
	if err := genesisValidators(o, req.Validators, most); err != nil {
		return nil, nil, err
	}
	if err := g.record(o); err != nil {
		return nil, nil, err
	}
	v, err := empty.Apply(o.changes())
	if err != nil {
		return nil, nil, fmt.Errorf("genesis: %w", err)
	}
	return params, v, nil
}

// record writes the records of the admins, their threshold, and the grants.
func (g *genesis) record(o *overlay) error {
	for _, account := range g.admins {
		if _, err := o.set(AdminKey(account), adminValue); err != nil {
			return err
		}
	}
	if value := encodeThreshold(g.AdminThreshold); value != nil {
		if _, err := o.set(ThresholdKey(), value); err != nil {
			return err
		}
	}
	for _, grant := range g.grants {
		if _, _, err := o.setGrant(grant.grantee, grant.prefix, grant.quota, false); err != nil {
			return err
		}
	}
	return nil
}
