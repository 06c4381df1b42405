package statesync

import (
	"context"
	"testing"
	"time"

	abcicli "github.com/cometbft/cometbft/abci/client"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/proxy"
	sm "github.com/cometbft/cometbft/state"
	cometsync "github.com/cometbft/cometbft/statesync"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// snapshotApp is an application that supports only state sync.
type snapshotApp struct {
	abci.BaseApplication
	*Manager
	target *fakeTarget
}

func (a *snapshotApp) ListSnapshots(ctx context.Context, r *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	return a.Manager.ListSnapshots(ctx, r)
}

func (a *snapshotApp) OfferSnapshot(ctx context.Context, r *abci.RequestOfferSnapshot) (*abci.ResponseOfferSnapshot, error) {
	return a.Manager.OfferSnapshot(ctx, r)
}

func (a *snapshotApp) LoadSnapshotChunk(ctx context.Context, r *abci.RequestLoadSnapshotChunk) (*abci.ResponseLoadSnapshotChunk, error) {
	return a.Manager.LoadSnapshotChunk(ctx, r)
}

func (a *snapshotApp) ApplySnapshotChunk(ctx context.Context, r *abci.RequestApplySnapshotChunk) (*abci.ResponseApplySnapshotChunk, error) {
	return a.Manager.ApplySnapshotChunk(ctx, r)
}

func (a *snapshotApp) Info(context.Context, *abci.RequestInfo) (*abci.ResponseInfo, error) {
	resp := &abci.ResponseInfo{}
	a.target.mu.Lock()
	defer a.target.mu.Unlock()
	if v := a.target.mu.version; v != nil {
		hash := v.AppHash()
		resp.LastBlockHeight, resp.LastBlockAppHash = a.target.mu.height, hash[:]
	}
	return resp, nil
}

// lyingApp damages every chunk, and moves a byte of its offers from metadata to hash.
type lyingApp struct{ *snapshotApp }

func (a lyingApp) ListSnapshots(ctx context.Context, r *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	resp, err := a.snapshotApp.ListSnapshots(ctx, r)
	for _, s := range resp.GetSnapshots() {
		s.Hash, s.Metadata = append(s.Hash, s.Metadata[0]), s.Metadata[1:]
	}
	return resp, err
}

func (a lyingApp) LoadSnapshotChunk(ctx context.Context, r *abci.RequestLoadSnapshotChunk) (*abci.ResponseLoadSnapshotChunk, error) {
	resp, err := a.snapshotApp.LoadSnapshotChunk(ctx, r)
	if err == nil && len(resp.Chunk) > 0 {
		resp.Chunk[len(resp.Chunk)-1] ^= 1
	}
	return resp, err
}

// trusting replaces the light client.
type trusting struct{ hash avlstar.Hash }

func (p trusting) AppHash(context.Context, uint64) ([]byte, error)       { return p.hash[:], nil }
func (p trusting) Commit(context.Context, uint64) (*types.Commit, error) { return &types.Commit{}, nil }
func (p trusting) State(context.Context, uint64) (sm.State, error)       { return sm.State{}, nil }

// With CometBFT's own reactors over real connections, a node joins from two honest peers and a
// Byzantine one. The test checks that the simulated chunk queue behaves like the real one where it
// matters: refetched chunks are presented again.
func TestJoinOverCometBFT(t *testing.T) {
	// Not parallel: CometBFT allows a second for each handshake between the switches.
	v := randomTree(t, newRNG(t, 5), 500, 300)
	require.Greater(t, v.NumChunks(), uint32(80)) // a third comes from the Byzantine peer
	var lines lines
	target := &fakeTarget{t: t}
	m := NewManager(Options{Target: target, Interval: interval, Keep: 1, Logger: log.NewTMLogger(&lines)})
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	apps := []abci.Application{&snapshotApp{Manager: m, target: target}}
	for i := range 3 {
		server := &snapshotApp{Manager: serverOf(t, v, 10, 20), target: &fakeTarget{t: t}}
		if i == 2 {
			apps = append(apps, lyingApp{server})
		} else {
			apps = append(apps, server)
		}
	}
	var reactors []*cometsync.Reactor
	switches := p2p.MakeConnectedSwitches(config.TestP2PConfig(), len(apps), func(i int, sw *p2p.Switch) *p2p.Switch {
		client := abcicli.NewLocalClient(nil, apps[i])
		require.NoError(t, client.Start())
		r := cometsync.NewReactor(*config.DefaultStateSyncConfig(),
			proxy.NewAppConnSnapshot(client, proxy.NopMetrics()), proxy.NewAppConnQuery(client, proxy.NopMetrics()), cometsync.NopMetrics())
		r.SetLogger(log.NewNopLogger())
		sw.SetLogger(log.NewNopLogger())
		sw.AddReactor("STATESYNC", r)
		reactors = append(reactors, r)
		return sw
	}, p2p.Connect2Switches)
	t.Cleanup(func() {
		for _, sw := range switches {
			require.NoError(t, sw.Stop())
		}
	})
	// the minimum that CometBFT accepts
	_, _, err := reactors[0].Sync(trusting{v.AppHash()}, 5*time.Second)
	require.NoError(t, err)
	target.requireRestored(20, v)
	require.Positive(t, lines.count("bad chunk"))
}
