package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/health"
)

// passing counts the blocks that a gate lets through.
type passing struct {
	abci.BaseApplication
	finalized, committed int
}

func (p *passing) FinalizeBlock(context.Context, *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	p.finalized++
	return &abci.ResponseFinalizeBlock{}, nil
}

func (p *passing) Commit(context.Context, *abci.RequestCommit) (*abci.ResponseCommit, error) {
	p.committed++
	return &abci.ResponseCommit{}, nil
}

func TestGate(t *testing.T) {
	tooOld := &app.UpgradeError{Version: 2, Newest: 1, Height: 3}
	for name, c := range map[string]struct {
		halt    int64
		canGoOn func(committed int) error
		last    int
		cause   error
	}{
		"none":                          {0, func(int) error { return nil }, 10, nil},
		"halt":                          {4, func(int) error { return nil }, 4, ErrHalted},
		"upgrade":                       {0, func(n int) error { return tooOldAt(n, 3, tooOld) }, 3, tooOld},
		"upgrade and halt at one block": {3, func(n int) error { return tooOldAt(n, 3, tooOld) }, 3, tooOld},
		"halt before upgrade":           {2, func(n int) error { return tooOldAt(n, 3, tooOld) }, 2, ErrHalted},
	} {
		inner := new(passing)
		var stopped, left []error
		g := &gate{
			Application: inner, halt: c.halt, canGoOn: func() error { return c.canGoOn(inner.committed) },
			stop: func(err error) { stopped = append(stopped, err) }, leave: func(err error) { left = append(left, err) },
		}
		for height := int64(1); height <= 10; height++ {
			shut := int(height) > c.last
			_, err := g.PrepareProposal(t.Context(), &abci.RequestPrepareProposal{Height: height})
			require.Equal(t, shut, err != nil, "%s: %d", name, height)
			_, err = g.ProcessProposal(t.Context(), &abci.RequestProcessProposal{Height: height})
			require.Equal(t, shut, err != nil)
			_, err = g.FinalizeBlock(t.Context(), &abci.RequestFinalizeBlock{Height: height})
			require.Equal(t, shut, err != nil)
			if shut {
				require.ErrorIs(t, err, c.cause)
				continue
			}
			_, err = g.Commit(t.Context(), &abci.RequestCommit{})
			require.NoError(t, err)
		}
		require.Equal(t, c.last, inner.finalized, name)
		require.Equal(t, c.last, inner.committed, name)
		require.Len(t, left, 3*(10-c.last))
		if c.cause == nil {
			require.Empty(t, stopped)
			continue
		}
		require.Len(t, stopped, 1)
		require.ErrorIs(t, stopped[0], c.cause)
		require.Equal(t, stopped[0], g.cause())
	}
}

func tooOldAt(committed, height int, err error) error {
	if committed >= height {
		return err
	}
	return nil
}

// Served to another process, the gate answers with the error: that process ends by itself.
func TestABCIServerHalts(t *testing.T) {
	home, _ := testHome(t, nil)
	config := load(t, home)
	config.App.HaltHeight = 1
	options := ABCIOptions{
		Address: "unix://" + filepath.Join(t.TempDir(), "abci.sock"), Transport: "socket", Home: t.TempDir(),
		GenesisFile: config.CometBFT.GenesisFile(), Config: config.App, Logger: log.NewNopLogger(),
	}
	s, err := NewABCIServer(t.Context(), options)
	require.NoError(t, err)
	doc, err := LoadGenesis(options.GenesisFile)
	require.NoError(t, err)
	params := doc.ConsensusParams.ToProto()
	_, err = s.gate.InitChain(t.Context(), &abci.RequestInitChain{
		ChainId: doc.ChainID, InitialHeight: 1, ConsensusParams: &params, AppStateBytes: doc.AppState,
		Validators: []abci.ValidatorUpdate{abci.Ed25519ValidatorUpdate(doc.Validators[0].PubKey.Bytes(), 10)},
	})
	require.NoError(t, err)
	_, err = s.gate.FinalizeBlock(t.Context(), &abci.RequestFinalizeBlock{Height: 1})
	require.NoError(t, err)
	_, err = s.gate.Commit(t.Context(), &abci.RequestCommit{})
	require.NoError(t, err)
	require.ErrorIs(t, <-s.Failed(), ErrHalted)
	_, err = s.gate.FinalizeBlock(t.Context(), &abci.RequestFinalizeBlock{Height: 2})
	require.ErrorIs(t, err, ErrHalted)
	require.NoError(t, s.Stop())

	_, err = NewABCIServer(t.Context(), options)
	require.ErrorIs(t, err, ErrPastHalt)
}

