package lightblocks

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/light"
	"github.com/cometbft/cometbft/light/provider"
	lightdb "github.com/cometbft/cometbft/light/store/db"
	sm "github.com/cometbft/cometbft/state"
	cmtstatesync "github.com/cometbft/cometbft/statesync"
	"github.com/cometbft/cometbft/store"
	"github.com/cometbft/cometbft/types"

	dbm "github.com/cometbft/cometbft-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/statesync/lightclient"
	"github.com/starling-kv/starling/transport"
)

var (
	_ Blocks                     = (*store.BlockStore)(nil)
	_ States                     = sm.Store(nil)
	_ cmtstatesync.StateProvider = StateProvider{}
)

func TestServerAndProvider(t *testing.T) {
	ctx := context.Background()
	c := sharedChain(chainOptions{heights: 40, validators: 4, turnover: 7})
	c.base = 5
	p := serve("peer", c, nil)
	for _, h := range []int64{5, 17, 39, 40} {
		lb, err := p.LightBlock(ctx, h)
		require.NoError(t, err)
		require.Equal(t, c.blocks[h-1].Hash(), lb.Hash())
		again, err := p.LightBlock(ctx, h) // from the server's cache
		require.NoError(t, err)
		require.Equal(t, lb, again)
	}
	lb, err := p.LightBlock(ctx, 0)
	require.NoError(t, err)
	require.Equal(t, int64(40), lb.Height)

	_, err = p.LightBlock(ctx, 4)
	require.Equal(t, provider.ErrLightBlockNotFound, err)
	_, err = p.LightBlock(ctx, 41)
	require.Equal(t, provider.ErrHeightTooHigh, err)
	_, err = p.LightBlock(ctx, -1)
	require.Error(t, err)

	params, err := p.ConsensusParams(ctx, 20)
	require.NoError(t, err)
	require.Equal(t, c.params, params)
	for _, h := range []int64{4, 42, 1 << 60} {
		_, err = p.ConsensusParams(ctx, h)
		require.Error(t, err)
	}
	_, err = p.ConsensusParams(ctx, 0)
	require.Error(t, err)
	require.Equal(t, testChain, p.ChainID())
	require.Equal(t, transport.ID("peer"), p.ID())
}

// A block is on disk before its commit. Until then the one below is the newest.
func TestNewestHasACommit(t *testing.T) {
	c := sharedChain(chainOptions{heights: 40, validators: 4, turnover: 7})
	c.noSeen = true
	p := serve("peer", c, nil)
	lb, err := p.LightBlock(context.Background(), 0)
	require.NoError(t, err)
	require.Equal(t, int64(39), lb.Height)
	_, err = p.LightBlock(context.Background(), 40)
	require.Equal(t, provider.ErrHeightTooHigh, err)
}

// If the node served a bad commit that a Byzantine peer sent it, the node itself would look
// Byzantine.
func TestSeenCommitWithAWrongSignatureIsNotServed(t *testing.T) {
	c := sharedChain(chainOptions{heights: 40, validators: 4, turnover: 7})
	top := copyBlock(c.at(40))
	top.Commit.Signatures[3].Signature = make([]byte, 64)
	c.blocks = append(slices.Clone(c.blocks[:39]), top)
	p := serve("peer", c, nil)
	lb, err := p.LightBlock(context.Background(), 0)
	require.NoError(t, err)
	require.Equal(t, int64(39), lb.Height)
}

type fewStores struct{ *chain }

func (s fewStores) LoadValidators(h int64) (*types.ValidatorSet, error) {
	switch h {
	case 10:
		panic("the database is closed")
	case 11:
		return s.chain.LoadValidators(30) // damaged: another height's
	case 3:
		return nil, errors.New("not there")
	}
	return s.chain.LoadValidators(h)
}

