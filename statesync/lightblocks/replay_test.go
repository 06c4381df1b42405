package lightblocks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
)

// randomSet returns a set whose priorities are any that CometBFT could have stored, and some that
// it could not.
func randomSet(rnd *rand.Rand, n int) *types.ValidatorSet {
	var members []*types.Validator
	equal := rnd.IntN(3) == 0
	for i := range n {
		power := int64(1 + rnd.IntN(1000))
		if equal {
			power = 7
		}
		members = append(members, types.NewValidator(testKey(fmt.Sprintf("validator %d", i)).PubKey(), power))
	}
	set := types.NewValidatorSet(members)
	switch rnd.IntN(4) {
	case 0:
		set.IncrementProposerPriority(int32(1 + rnd.IntN(1000)))
	case 1: // somebody has just joined
		mustDo(set.UpdateWithChangeSet([]*types.Validator{types.NewValidator(testKey("new").PubKey(), int64(1+rnd.IntN(100_000)))}))
	case 2:
		for _, v := range set.Validators {
			v.ProposerPriority = rnd.Int64N(1<<40) - 1<<39
		}
	}
	return set
}

// The priorities are those that CometBFT computes, whatever was requested before.
func TestReplayIsCometBFTs(t *testing.T) {
	rnd := seeds.Rand(t)
	for _, n := range []int{1, 2, 3, 5, 30, 100} {
		for range 4 {
			set := randomSet(rnd, n)
			r := newReplays(make(chan struct{}, 1))
			stored := 1 + rnd.Int64N(1_000_000)
			for _, more := range []int64{1, 2, stepHeights - 1, stepHeights, stepHeights + 1, 1 + rnd.Int64N(4*stepHeights), 3 * stepHeights, 1 + rnd.Int64N(stepHeights)} {
				got, err := r.validators(t.Context(), stored+more, stored, func() (*types.ValidatorSet, error) { return set.Copy(), nil })
				require.NoError(t, err)
				want := set.Copy()
				want.IncrementProposerPriority(int32(more))
				wantPB, err := want.ToProto()
				require.NoError(t, err)
				gotPB, err := got.ToProto()
				require.NoError(t, err)
				require.Equal(t, wantPB, gotPB, "%d validators, %d heights above the stored set", n, more)
				got.IncrementProposerPriority(1) // it is the caller's
			}
		}
	}
}

func TestReplaysAreForgotten(t *testing.T) {
	set := randomSet(seeds.Rand(t), 1000)
	r := newReplays(make(chan struct{}, 1))
	loads := 0
	at := func(stored int64, heights int64) {
		_, err := r.validators(t.Context(), stored+heights, stored, func() (*types.ValidatorSet, error) { loads++; return set, nil })
		require.NoError(t, err)
	}
	const one, spans = 1000 * (8 + validatorBytes), 60 // bytes of a span with one step
	for i := range int64(spans) {
		at(1+i*100_000, stepHeights)
		require.LessOrEqual(t, r.mu.bytes, replayBytes)
	}
	require.Equal(t, spans, loads)
	kept := len(r.mu.spans)
	require.Equal(t, replayBytes/one, kept)
	at(1+(spans-1)*100_000, 500)
	require.Equal(t, spans, loads, "the newest is kept")
	at(1, stepHeights)
	require.NotContains(t, r.mu.spans, int64(1), "the lowest is not")
	before := r.mu.bytes
	r.keep(1, &span{}, 1000) // it was forgotten while steps were added
	require.Equal(t, before, r.mu.bytes)
	r.clear()
	require.Zero(t, r.mu.bytes)
	require.Empty(t, r.mu.spans)
}

func TestReplayFails(t *testing.T) {
	r := newReplays(make(chan struct{}, 1))
	broken := errors.New("broken")
	_, err := r.validators(t.Context(), 5, 1, func() (*types.ValidatorSet, error) { return nil, broken })
	require.ErrorIs(t, err, broken)
	_, err = r.validators(t.Context(), 5, 1, func() (*types.ValidatorSet, error) { return new(types.ValidatorSet), nil })
	require.ErrorContains(t, err, "is empty")
	require.Empty(t, r.mu.spans)
	set := randomSet(seeds.Rand(t), 3)
	ctx, cancel := context.WithCancel(t.Context())
	r.making <- struct{}{} // others compute
	cancel()
	_, err = r.validators(ctx, 5000, 1, func() (*types.ValidatorSet, error) { return set, nil })
	require.ErrorIs(t, err, context.Canceled)
	<-r.making
	_, err = r.validators(t.Context(), 5000, 1, func() (*types.ValidatorSet, error) { return set, nil })
	require.NoError(t, err)
}

