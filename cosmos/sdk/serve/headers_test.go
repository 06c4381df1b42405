package serve_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cmted25519 "github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/p2p"
	rpcmock "github.com/cometbft/cometbft/rpc/client/mock"
	coretypes "github.com/cometbft/cometbft/rpc/core/types"
	cmttypes "github.com/cometbft/cometbft/types"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/client"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
	"github.com/starling-kv/starling/cosmos/sdk/serve"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
	"github.com/starling-kv/starling/transport/transporttest"
)

// served opens an application with the given home directory that serves joiners.
func served(t *testing.T, home string) servedApp {
	t.Helper()
	o := serving()
	o["home"] = home
	require.NoError(t, os.MkdirAll(filepath.Join(home, "config"), 0o700))
	app := wrapped(newApp, generation.NewNopLogger(), open(t, dbm.GoLevelDBBackend, home), o).(*serve.App)
	return servedApp{app}
}

type servedApp struct{ *serve.App }

// listening executes blocks up to a snapshot height, and returns the address for joiners.
func (s servedApp) listening(t *testing.T, first bool) string {
	t.Helper()
	if first {
		begin(t, s.App)
	}
	from := s.CommitMultiStore().LastCommitID().Version
	for h := from + 1; h <= from+interval; h++ {
		block(t, h, s.App)
	}
	require.Eventually(t, func() bool { return s.Address() != "" }, 5*time.Minute, 10*time.Millisecond)
	return s.Address()
}

// TestKey checks that joiners reach the node under the ID of its node key, also after a restart.
func TestKey(t *testing.T) {
	home := t.TempDir()
	path := filepath.Join(home, "config", "node_key.json")
	for _, first := range []bool{true, false} {
		s := served(t, home)
		address := s.listening(t, first)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		key, err := p2p.LoadNodeKey(path)
		require.NoError(t, err)
		conn, err := tcp.NewDialer(tcp.Options{Key: transporttest.Key(1), ChainID: chainID}).
			Dial(context.Background(), transport.Address{ID: transport.ID(key.ID()), HostPort: address})
		require.NoError(t, err, "the first time: %t", first)
		require.NoError(t, conn.Close())
		require.NoError(t, s.Close())
	}
}

// TestSaysThatNoHeadersAreServed checks that the log message depends on app.toml only, not on
// whether the node's client is registered: blocks executed during startup may be at snapshot
// heights.
func TestSaysThatNoHeadersAreServed(t *testing.T) {
	for _, c := range []struct {
		grpc, api any
		says      bool
	}{{nil, nil, false}, {true, false, false}, {"false", "true", false}, {false, false, true}, {"false", nil, true}} {
		var lines logged
		o := serving()
		o["grpc.enable"], o["api.enable"] = c.grpc, c.api
		s := servedApp{wrapped(newApp, generation.NewLogger(&lines), open(t, dbm.GoLevelDBBackend, t.TempDir()), o).(*serve.App)}
		s.listening(t, true)
		require.NoError(t, s.Close())
		require.Equal(t, c.says, strings.Contains(lines.String(), "no headers are served"), "gRPC %v, API %v", c.grpc, c.api)
	}
}

// chainNode is a node with a few heights and more validators than fit in one RPC response.
type chainNode struct {
	rpcmock.Client
	base, top  int64
	validators *cmttypes.ValidatorSet
	signed     map[int64]*cmttypes.SignedHeader
}

