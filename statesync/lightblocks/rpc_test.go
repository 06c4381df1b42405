package lightblocks

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	rpcserver "github.com/cometbft/cometbft/rpc/jsonrpc/server"
	rpctypes "github.com/cometbft/cometbft/rpc/jsonrpc/types"
	"github.com/stretchr/testify/require"
)

// An RPC server and a peer of the transport are peers of one Verifier.
func TestRPCServerIsAPeer(t *testing.T) {
	c := sharedChain(chainOptions{heights: 40, validators: 4, turnover: 7})
	at := func(height *int64) int64 {
		if height == nil {
			return c.Height()
		}
		return *height
	}
	mux := http.NewServeMux()
	rpcserver.RegisterRPCFuncs(mux, map[string]*rpcserver.RPCFunc{
		"commit": rpcserver.NewRPCFunc(func(_ *rpctypes.Context, height *int64) (*ctypes.ResultCommit, error) {
			lb := c.at(at(height))
			return ctypes.NewResultCommit(lb.Header, lb.Commit, true), nil
		}, "height"),
		"validators": rpcserver.NewRPCFunc(func(_ *rpctypes.Context, height *int64, _, _ *int) (*ctypes.ResultValidators, error) {
			set := c.at(at(height)).ValidatorSet
			return &ctypes.ResultValidators{BlockHeight: at(height), Validators: set.Validators, Count: set.Size(), Total: set.Size()}, nil
		}, "height,page,per_page"),
		"consensus_params": rpcserver.NewRPCFunc(func(_ *rpctypes.Context, height *int64) (*ctypes.ResultConsensusParams, error) {
			return &ctypes.ResultConsensusParams{BlockHeight: at(height), ConsensusParams: c.params}, nil
		}, "height"),
	}, log.NewNopLogger())
	server := httptest.NewServer(mux)
	defer server.Close()

	p, err := NewRPC(testChain, server.URL, 30*time.Second)
	require.NoError(t, err)
	v := testVerifier(t, c, 3, func(o *Options) { o.now = func() time.Time { return chainEnd.Add(time.Second) } })
	v.Add(p)
	ctx := context.Background()
	lb, err := v.LightBlock(ctx, 20)
	require.NoError(t, err)
	require.Equal(t, c.at(20).Hash(), lb.Hash())
	v.Add(serve("other", c, nil))
	genesis := c.genesis()
	genesis.ConsensusParams.Block.MaxBytes++ // so that peers must be asked
	state, err := v.State(ctx, 30, genesis)
	require.NoError(t, err)
	require.Equal(t, c.params, state.ConsensusParams)
	require.Equal(t, c.at(32).ValidatorSet.ProposerPriorityHash(), state.NextValidators.ProposerPriorityHash())

	_, err = NewRPC(testChain, "::not an address", time.Second)
	require.Error(t, err)
}