func TestServerWithoutOrWithBrokenStores(t *testing.T) {
	ctx := context.Background()
	c := sharedChain(chainOptions{heights: 40, validators: 4, turnover: 7})
	var mux transport.Mux
	s := NewServer(ServerOptions{ChainID: testChain})
	s.Register(&mux)
	p := NewProvider(testChain, newConn("peer", &mux))
	_, err := p.LightBlock(ctx, 0)
	require.Equal(t, provider.ErrLightBlockNotFound, err)
	_, err = p.ConsensusParams(ctx, 1)
	require.Equal(t, provider.ErrLightBlockNotFound, err)
	require.ErrorIs(t, p.ReportEvidence(ctx, testEvidence(t)), transport.ErrGone)

	s.SetStores(fewStores{c}, fewStores{c}, nil)
	_, err = p.LightBlock(ctx, 9)
	require.NoError(t, err)
	_, err = p.LightBlock(ctx, 10)
	require.Equal(t, provider.ErrNoResponse, err)
	_, err = p.LightBlock(ctx, 11)
	require.Equal(t, provider.ErrNoResponse, err, "a damaged store must not make the node a liar")
	_, err = p.LightBlock(ctx, 3)
	require.Equal(t, provider.ErrLightBlockNotFound, err)
	require.ErrorIs(t, p.ReportEvidence(ctx, testEvidence(t)), transport.ErrRefused)

	s.SetStores(nil, nil, nil)
	_, err = p.LightBlock(ctx, 9)
	require.Equal(t, provider.ErrLightBlockNotFound, err, "not even from the cache")

	for _, m := range []transport.Method{MethodLightBlock, MethodConsensusParams, MethodEvidence, MethodHeaders} {
		for _, body := range [][]byte{nil, {1, 2, 3}, make([]byte, 9), encodeHeight(-1)} {
			_, err := mux.Serve(ctx, transport.Request{Method: m, Body: body})
			require.ErrorIs(t, err, transport.ErrRefused)
		}
	}
}

// slowStore blocks every read until it is released, and detects that it is closed during a read.
type slowStore struct {
	*chain
	entered, leave chan struct{}
	closed         atomic.Bool
	misused        atomic.Bool
}

func (s *slowStore) LoadBlockMeta(h int64) *types.BlockMeta {
	s.entered <- struct{}{}
	<-s.leave
	s.misused.Store(s.misused.Load() || s.closed.Load())
	return s.chain.LoadBlockMeta(h)
}

func TestStoresAreNotUsedAfterTheyWereSwapped(t *testing.T) {
	c := sharedChain(chainOptions{heights: 40, validators: 4, turnover: 7})
	old := &slowStore{chain: c, entered: make(chan struct{}), leave: make(chan struct{})}
	var mux transport.Mux
	s := NewServer(ServerOptions{ChainID: testChain, Blocks: old, States: old})
	s.Register(&mux)
	p := NewProvider(testChain, newConn("peer", &mux))
	answered := make(chan error, readers)
	for h := range int64(readers) {
		go func() {
			_, err := p.LightBlock(context.Background(), h+1)
			answered <- err
		}()
	}
	for range readers {
		<-old.entered
	}
	_, err := p.LightBlock(context.Background(), 30)
	require.ErrorIs(t, err, provider.ErrNoResponse, "all places are taken: to wait would take a worker")

	swapped := make(chan struct{})
	go func() {
		s.SetStores(c, c, nil)
		old.closed.Store(true)
		close(swapped)
	}()
	for s.stores.TryRLock() { // until SetStores is waiting for the readers
		s.stores.RUnlock()
		runtime.Gosched()
	}
	select {
	case <-swapped:
		t.Fatal("it is still being read")
	default:
	}
	close(old.leave)
	for range readers {
		require.NoError(t, <-answered)
	}
	<-swapped
	require.False(t, old.misused.Load())
	_, err = p.LightBlock(context.Background(), 30)
	require.NoError(t, err)
}

