package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	abcicli "github.com/cometbft/cometbft/abci/client"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// serveABCI serves the application on a unix socket, and connects to it like CometBFT.
func serveABCI(t *testing.T, opts ABCIOptions) (*ABCIServer, abcicli.Client) {
	t.Helper()
	dir, err := os.MkdirTemp("", "starling") // a unix socket's path must be short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	opts.Address, opts.Config, opts.Logger = "unix://"+filepath.Join(dir, "s"), config.DefaultApp(), log.NewNopLogger()
	server, err := NewABCIServer(t.Context(), opts)
	require.NoError(t, err)
	client, err := abcicli.NewClient(opts.Address, opts.Transport, true)
	require.NoError(t, err)
	require.NoError(t, client.Start())
	return server, client
}

func TestABCIServer(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	genesis := filepath.Join(home, "config", "genesis.json")
	doc, err := config.LoadGenesis(genesis)
	require.NoError(t, err)
	for _, transport := range []string{"socket", "grpc"} {
		for _, known := range []bool{true, false} {
			if transport == "grpc" && !known {
				continue
			}
			t.Run(fmt.Sprintf("%s, genesis known: %t", transport, known), func(t *testing.T) {
				opts := ABCIOptions{Transport: transport, Home: t.TempDir()}
				if known {
					opts.GenesisFile = genesis
				}
				server, client := serveABCI(t, opts)
				params := doc.ConsensusParams.ToProto()
				_, err := client.InitChain(t.Context(), &abci.RequestInitChain{
					ChainId: doc.ChainID, AppStateBytes: doc.AppState, InitialHeight: 1, ConsensusParams: &params,
					Validators: cmttypes.TM2PB.ValidatorUpdates(cmttypes.NewValidatorSet([]*cmttypes.Validator{
						cmttypes.NewValidator(doc.Validators[0].PubKey, 10)})),
				})
				require.NoError(t, err)
				res, err := client.FinalizeBlock(t.Context(), &abci.RequestFinalizeBlock{Height: 1, Time: time.Now(), Txs: [][]byte{[]byte("a=1")}})
				require.NoError(t, err)
				require.Zero(t, res.TxResults[0].Code, res.TxResults[0].Log)
				_, err = client.Commit(t.Context(), &abci.RequestCommit{})
				require.NoError(t, err)
				require.NoError(t, client.Stop())
				require.NoError(t, server.Stop())

				server, client = serveABCI(t, opts)
				info, err := client.Info(t.Context(), &abci.RequestInfo{})
				require.NoError(t, err)
				require.EqualValues(t, 1, info.LastBlockHeight)
				require.Equal(t, res.AppHash, info.LastBlockAppHash)
				require.NoError(t, client.Stop())
				require.NoError(t, server.Stop())
			})
		}
	}
}

// verbose returns more events than fit into a gRPC message.
type verbose struct{ abci.BaseApplication }

func (verbose) FinalizeBlock(context.Context, *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	long := strings.Repeat("x", config.GRPCMessageBytes/2)
	return &abci.ResponseFinalizeBlock{
		AppHash: []byte{1},
		TxResults: []*abci.ExecTxResult{
			{Code: 3, Data: []byte("data"), Log: long},
			{Events: []abci.Event{{Type: "starling", Attributes: []abci.EventAttribute{{Key: "key", Value: long}}}}},
		},
	}, nil
}

func TestResultsFitAGRPCMessage(t *testing.T) {
	logs := new(nodetest.LogBuffer)
	res, err := grpcApplication{verbose{}, logs.Logger(t)}.FinalizeBlock(t.Context(), &abci.RequestFinalizeBlock{Height: 5})
	require.NoError(t, err)
	require.Less(t, res.Size(), config.GRPCMessageBytes-config.GRPCEnvelope)
	require.True(t, logs.Has("do not fit into a gRPC message"))
	// The fields that validators hash are unchanged.
	original, err := verbose{}.FinalizeBlock(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, cmttypes.NewResults(original.TxResults).Hash(), cmttypes.NewResults(res.TxResults).Hash())
	require.Equal(t, original.AppHash, res.AppHash)
}

func TestASnapshotNeverReplacesAState(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	n := start(t, home, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
	target := n.application.local.target
	require.ErrorContains(t, target.Begin(1, nil), "there is already a state at height")
	require.Error(t, target.Write(0, nil))
	require.NoError(t, target.Abort())
	nodetest.Put(t, nodetest.RPC(t, home), "b", "2")
}

// `starlingd abci` was killed after a restore, before CometBFT recorded it: CometBFT starts over,
// while the application has the state.
func TestASnapshotReplacesWhatAnInterruptedJoinLeft(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	n := start(t, home, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
	_, v := latest(t, n.Application())
	require.NoError(t, n.Stop())
	asRestored(t, home)

	a, err := NewApplication(ApplicationOptions{DataDir: filepath.Join(home, "data"), Config: config.DefaultApp(), Logger: log.NewNopLogger()})
	require.NoError(t, err)
	defer a.Close()
	require.Positive(t, a.Height())
	hash := v.AppHash()
	offer := &abci.RequestOfferSnapshot{AppHash: hash[:], Snapshot: &abci.Snapshot{
		Height: app.DefaultSnapshotInterval, Format: 1, Chunks: v.NumChunks(), Hash: hash[:], Metadata: v.Manifest().Encode(),
	}}
	answer, err := a.OfferSnapshot(t.Context(), offer)
	require.NoError(t, err)
	require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, answer.Result)
	require.Zero(t, a.Height())
	for k := range v.NumChunks() {
		chunk, err := v.Chunk(k)
		require.NoError(t, err)
		answer, err := a.ApplySnapshotChunk(t.Context(), &abci.RequestApplySnapshotChunk{Index: k, Chunk: chunk, Sender: "peer"})
		require.NoError(t, err)
		require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, answer.Result)
	}
	height, restored := a.Latest()
	require.EqualValues(t, app.DefaultSnapshotInterval, height)
	require.Equal(t, hash, restored.AppHash())

	// Only the application, its snapshot reference and this test hold the restored state.
	a.Forget()
	require.NoError(t, a.StopJoining())
	require.True(t, restored.TryRetain())
	restored.Release()
	restored.Release()
	require.False(t, restored.TryRetain())
}

func TestResetKeepsWhatLiesInTheData(t *testing.T) {
	dir, _ := nodetest.Home(t, nil)
	n := start(t, dir, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, dir), "a", "1")
	config := nodetest.Load(t, dir).CometBFT
	_, err := home.Reset(config)
	require.ErrorContains(t, err, "nothing is removed")
	require.NoError(t, n.Stop())

	// The signing state is inside a folder to be removed.
	moved := filepath.Join(dir, "data", "cs.wal", "signed.json")
	require.NoError(t, os.Rename(config.PrivValidatorStateFile(), moved))
	config.PrivValidatorState = moved
	_, err = home.Reset(config)
	require.ErrorContains(t, err, "it contains")
	require.FileExists(t, moved)
}
