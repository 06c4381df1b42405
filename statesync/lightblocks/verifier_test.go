package lightblocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cmtbytes "github.com/cometbft/cometbft/libs/bytes"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync/lightclient"
	"github.com/starling-kv/starling/transport"
)

func TestEveryHeightIsProved(t *testing.T) {
	c := sharedChain(chainOptions{heights: 120, validators: 5, turnover: 4})
	for _, trust := range []int64{1, 60, 120} {
		synctest.Test(t, func(t *testing.T) {
			v := testVerifier(t, c, trust, nil)
			v.Add(serve("honest", c, nil))
			newest, err := v.Newest(context.Background())
			require.NoError(t, err)
			require.Equal(t, c.heights, newest)
			for _, h := range []int64{1, 2, 3, 59, 60, 61, 62, 90, 118, 119, 120} {
				lb, err := v.LightBlock(context.Background(), h)
				require.NoError(t, err, h)
				require.Equal(t, c.blocks[h-1].Hash(), lb.Hash())
			}
			for h := int64(0); h < 120; h += 7 {
				hash, err := v.AppHash(context.Background(), h)
				require.NoError(t, err)
				require.Equal(t, sum("app %d", h), hash)
			}
		})
	}
}

// A commit with one invalid signature proves a peer Byzantine even if enough others are valid,
// because CometBFT panics when it starts from such a commit. The trusted block's own commit is
// valid here, so only the check of the blocks above it can detect the invalid one.
func TestWrongSignaturesAboveTheTrustedBlock(t *testing.T) {
	c := sharedChain(chainOptions{heights: 120, validators: 5, turnover: 4})
	for _, height := range []int64{11, 12, 21, 90} {
		synctest.Test(t, func(t *testing.T) {
			var lied error
			v := testVerifier(t, c, 10, func(o *Options) { o.Lied = func(_ transport.ID, err error) { lied = err } })
			p := &testPeer{id: "liar", chain: c}
			p.lightBlock = func(_ context.Context, h int64) (*types.LightBlock, error) {
				lb, err := p.honest(h)
				if err == nil && lb.Height > 10 {
					last := len(lb.Commit.Signatures) - 1
					signature := bytes.Clone(lb.Commit.Signatures[last].Signature)
					signature[7] ^= 1
					lb.Commit.Signatures[last].Signature = signature
				}
				return lb, err
			}
			v.Add(p)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := v.LightBlock(ctx, height)
			require.Error(t, err)
			synctest.Wait()
			require.ErrorIs(t, lied, errLie)
			require.ErrorIs(t, lied, lightclient.ErrInvalid)
		})
	}
}

// State returns the state of a node that executed all blocks.
func TestState(t *testing.T) {
	c := sharedChain(chainOptions{heights: 120, validators: 5, turnover: 4})
	synctest.Test(t, func(t *testing.T) {
		v := testVerifier(t, c, 10, nil)
		v.Add(serve("honest", c, nil))
		p := StateProvider{Verifier: v, Genesis: c.genesis(), Timeout: time.Minute}
		for _, h := range []int64{1, 9, 10, 11, 57, 118} {
			s, err := p.State(context.Background(), uint64(h))
			require.NoError(t, err)
			last, current, next := c.at(h), c.at(h+1), c.at(h+2)
			require.Equal(t, testChain, s.ChainID)
			require.Equal(t, int64(1), s.InitialHeight)
			require.Equal(t, h, s.LastBlockHeight)
			require.Equal(t, current.LastBlockID, s.LastBlockID)
			require.True(t, last.Time.Equal(s.LastBlockTime))
			require.Equal(t, []byte(current.AppHash), s.AppHash)
			require.Equal(t, []byte(current.LastResultsHash), s.LastResultsHash)
			require.Equal(t, uint64(1), s.Version.Consensus.App)
			require.Equal(t, h+2, s.LastHeightValidatorsChanged, "where CometBFT looks for the next validators")
			require.Equal(t, h+1, s.LastHeightConsensusParamsChanged)
			for i, set := range []*types.ValidatorSet{s.LastValidators, s.Validators, s.NextValidators} {
				want := []*types.LightBlock{last, current, next}[i].ValidatorSet
				require.Equal(t, want.Validators, set.Validators, "height %d set %d", h, i)
				require.Equal(t, want.GetProposer().Address, set.GetProposer().Address)
			}
			require.Equal(t, c.params, s.ConsensusParams)
			require.Equal(t, current.ConsensusHash, cmtbytes.HexBytes(s.ConsensusParams.Hash()))
			require.NoError(t, s.LastValidators.VerifyCommit(testChain, s.LastBlockID, h, mustCommit(t, v, h)))

			hash, err := p.AppHash(context.Background(), uint64(h))
			require.NoError(t, err)
			require.Equal(t, s.AppHash, hash)
		}
		_, err := p.AppHash(context.Background(), 119)
		require.ErrorIs(t, err, ErrUnavailable, "State would not find block 121")
		_, err = p.State(context.Background(), 0)
		require.Error(t, err)
		genesis := c.genesis()
		genesis.ChainID = "another"
		_, err = v.State(context.Background(), 50, genesis)
		require.Error(t, err)
	})
}

