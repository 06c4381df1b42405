package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	rpcclient "github.com/cometbft/cometbft/rpc/client"
	coretypes "github.com/cometbft/cometbft/rpc/core/types"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/cosmos/cosmos-sdk/client"
)

// callTime is the timeout of calls to the application's own node, which runs in this process.
const callTime = 10 * time.Second

// RegisterTendermintService implements servertypes.Application. The SDK calls it with an RPC client
// of the node that runs the application, if gRPC or the API is enabled. From then on, joiners are
// served headers that this client reads.
func (a *App) RegisterTendermintService(c client.Context) {
	a.Application.RegisterTendermintService(c)
	if c.Client == nil {
		return
	}
	node := node{c.Client}
	a.headers.SetStores(blocks{node}, states{node}, nil)
}

// node reads from CometBFT over its RPC client. CometBFT panics if its databases fail or are
// closed. The header server turns such panics into errors.
type node struct{ client.CometRPC }

// blocks is a node's lightblocks.Blocks.
type blocks struct{ node }

// states is a node's lightblocks.States.
type states struct{ node }

// Base implements lightblocks.Blocks.
func (b blocks) Base() int64 { return b.status().EarliestBlockHeight }

// Height implements lightblocks.Blocks.
func (b blocks) Height() int64 { return b.status().LatestBlockHeight }

func (b blocks) status() coretypes.SyncInfo {
	ctx, done := context.WithTimeout(context.Background(), callTime)
	defer done()
	s, err := b.Status(ctx)
	if err != nil {
		return coretypes.SyncInfo{} // no blocks can be served
	}
	return s.SyncInfo
}

// LoadBlock implements lightblocks.Blocks.
func (b blocks) LoadBlock(height int64) *cmttypes.Block {
	ctx, done := context.WithTimeout(context.Background(), callTime)
	defer done()
	r, err := b.Block(ctx, &height)
	if err != nil {
		return nil
	}
	return r.Block
}

// LoadBlockMeta implements lightblocks.Blocks. Only the header of the result is set.
func (b blocks) LoadBlockMeta(height int64) *cmttypes.BlockMeta {
	r := b.signed(height)
	if r == nil {
		return nil
	}
	return &cmttypes.BlockMeta{Header: *r.Header}
}

// LoadBlockCommit implements lightblocks.Blocks.
func (b blocks) LoadBlockCommit(height int64) *cmttypes.Commit {
	if r := b.signed(height); r != nil && r.CanonicalCommit {
		return r.Commit
	}
	return nil
}

// LoadSeenCommit implements lightblocks.Blocks.
func (b blocks) LoadSeenCommit(height int64) *cmttypes.Commit {
	if r := b.signed(height); r != nil && !r.CanonicalCommit {
		return r.Commit
	}
	return nil
}

func (b blocks) signed(height int64) *coretypes.ResultCommit {
	ctx, done := context.WithTimeout(context.Background(), callTime)
	defer done()
	r, err := b.Commit(ctx, &height)
	if err != nil || r == nil || r.Header == nil || r.Commit == nil {
		return nil
	}
	return r
}

// LoadValidators implements lightblocks.States.
func (s states) LoadValidators(height int64) (*cmttypes.ValidatorSet, error) {
	ctx, done := context.WithTimeout(context.Background(), callTime)
	defer done()
	var all []*cmttypes.Validator
	for page, most := 1, 100; ; page++ { // the RPC's limit
		r, err := s.Validators(ctx, &height, &page, &most)
		if err != nil {
			return nil, err
		}
		all = append(all, r.Validators...)
		if len(all) >= r.Total {
			return cmttypes.ValidatorSetFromExistingValidators(all)
		}
		if len(r.Validators) == 0 {
			return nil, fmt.Errorf("the node returned %d of the %d validators of height %d", len(all), r.Total, height)
		}
	}
}

// LoadConsensusParams implements lightblocks.States.
func (s states) LoadConsensusParams(height int64) (cmttypes.ConsensusParams, error) {
	network, is := s.CometRPC.(rpcclient.NetworkClient)
	if !is {
		return cmttypes.ConsensusParams{}, errors.New("the node's client cannot read consensus parameters")
	}
	ctx, done := context.WithTimeout(context.Background(), callTime)
	defer done()
	r, err := network.ConsensusParams(ctx, &height)
	if err != nil {
		return cmttypes.ConsensusParams{}, err
	}
	return r.ConsensusParams, nil
}
