package lightblocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	cmtstate "github.com/cometbft/cometbft/proto/tendermint/state"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/types"
	"github.com/cometbft/cometbft/version"
	"golang.org/x/sync/errgroup"

	"github.com/starling-kv/starling/statesync/lightclient"
)

// State returns CometBFT's state after the block of a height, for a node whose application already
// has the state of that height. Like CometBFT's statesync/stateprovider.go it needs the blocks
// height, height+1 and height+2, because a change of validators in one block takes effect two
// heights later. Two parts are in no header, so peers' responses about them cannot be proved:
//
//   - Consensus parameters: headers commit only to the block limits and the app version. All
//     other parameters are taken from the genesis document: Starling's application never changes them.
//   - Proposer priorities of the validators; see priorities.go.
func (v *Verifier) State(ctx context.Context, height int64, genesis *types.GenesisDoc) (sm.State, error) {
	if genesis.ChainID != v.opts.ChainID {
		return sm.State{}, fmt.Errorf("state: genesis is of chain %q, not %q", genesis.ChainID, v.opts.ChainID)
	}
	initial := max(genesis.InitialHeight, 1)
	if height < initial {
		return sm.State{}, fmt.Errorf("state: height %d is below the first height %d", height, initial)
	}
	var blocks [3]*types.LightBlock
	all, asking := errgroup.WithContext(ctx)
	for i := range blocks {
		all.Go(func() (err error) {
			blocks[i], err = v.LightBlock(asking, height+int64(i))
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return sm.State{}, fmt.Errorf("state after height %d: %w", height, err)
	}
	last, current, next := blocks[0], blocks[1], blocks[2]
	params, err := v.params(ctx, current, genesis)
	if err != nil {
		return sm.State{}, fmt.Errorf("state after height %d: %w", height, err)
	}
	sets, err := v.validators(ctx, blocks, initial)
	if err != nil {
		return sm.State{}, fmt.Errorf("state after height %d: %w", height, err)
	}
	return sm.State{
		Version:                          cmtstate.Version{Consensus: current.Version, Software: version.TMCoreSemVer},
		ChainID:                          v.opts.ChainID,
		InitialHeight:                    initial,
		LastBlockHeight:                  last.Height,
		LastBlockID:                      last.Commit.BlockID,
		LastBlockTime:                    last.Time,
		LastValidators:                   sets[0],
		Validators:                       sets[1],
		NextValidators:                   sets[2],
		LastHeightValidatorsChanged:      next.Height,
		ConsensusParams:                  params,
		LastHeightConsensusParamsChanged: current.Height,
		LastResultsHash:                  current.LastResultsHash,
		AppHash:                          current.AppHash,
	}, nil
}

// params returns the parameters in force at a proved block. It asks peers only if the genesis
// document's parameters do not have the hash in the header.
func (v *Verifier) params(ctx context.Context, at *types.LightBlock, genesis *types.GenesisDoc) (types.ConsensusParams, error) {
	params := *types.DefaultConsensusParams()
	if genesis.ConsensusParams != nil {
		params = *genesis.ConsensusParams
	}
	params.Version.App = at.Version.App
	if bytes.Equal(params.Hash(), at.ConsensusHash) {
		return params, nil
	}
	peers := v.usablePeers()
	if len(peers) == 0 {
		return params, fmt.Errorf("consensus parameters of height %d: %w", at.Height, ErrNoPeers)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		p     *peer
		given types.ConsensusParams
		err   error
	}
	results := make(chan result, len(peers))
	for _, p := range peers { // responses are small, so all peers are asked at once
		v.spawn(func() {
			r := result{p: p}
			call, cancel := context.WithTimeout(ctx, v.opts.callTimeout)
			defer cancel()
			r.err = lightclient.Guard(func() (err error) {
				r.given, err = p.ConsensusParams(call, at.Height)
				return err
			})
			results <- r
		})
	}
	var why reasons
	for range peers {
		select {
		case <-ctx.Done():
			return params, fmt.Errorf("consensus parameters of height %d: %w", at.Height, ctx.Err())
		case <-v.ctx.Done():
			return params, ErrClosed
		case r := <-results:
			if r.err == nil && !bytes.Equal(r.given.Hash(), at.ConsensusHash) {
				r.err = fmt.Errorf("%w: consensus parameters of height %d have hash %X, the header has %X",
					errLie, at.Height, r.given.Hash(), at.ConsensusHash)
			}
			if r.err != nil {
				why.add(r.p, r.err)
				v.blame(r.p, r.err)
				continue
			}
			params.Block = r.given.Block
			return params, nil
		}
	}
	return params, fmt.Errorf("consensus parameters of height %d: %w", at.Height, why.explain(at.Height, len(peers)))
}

// StateProvider implements CometBFT's statesync.StateProvider with a Verifier. It is safe for
// concurrent use.
type StateProvider struct {
	Verifier *Verifier
	Genesis  *types.GenesisDoc
	Timeout  time.Duration // of one call, for callers whose context never ends; 0: no limit
}

func (p StateProvider) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if p.Timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, p.Timeout)
}

// AppHash returns the app hash after a height. It fails if a block that State needs for that height
// is missing.
func (p StateProvider) AppHash(ctx context.Context, height uint64) ([]byte, error) {
	ctx, cancel := p.limited(ctx)
	defer cancel()
	hash, err := p.Verifier.AppHash(ctx, int64(height))
	if err != nil {
		return nil, err
	}
	_, err = p.Verifier.LightBlock(ctx, int64(height)+2)
	return hash, err
}

// Commit returns the commit of a height.
func (p StateProvider) Commit(ctx context.Context, height uint64) (*types.Commit, error) {
	ctx, cancel := p.limited(ctx)
	defer cancel()
	return p.Verifier.Commit(ctx, int64(height))
}

// State returns CometBFT's state after a height.
func (p StateProvider) State(ctx context.Context, height uint64) (sm.State, error) {
	if p.Genesis == nil {
		return sm.State{}, errors.New("state: no genesis")
	}
	ctx, cancel := p.limited(ctx)
	defer cancel()
	return p.Verifier.State(ctx, int64(height), p.Genesis)
}