func TestEvidenceReachesThePool(t *testing.T) {
	ctx := context.Background()
	c := sharedChain(chainOptions{heights: 40, validators: 4, turnover: 7})
	var got []types.Evidence
	refuse := false
	p := serve("peer", c, func(ev types.Evidence) error {
		if refuse {
			return errors.New("not of this chain")
		}
		got = append(got, ev)
		return nil
	})
	ev := testEvidence(t)
	require.NoError(t, p.ReportEvidence(ctx, ev))
	require.Len(t, got, 1)
	require.Equal(t, ev.Hash(), got[0].Hash())
	refuse = true
	require.ErrorIs(t, p.ReportEvidence(ctx, ev), transport.ErrRefused)

	large := copyBlock(c.blocks[20])
	for len(large.Commit.Signatures) < 12_000 {
		large.Commit.Signatures = append(large.Commit.Signatures, large.Commit.Signatures[0])
	}
	require.ErrorContains(t, p.ReportEvidence(ctx, &types.LightClientAttackEvidence{ConflictingBlock: large}), "longer")
}

func TestProviderTranslatesErrors(t *testing.T) {
	var fails error
	var answer []byte
	h := transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) { return answer, fails })
	p := NewProvider(testChain, newConn("peer", h))
	for _, test := range []struct{ is, want error }{
		{transport.ErrGone, provider.ErrLightBlockNotFound},
		{transport.ErrBusy, provider.ErrNoResponse},
		{transport.ErrRefused, provider.ErrNoResponse},
		{errors.New("its own"), provider.ErrNoResponse},
		{transport.ErrClosed, transport.ErrClosed},
		{transport.ErrTooLong, provider.ErrBadLightBlock{Reason: transport.ErrTooLong}},
		{transport.ErrProtocol, provider.ErrBadLightBlock{Reason: transport.ErrProtocol}},
	} {
		fails = test.is
		_, err := p.LightBlock(context.Background(), 3)
		require.Equal(t, test.want, err)
	}
	fails, answer = nil, []byte("hello")
	var bad provider.ErrBadLightBlock
	_, err := p.LightBlock(context.Background(), 3)
	require.ErrorAs(t, err, &bad)
	_, err = p.ConsensusParams(context.Background(), 3)
	require.ErrorAs(t, err, &bad)
	answer = make([]byte, MaxLightBlock+1)
	_, err = p.LightBlock(context.Background(), 3)
	require.ErrorAs(t, err, &bad)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = p.LightBlock(ctx, 3)
	require.Equal(t, context.Canceled, err)
}

// CometBFT's own light client works with Providers.
func TestCometBFTsLightClient(t *testing.T) {
	c := sharedChain(chainOptions{heights: 120, validators: 5, turnover: 4})
	synctest.Test(t, func(t *testing.T) {
		trust := light.TrustOptions{Period: lightclient.DefaultTrustPeriod, Height: 10, Hash: c.blocks[9].Hash()}
		client, err := light.NewClient(context.Background(), testChain, trust, serve("one", c, nil),
			[]provider.Provider{serve("two", c, nil)}, lightdb.New(dbm.NewMemDB(), ""))
		require.NoError(t, err)
		lb, err := client.Update(context.Background(), chainEnd)
		require.NoError(t, err)
		require.Equal(t, c.blocks[119].Hash(), lb.Hash())
	})
}

// False reports take at most a tenth of the time, also of peers that do not wait for the answer,
// except for one that takes very long. A true one does not delay the next.
func TestFalseReportsRest(t *testing.T) {
	body, err := encodeEvidence(testEvidence(t))
	require.NoError(t, err)
	for _, c := range []struct {
		verified, takes time.Duration
		refused         error
	}{
		{time.Millisecond, 10 * time.Millisecond, errors.New("no attack")},
		{time.Second, time.Second + longestRest, errors.New("no attack")},
		{time.Second, time.Second, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := NewServer(ServerOptions{})
			stores := sharedChain(chainOptions{heights: 40, validators: 4, turnover: 7})
			s.SetStores(stores, stores, func(types.Evidence) error {
				return errors.Join(sleep.For(t.Context(), c.verified), c.refused)
			})
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			began := time.Now()
			_, err := s.serveEvidence(gone, transport.Request{Body: body})
			require.Equal(t, c.refused != nil, errors.Is(err, transport.ErrRefused))
			require.Equal(t, c.takes, time.Since(began))
		})
	}
}