func mustCommit(t *testing.T, v *Verifier, h int64) *types.Commit {
	t.Helper()
	commit, err := v.Commit(context.Background(), h)
	require.NoError(t, err)
	return commit
}

// Headers commit to few of the consensus parameters. The others are not taken from peers.
func TestParamsThatNoHeaderProves(t *testing.T) {
	c := sharedChain(chainOptions{heights: 40, validators: 4, turnover: 7})
	genesis := c.genesis()
	genesis.ConsensusParams.Block.MaxBytes++
	genesis.ConsensusParams.Version.App = 0 // set by InitChain
	synctest.Test(t, func(t *testing.T) {
		var lied []transport.ID
		v := testVerifier(t, c, 5, func(o *Options) { o.Lied = func(id transport.ID, _ error) { lied = append(lied, id) } })
		sly := &testPeer{id: "sly", chain: c}
		sly.params = func(context.Context, int64) (types.ConsensusParams, error) {
			params := c.params
			params.ABCI.VoteExtensionsEnableHeight, params.Evidence.MaxAgeNumBlocks, params.Version.App = 7, 1, 9
			return params, nil
		}
		v.Add(sly)
		s, err := v.State(context.Background(), 20, genesis)
		require.NoError(t, err)
		require.Equal(t, c.params, s.ConsensusParams)

		v.Remove("sly")
		liar := &testPeer{id: "liar", chain: c}
		liar.params = func(context.Context, int64) (types.ConsensusParams, error) {
			params := c.params
			params.Block.MaxGas = 5
			return params, nil
		}
		v.Add(liar)
		_, err = v.State(context.Background(), 20, genesis)
		require.ErrorIs(t, err, ErrUnavailable)
		require.Equal(t, []transport.ID{"liar"}, lied)
		v.Add(serve("honest", c, nil))
		s, err = v.State(context.Background(), 20, genesis)
		require.NoError(t, err)
		require.Equal(t, c.params, s.ConsensusParams)
	})
}

// Thousands of unknown validators do not cost much time.
func TestHugeFakeValidatorSets(t *testing.T) {
	c := sharedChain(chainOptions{heights: 40, validators: 4, turnover: 7})
	fake := copyBlock(c.at(30))
	vals := make([]*types.Validator, 3000)
	for i := range vals {
		vals[i] = types.NewValidator(testKey(fmt.Sprintf("fake %d", i)).PubKey(), 5)
	}
	set, err := types.ValidatorSetFromExistingValidators(vals)
	require.NoError(t, err)
	fake.ValidatorSet, fake.ValidatorsHash = set, set.Hash()
	for len(fake.Commit.Signatures) < len(vals) {
		fake.Commit.Signatures = append(fake.Commit.Signatures, fake.Commit.Signatures[0])
	}
	fake.Commit.BlockID.Hash = fake.Hash()
	require.NoError(t, fake.ValidateBasic(testChain))
	synctest.Test(t, func(t *testing.T) {
		var lied []transport.ID
		v := testVerifier(t, c, 5, func(o *Options) { o.Lied = func(id transport.ID, _ error) { lied = append(lied, id) } })
		liar := &testPeer{id: "liar", chain: c}
		liar.lightBlock = func(_ context.Context, h int64) (*types.LightBlock, error) {
			if h == 30 {
				return fake, nil
			}
			return liar.honest(h)
		}
		v.Add(liar)
		v.Add(&testPeer{id: "honest", chain: c, latency: time.Millisecond})
		lb, err := v.LightBlock(context.Background(), 30)
		require.NoError(t, err)
		require.Equal(t, c.at(30).Hash(), lb.Hash())
		require.Equal(t, []transport.ID{"liar"}, lied)
	})
}

func TestManyAtOnceAskOnce(t *testing.T) {
	c := sharedChain(chainOptions{heights: 120, validators: 5, turnover: 4})
	synctest.Test(t, func(t *testing.T) {
		v := testVerifier(t, c, 10, nil)
		p := &testPeer{id: "honest", chain: c, latency: 10 * time.Millisecond}
		v.Add(p)
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				lb, err := v.LightBlock(context.Background(), 100)
				require.NoError(t, err)
				require.Equal(t, c.at(100).Hash(), lb.Hash())
			})
		}
		wg.Wait()
		times := 0
		for _, h := range p.mu.asked {
			if h == 100 {
				times++
			}
		}
		require.Equal(t, 1, times)
	})
}

