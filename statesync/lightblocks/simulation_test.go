package lightblocks

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

var (
	seedFlag   = flag.Uint64("seed", 0, "run only the world of this seed")
	worldsFlag = flag.Uint64("worlds", 40, "how many random worlds to run")
)

// misbehaviours are those of the peers that a world has in addition to its honest one. Those with
// lies set send invalid responses.
var misbehaviours = []struct {
	name string
	args map[string]string
	lies bool
}{
	{"garbage", nil, true}, {"nothing", nil, true}, {"otherheight", nil, true}, {"otherchain", nil, true}, {"unsigned", nil, true},
	{"badsignature", nil, true}, {"ownfork", nil, true}, {"tallfork", nil, true}, {"grafted", map[string]string{"at": "70"}, true},
	{"evasive", map[string]string{"at": "100"}, true}, {"wildpriorities", nil, true}, {"priorities", map[string]string{"by": "19"}, true},
	{"panic", nil, true},
	{"silent", nil, false}, {"slow", map[string]string{"by": "1500ms"}, false}, {"drip", map[string]string{"but": "120"}, false},
	{"busy", map[string]string{"times": "2"}, false}, {"gone", nil, false}, {"withhold", map[string]string{"at": "120"}, false},
	{"broken", nil, false}, {"oldnewest", map[string]string{"at": "60"}, false}, {"behind", map[string]string{"at": "90"}, false},
	{"pruned", map[string]string{"base": "80"}, false},
}

// Worlds have up to 40 peers, of which at least one is honest. Invariants: nothing false is
// returned, no innocent peer is blamed, and everything that the honest peer has is proved within
// seconds of virtual time.
func TestRandomWorlds(t *testing.T) {
	if *seedFlag != 0 {
		randomWorld(t, *seedFlag)
		return
	}
	for seed := uint64(1); seed <= *worldsFlag && !t.Failed(); seed++ {
		randomWorld(t, seed)
	}
}

func randomWorld(t *testing.T, seed uint64) {
	repeat := fmt.Sprintf("go test ./lightblocks -run TestRandomWorlds -seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 5))
	c := sharedChain([]chainOptions{
		{heights: 150, validators: 5, turnover: 6}, {heights: 150, validators: 4, equal: true}, {heights: 150, validators: 7, turnover: 3},
	}[rng.IntN(3)])
	trust := 1 + rng.Int64N(140)
	others := rng.IntN(40)
	place := rng.IntN(others + 1)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var lied []string
		v := testVerifier(t, c, trust, func(o *Options) {
			o.Lied = func(id transport.ID, _ error) {
				mu.Lock()
				defer mu.Unlock()
				lied = append(lied, string(id))
			}
		})
		var innocent []string
		for i := range others + 1 {
			name, args, lies := "honest", map[string]string(nil), false
			if i != place {
				m := misbehaviours[rng.IntN(len(misbehaviours))]
				name, args, lies = m.name, m.args, m.lies
			}
			p := newPeer(transport.ID(fmt.Sprintf("%d-%s", i, name)), c, name, func(key string) string { return args[key] })
			p.latency = time.Duration(1+rng.IntN(30_000)) * time.Microsecond
			if !lies {
				innocent = append(innocent, string(p.id))
			}
			v.Add(p)
		}
		ctx := context.Background()
		began := time.Now()
		newest, err := v.Newest(ctx)
		require.NoError(t, err, repeat)
		require.Equal(t, c.heights, newest, repeat)
		for range 6 {
			switch h := 1 + rng.Int64N(c.heights-2); rng.IntN(3) {
			case 0:
				lb, err := v.LightBlock(ctx, h)
				require.NoError(t, err, repeat)
				require.Equal(t, c.at(h).Hash(), lb.Hash(), repeat)
			case 1:
				hash, err := v.AppHash(ctx, h)
				require.NoError(t, err, repeat)
				require.Equal(t, sum("app %d", h), hash, repeat)
			case 2:
				h = max(h, trust) // so that it does not descend a hundred heights
				h = min(h, c.heights-2)
				state, err := v.State(ctx, h, c.genesis())
				require.NoError(t, err, repeat)
				require.Equal(t, c.at(h+2).ValidatorSet.Hash(), state.NextValidators.Hash(), repeat)
				require.Equal(t, c.at(h+2).ValidatorSet.ProposerPriorityHash(), state.NextValidators.ProposerPriorityHash(), repeat)
				require.NoError(t, state.LastValidators.VerifyCommit(testChain, state.LastBlockID, h, c.at(h).Commit), repeat)
				commit, err := v.Commit(ctx, h)
				require.NoError(t, err, repeat)
				commit.ToVoteSet(testChain, state.LastValidators) // panics over what is wrong
			}
		}
		require.Less(t, time.Since(began), 2*time.Minute, repeat)
		require.NoError(t, v.Conflict(), repeat)
		v.Close()
		for _, id := range lied {
			require.False(t, slices.Contains(innocent, id), "%s was blamed: %s", id, repeat)
		}
	})
}
