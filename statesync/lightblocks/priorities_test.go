package lightblocks

import (
	"math"
	"testing"
	"testing/synctest"

	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// If several claims predict equally many proposers, the first one wins, which most peers made.
func TestJudgeKeepsTheOrderOfEquals(t *testing.T) {
	c := sharedChain(chainOptions{heights: 120, validators: 5, turnover: 4})
	synctest.Test(t, func(t *testing.T) {
		v := testVerifier(t, c, 10, nil)
		blocks := [3]*types.LightBlock{c.at(50), c.at(51), c.at(52)}
		first, second := &claim{set: c.at(50).ValidatorSet.Copy()}, &claim{set: c.at(50).ValidatorSet.Copy()}
		order := v.judge(t.Context(), blocks, []*claim{first, second}, 50)
		require.Same(t, first, order[0])
		require.Same(t, second, order[1])
	})
}

// Priorities far from zero, in either direction, are impossible.
func TestSanePriorities(t *testing.T) {
	set := randomSet(seeds.Rand(t), 3)
	limit := 4 * set.TotalVotingPower()
	for i := range set.Validators {
		set.Validators[i].ProposerPriority = 0
	}
	for priority, want := range map[int64]bool{
		0: true, limit: true, -limit: true, limit + 1: false, -limit - 1: false, math.MaxInt64: false, math.MinInt64: false,
	} {
		set.Validators[1].ProposerPriority = priority
		require.Equal(t, want, sane(set), "%d", priority)
	}
}

// An older set that does not lead to a claim does not count for it. Otherwise a Byzantine peer
// could send false priorities for one height and true ones for the heights below.
func TestAnOlderSetMustLeadToTheClaim(t *testing.T) {
	c := sharedChain(chainOptions{heights: 120, validators: 5, turnover: 4})
	synctest.Test(t, func(t *testing.T) {
		v := testVerifier(t, c, 10, nil)
		var past []*types.LightBlock
		for h := int64(20); h <= 92; h++ {
			past = append(past, c.at(h))
		}
		at := past[len(past)-3].ValidatorSet
		peers := []*peer{{Peer: &testPeer{id: "peer", chain: c}, id: "peer"}}
		require.Equal(t, len(past)-1, v.play(t.Context(), past, &claim{set: at.Copy(), peers: peers}))
		shifted := at.CopyIncrementProposerPriority(1)
		require.LessOrEqual(t, v.play(t.Context(), past, &claim{set: shifted, peers: peers}), 2)
	})
}