func TestEndings(t *testing.T) {
	c := sharedChain(chainOptions{heights: 120, validators: 5, turnover: 4})
	synctest.Test(t, func(t *testing.T) {
		v := testVerifier(t, c, 10, func(o *Options) { o.callTimeout = time.Hour })
		v.Add(&testPeer{id: "silent", chain: c, lightBlock: func(ctx context.Context, _ int64) (*types.LightBlock, error) { return nil, hang(ctx) }})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := v.LightBlock(ctx, 50)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		// A peer is added while Newest waits.
		found := make(chan int64)
		go func() {
			h, err := v.Newest(context.Background())
			if err != nil {
				h = -1
			}
			found <- h
		}()
		synctest.Wait()
		v.Remove("silent")
		ended := make(chan error)
		go func() {
			_, err := v.LightBlock(context.Background(), 50)
			ended <- err
		}()
		synctest.Wait()
		v.Close()
		require.ErrorIs(t, <-ended, ErrClosed)
		require.Equal(t, int64(-1), <-found)
		_, err = v.LightBlock(context.Background(), 50)
		require.ErrorIs(t, err, ErrClosed)
		_, err = v.Newest(context.Background())
		require.ErrorIs(t, err, ErrClosed)
		v.Close()
	})
}

func TestNewestWaitsForPeers(t *testing.T) {
	c := sharedChain(chainOptions{heights: 120, validators: 5, turnover: 4})
	synctest.Test(t, func(t *testing.T) {
		v := testVerifier(t, c, 10, nil)
		found := make(chan int64)
		go func() {
			h, err := v.Newest(context.Background())
			require.NoError(t, err)
			found <- h
		}()
		synctest.Wait()
		v.Add(newPeer("useless", c, "gone", nil))
		synctest.Wait()
		v.Add(serve("honest", c, nil))
		began := time.Now()
		require.Equal(t, c.heights, <-found)
		require.Zero(t, time.Since(began))
	})
}

// A peer that is added while a silent one is awaited is asked at once.
func TestPeersThatJoinLater(t *testing.T) {
	c := sharedChain(chainOptions{heights: 120, validators: 5, turnover: 4})
	synctest.Test(t, func(t *testing.T) {
		v := testVerifier(t, c, 10, nil)
		v.Add(newPeer("silent", c, "silent", nil))
		done := make(chan error)
		go func() {
			_, err := v.LightBlock(context.Background(), 100)
			done <- err
		}()
		<-time.After(2 * time.Second)
		synctest.Wait()
		began := time.Now()
		v.Add(serve("honest", c, nil))
		require.NoError(t, <-done)
		// block 100 is compared, and the silent peer is awaited
		require.LessOrEqual(t, time.Since(began), time.Second)

		v.Remove("honest")
		go func() {
			_, err := v.Newest(context.Background())
			done <- err
		}()
		<-time.After(2 * time.Second)
		synctest.Wait()
		began = time.Now()
		v.Add(serve("honest", c, nil))
		require.NoError(t, <-done)
		require.Zero(t, time.Since(began))
	})
}

func BenchmarkVerify(b *testing.B) {
	for _, validators := range []int{4, 100} {
		c := sharedChain(chainOptions{heights: 3, validators: validators})
		v, err := NewVerifier(Options{ChainID: testChain, TrustHeight: 1, TrustHash: c.at(1).Hash(), now: func() time.Time { return chainEnd }})
		require.NoError(b, err)
		defer v.Close()
		b.Run(fmt.Sprintf("%d validators", validators), func(b *testing.B) {
			for b.Loop() {
				if err := v.rules.Follows(c.at(1), c.at(3), chainEnd); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := Options{ChainID: testChain, TrustHeight: 1, TrustHash: sum("x")}
	for _, change := range []func(*Options){
		func(o *Options) { o.ChainID = "" },
		func(o *Options) { o.TrustHeight = 0 },
		func(o *Options) { o.TrustHash = o.TrustHash[:31] },
		func(o *Options) { o.TrustPeriod = -1 },
		func(o *Options) { o.hedge = -1 },
	} {
		opts := good
		change(&opts)
		_, err := NewVerifier(opts)
		require.Error(t, err)
	}
	v, err := NewVerifier(good)
	require.NoError(t, err)
	v.Close()
}

func TestReasonsAreBounded(t *testing.T) {
	var why reasons
	for i := range 50 {
		p := &peer{id: transport.ID(rune('a' + i))}
		why.add(p, errors.New("useless"))
		why.add(p, errors.New("useless again"))
	}
	err := why.explain(7, 50)
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, "and 45 more")
	require.NotContains(t, err.Error(), "again")
}