// sparse stores the set of height 1 only, as CometBFT does where validators do not change.
type sparse struct {
	*chain
	t     *testing.T
	loads atomic.Int64
}

func (s *sparse) ValidatorsStoredAt(height int64) (int64, error) { return 1, nil }

func (s *sparse) LoadValidators(height int64) (*types.ValidatorSet, error) {
	if height != 1 {
		s.t.Errorf("CometBFT replays the rotations up to height %d", height)
	}
	s.loads.Add(1)
	return s.chain.LoadValidators(height)
}

// Requests for heights far above the stored set share one replay, which waits for a slot of
// ServerOptions.Making. Responses that are cached or close to a step do not wait for it.
func TestFarHeightsDoNotKeepOthersOut(t *testing.T) {
	c := makeChain(chainOptions{heights: stepHeights + 200, validators: 4})
	synctest.Test(t, func(t *testing.T) {
		states := &sparse{chain: c, t: t}
		making := make(chan struct{}, 1)
		var mux transport.Mux
		s := NewServer(ServerOptions{ChainID: testChain, Blocks: c, States: states, Making: making})
		s.Register(&mux)
		ask := func(h int64) error {
			answer, err := mux.Serve(t.Context(), transport.Request{Method: MethodLightBlock, Body: encodeHeight(h)})
			if err != nil {
				return err
			}
			lb, err := decodeLightBlock(answer, testChain, h)
			if err != nil {
				return err
			}
			if string(lb.ValidatorSet.ProposerPriorityHash()) != string(c.at(h).ValidatorSet.ProposerPriorityHash()) {
				return errors.New("other priorities")
			}
			return nil
		}
		require.NoError(t, ask(20))
		making <- struct{}{} // chunks are being made
		var wg sync.WaitGroup
		for i := range int64(8) { // as many as the transport has workers
			wg.Go(func() {
				if err := ask(stepHeights + 100 + i); err != nil {
					t.Errorf("far height %d: %v", i, err)
				}
			})
		}
		synctest.Wait()
		require.NoError(t, ask(20), "it is there already")
		_, err := mux.Serve(t.Context(), transport.Request{Method: MethodHeaders, Body: encodeRange(30, 5)})
		require.NoError(t, err, "the places of readers are free")
		<-making
		wg.Wait()
		require.EqualValues(t, 1, states.loads.Load())
		require.NoError(t, ask(30))
	})
}

// SetStores clears the replays, since other stores have other validators.
func TestReplaysEndWithTheStores(t *testing.T) {
	one := sharedChain(chainOptions{heights: 40, validators: 4})
	two := sharedChain(chainOptions{heights: 40, validators: 4, salt: "another "})
	var mux transport.Mux
	s := NewServer(ServerOptions{ChainID: testChain})
	s.Register(&mux)
	for _, c := range []*chain{one, two} {
		states := &sparse{chain: c, t: t}
		s.SetStores(c, states, nil)
		answer, err := mux.Serve(t.Context(), transport.Request{Method: MethodLightBlock, Body: encodeHeight(20)})
		require.NoError(t, err)
		lb, err := decodeLightBlock(answer, testChain, 20)
		require.NoError(t, err)
		require.Equal(t, c.at(20).Hash(), lb.Hash())
		require.Equal(t, c.at(20).ValidatorSet.ProposerPriorityHash(), lb.ValidatorSet.ProposerPriorityHash())
		require.EqualValues(t, 1, states.loads.Load())
	}
}

// BenchmarkReplay measures a replay of the longest span, as the first request of it costs.
func BenchmarkReplay(b *testing.B) {
	for _, n := range []int{4, 100, 400} {
		set := randomSet(rand.New(rand.NewPCG(1, 2)), n)
		for name, replay := range map[string]func(){
			"CometBFT": func() { set.CopyIncrementProposerPriority(99_999) },
			"first": func() {
				_, err := newReplays(make(chan struct{}, 1)).validators(b.Context(), 100_000, 1, func() (*types.ValidatorSet, error) { return set, nil })
				mustDo(err)
			},
		} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				for b.Loop() {
					replay()
				}
			})
		}
	}
}