func TestHealthOfANode(t *testing.T) {
	home, _ := testHome(t, nil)
	n, err := New(t.Context(), load(t, home), log.NewNopLogger())
	require.NoError(t, err)
	r := n.Health()
	require.True(t, r.Live)
	require.False(t, r.Ready)
	require.Contains(t, r.Line(false), "the node has not started yet")
	require.NoError(t, n.Start(t.Context()))
	until(t, "the node is ready", func() bool { return n.Health().Ready })
	require.GreaterOrEqual(t, n.Health().Height, int64(1))

	// CometBFT's consensus ends by a panic that it only logs.
	consensusLog{log.NewNopLogger(), n.fail, n.consensusFailed}.Error(consensusEnded, "err", "conflicting votes", "stack", "…")
	r = n.Health()
	require.False(t, r.Live)
	require.Equal(t, "not live: the node is stopping: consensus has ended: conflicting votes", r.Line(true))
	require.NoError(t, n.Stop())
	require.NotPanics(t, func() { n.Health() })
}

// What the gate does to consensus is no failure that anybody has to look into.
func TestShutIsNotLogged(t *testing.T) {
	buffer := new(logBuffer)
	logger := consensusLog{buffer.logger(t), func(error) { t.Error("the disk is not full") }, func(error) { t.Error("consensus has not failed") }}
	logger.Error(consensusEnded, "err", shut{errors.New("halted")}, "stack", "…")
	require.False(t, buffer.has("FAILURE"))
}

func TestLocalAddresses(t *testing.T) {
	c := &Config{CometBFT: DefaultCometBFTConfig(), App: DefaultAppConfig()}
	require.Equal(t, LocalAddresses{RPC: "http://127.0.0.1:26657", Otherwise: []string{"127.0.0.1:26666"}}, c.Local())
	c.CometBFT.RPC.ListenAddress, c.CometBFT.Instrumentation.Prometheus = "tcp://[::]:1", true
	c.App.Status.ListenAddress, c.App.Transport.ListenAddress = ":2", "tcp://192.0.2.1:3"
	require.Equal(t, LocalAddresses{Status: "127.0.0.1:2", RPC: "http://127.0.0.1:1", Otherwise: []string{"192.0.2.1:3", "127.0.0.1:26660"}}, c.Local())
	c.CometBFT.RPC.ListenAddress = "unix:///run/rpc.sock"
	require.Equal(t, "unix:///run/rpc.sock", c.Local().RPC)
}

// A node without status server is asked over RPC: age counts only where empty blocks are made.
func TestHealthFacts(t *testing.T) {
	home, _ := testHome(t, nil)
	c := load(t, home)
	facts := HealthFacts(c)
	require.Equal(t, maxBlockAge+c.CometBFT.Consensus.TimeoutCommit, facts.MaxBlockAge)
	require.NotNil(t, facts.Disk)
	require.Equal(t, uint64(c.App.Storage.MinFreeBytes), facts.Disk.Minimum)
	c.CometBFT.Consensus.CreateEmptyBlocks = false
	require.Zero(t, HealthFacts(c).MaxBlockAge)
	require.True(t, health.Of(health.Facts{Started: true, Height: 1}).Live)
}

// CometBFT's state sync learns of an abort alone. The node says that the program is too old, so that nobody fetches the state again and again.
func TestStateSyncOfATooNewState(t *testing.T) {
	params := app.Params{ChainId: "test-chain", ChunkBytes: 1 << 10, SnapshotInterval: 10, AppVersion: app.NewestVersion() + 1}
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
		DataDir: t.TempDir(), Config: DefaultAppConfig(), Logger: log.NewNopLogger(), Failed: func(err error) { failed = append(failed, err) },
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
	require.True(t, IsTooOld(failed[0]))
}

// A node that was killed after its last block, before that was durable, executes it again and halts as it should have.
func TestHaltAgainUntilDurable(t *testing.T) {
	home, _ := testHome(t, nil)
	config := load(t, home)
	config.App.HaltHeight = 5
	n, err := New(t.Context(), config, log.NewNopLogger())
	require.NoError(t, err)
	require.NoError(t, n.Start(t.Context()))
	require.ErrorIs(t, <-n.Failed(), ErrHalted)
	require.NoError(t, n.Stop())
	require.NoError(t, os.RemoveAll(StateDir(config.CometBFT.DBDir()))) // none of it was durable

	_, err = New(t.Context(), config, log.NewNopLogger())
	require.ErrorIs(t, err, ErrHalted)
	_, err = New(t.Context(), config, log.NewNopLogger())
	require.ErrorIs(t, err, ErrPastHalt)
	config.App.HaltHeight = 4
	require.NoError(t, os.RemoveAll(StateDir(config.CometBFT.DBDir())))
	_, err = New(t.Context(), config, log.NewNopLogger())
	require.ErrorIs(t, err, ErrPastHalt)
}