func newChainNode(t *testing.T) *chainNode {
	n := &chainNode{base: 3, top: 6, signed: map[int64]*cmttypes.SignedHeader{}}
	keys := map[string]cmted25519.PrivKey{}
	var all []*cmttypes.Validator
	for range 150 {
		key := cmted25519.GenPrivKey()
		keys[string(key.PubKey().Address())] = key
		all = append(all, cmttypes.NewValidator(key.PubKey(), 10))
	}
	n.validators = cmttypes.NewValidatorSet(all)
	for h := n.base; h <= n.top; h++ {
		header := &cmttypes.Header{ChainID: chainID, Height: h, Time: time.Unix(h, 0).UTC(), ValidatorsHash: n.validators.Hash(),
			NextValidatorsHash: n.validators.Hash(), ProposerAddress: n.validators.Proposer.Address,
			ConsensusHash: cmttypes.DefaultConsensusParams().Hash()}
		header.Version.Block = 11
		id := cmttypes.BlockID{Hash: header.Hash(), PartSetHeader: cmttypes.PartSetHeader{Total: 1, Hash: make([]byte, 32)}}
		commit := &cmttypes.Commit{Height: h, BlockID: id}
		for _, v := range n.validators.Validators {
			commit.Signatures = append(commit.Signatures, cmttypes.CommitSig{BlockIDFlag: cmttypes.BlockIDFlagCommit,
				ValidatorAddress: v.Address, Timestamp: header.Time})
		}
		for i, v := range n.validators.Validators {
			signature, err := keys[string(v.Address)].Sign(commit.VoteSignBytes(chainID, int32(i)))
			require.NoError(t, err)
			commit.Signatures[i].Signature = signature
		}
		n.signed[h] = &cmttypes.SignedHeader{Header: header, Commit: commit}
	}
	return n
}

func (n *chainNode) Status(context.Context) (*coretypes.ResultStatus, error) {
	return &coretypes.ResultStatus{SyncInfo: coretypes.SyncInfo{EarliestBlockHeight: n.base, LatestBlockHeight: n.top}}, nil
}

func (n *chainNode) Commit(_ context.Context, height *int64) (*coretypes.ResultCommit, error) {
	s := n.signed[*height]
	if s == nil {
		return nil, errors.New("no such height")
	}
	return coretypes.NewResultCommit(s.Header, s.Commit, *height < n.top), nil
}

func (n *chainNode) Validators(_ context.Context, height *int64, page, most *int) (*coretypes.ResultValidators, error) {
	all := n.validators.Validators
	from, to := (*page-1)**most, min(*page**most, len(all))
	return &coretypes.ResultValidators{BlockHeight: *height, Validators: all[from:to], Count: to - from, Total: len(all)}, nil
}

func (n *chainNode) ConsensusParams(_ context.Context, height *int64) (*coretypes.ResultConsensusParams, error) {
	return &coretypes.ResultConsensusParams{BlockHeight: *height, ConsensusParams: *cmttypes.DefaultConsensusParams()}, nil
}

// TestHeaders checks that joiners get headers from the application's node, from the registration of
// its client until Close.
func TestHeaders(t *testing.T) {
	s := served(t, t.TempDir())
	n := newChainNode(t)
	conn, err := tcp.NewDialer(tcp.Options{Key: transporttest.Key(1), ChainID: chainID}).
		Dial(context.Background(), transport.Address{HostPort: s.listening(t, true)})
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	peer := lightblocks.NewProvider(chainID, conn)
	ctx := context.Background()
	_, err = peer.LightBlock(ctx, 4)
	require.Error(t, err, "no node registered yet")
	s.RegisterTendermintService(client.Context{Client: n})
	for h := n.base - 1; h <= n.top+1; h++ {
		lb, err := peer.LightBlock(ctx, h)
		if n.signed[h] == nil {
			require.Error(t, err, "height %d", h)
			continue
		}
		require.NoError(t, err, "height %d", h)
		require.Equal(t, n.signed[h].Hash(), lb.Hash())
		require.Equal(t, n.validators.Hash(), lb.ValidatorSet.Hash())
		require.NoError(t, lb.ValidatorSet.VerifyCommit(chainID, lb.Commit.BlockID, h, lb.Commit))
	}
	newest, err := peer.LightBlock(ctx, 0)
	require.NoError(t, err)
	require.Equal(t, n.top, newest.Height)
	params, err := peer.ConsensusParams(ctx, 4)
	require.NoError(t, err)
	require.Equal(t, cmttypes.DefaultConsensusParams().Block, params.Block)
	require.NoError(t, s.Close())
}
