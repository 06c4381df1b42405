package node

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/health"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// For another process, the Halter returns the error: that process ends by itself.
func TestABCIServerHalts(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	conf := nodetest.Load(t, home)
	conf.App.HaltHeight = 1
	options := ABCIOptions{
		Address: "unix://" + filepath.Join(t.TempDir(), "abci.sock"), Transport: "socket", Home: t.TempDir(),
		GenesisFile: conf.CometBFT.GenesisFile(), Config: conf.App, Logger: log.NewNopLogger(),
	}
	s, err := NewABCIServer(t.Context(), options)
	require.NoError(t, err)
	doc, err := config.LoadGenesis(options.GenesisFile)
	require.NoError(t, err)
	params := doc.ConsensusParams.ToProto()
	_, err = s.served.InitChain(t.Context(), &abci.RequestInitChain{
		ChainId: doc.ChainID, InitialHeight: 1, ConsensusParams: &params, AppStateBytes: doc.AppState,
		Validators: []abci.ValidatorUpdate{abci.Ed25519ValidatorUpdate(doc.Validators[0].PubKey.Bytes(), 10)},
	})
	require.NoError(t, err)
	_, err = s.served.FinalizeBlock(t.Context(), &abci.RequestFinalizeBlock{Height: 1})
	require.NoError(t, err)
	_, err = s.served.Commit(t.Context(), &abci.RequestCommit{})
	require.NoError(t, err)
	require.ErrorIs(t, <-s.Failed(), comet.ErrHalted)
	_, err = s.served.FinalizeBlock(t.Context(), &abci.RequestFinalizeBlock{Height: 2})
	require.ErrorIs(t, err, comet.ErrHalted)
	require.NoError(t, s.Stop())

	_, err = NewABCIServer(t.Context(), options)
	require.ErrorIs(t, err, comet.ErrPastHalt)
}

func TestHealthOfANode(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	n, err := New(t.Context(), nodetest.Load(t, home), log.NewNopLogger())
	require.NoError(t, err)
	r := n.Health()
	require.True(t, r.Live)
	require.False(t, r.Ready)
	require.Contains(t, r.Line(false), "the node has not started yet")
	require.NoError(t, n.Start(t.Context()))
	nodetest.Until(t, "the node is ready", func() bool { return n.Health().Ready })
	require.GreaterOrEqual(t, n.Health().Height, int64(1))

	// CometBFT's consensus ends by a panic that it only logs.
	n.consensusFailed(errors.New("conflicting votes"))
	r = n.Health()
	require.False(t, r.Live)
	require.Equal(t, "not live: the node is stopping: consensus has ended: conflicting votes", r.Line(true))
	require.NoError(t, n.Stop())
	require.NotPanics(t, func() { n.Health() })
}

// A node without status server is queried over RPC: the block's age counts only if empty blocks are
// made.
func TestHealthFacts(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	c := nodetest.Load(t, home)
	facts := HealthFacts(c)
	require.Equal(t, maxBlockAge+c.CometBFT.Consensus.TimeoutCommit, facts.MaxBlockAge)
	require.NotNil(t, facts.Disk)
	require.Equal(t, uint64(c.App.Disk.MinFreeBytes), facts.Disk.Minimum)
	c.CometBFT.Consensus.CreateEmptyBlocks = false
	require.Zero(t, HealthFacts(c).MaxBlockAge)
	require.True(t, health.Of(health.Facts{Started: true, Height: 1}).Live)
}

// CometBFT's state sync only sees an abort. The node reports that the program is too old, so that
// the state is not fetched again and again.
func TestStateSyncOfATooNewState(t *testing.T) {
	params := app.Params{ChainId: "test-chain", ChunkBytes: 1 << 10, SnapshotInterval: 10, AppVersion: app.NewestVersion(true) + 1}
	value, err := params.Marshal()
	require.NoError(t, err)
	empty, err := avlstar.Empty(params.ChunkBytes)
	require.NoError(t, err)
	defer empty.Release()
	v, err := empty.Apply([]avlstar.Change{{Key: app.ParamsKey(), Value: value}})
	require.NoError(t, err)
	defer v.Release()

	var failed []error
	a, err := NewApplication(ApplicationOptions{
		DataDir: t.TempDir(), Config: config.DefaultApp(), Logger: log.NewNopLogger(), Failed: func(err error) { failed = append(failed, err) },
	})
	require.NoError(t, err)
	defer a.Close()
	hash := v.AppHash()
	offered, err := a.OfferSnapshot(t.Context(), &abci.RequestOfferSnapshot{AppHash: hash[:], Snapshot: &abci.Snapshot{
		Height: 10, Format: 1, Chunks: v.NumChunks(), Hash: hash[:], Metadata: v.Manifest().Encode(),
	}})
	require.NoError(t, err)
	require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, offered.Result)
	chunk, err := v.Chunk(0)
	require.NoError(t, err)
	applied, err := a.ApplySnapshotChunk(t.Context(), &abci.RequestApplySnapshotChunk{Chunk: chunk, Sender: "peer"})
	require.NoError(t, err)
	require.Equal(t, abci.ResponseApplySnapshotChunk_ABORT, applied.Result)
	require.Zero(t, a.Height())
	require.Len(t, failed, 1)
	require.True(t, buildinfo.IsTooOld(failed[0]))
}

// A node that was killed after its last block, before that was durable, executes it again and
// halts.
func TestHaltAgainUntilDurable(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	conf := nodetest.Load(t, home)
	conf.App.HaltHeight = 5
	n, err := New(t.Context(), conf, log.NewNopLogger())
	require.NoError(t, err)
	require.NoError(t, n.Start(t.Context()))
	require.ErrorIs(t, <-n.Failed(), comet.ErrHalted)
	require.NoError(t, n.Stop())
	// nothing was durable
	require.NoError(t, os.RemoveAll(config.StateDir(conf.CometBFT.DBDir())))

	_, err = New(t.Context(), conf, log.NewNopLogger())
	require.ErrorIs(t, err, comet.ErrHalted)
	_, err = New(t.Context(), conf, log.NewNopLogger())
	require.ErrorIs(t, err, comet.ErrPastHalt)
	conf.App.HaltHeight = 4
	require.NoError(t, os.RemoveAll(config.StateDir(conf.CometBFT.DBDir())))
	_, err = New(t.Context(), conf, log.NewNopLogger())
	require.ErrorIs(t, err, comet.ErrPastHalt)
}
