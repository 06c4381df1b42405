package clientbench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/harness"
)

// The p99 of a few blocks is the longest time between two.
func TestWatchOfFewBlocks(t *testing.T) {
	judged := func(blocks ...int) harness.Target {
		r := &WatchResult{}
		for _, n := range blocks {
			r.Alone.Rounds = append(r.Alone.Rounds, BlockRound{Blocks: harness.FewBlocks, P99MS: 100})
			r.Watched.Rounds = append(r.Watched.Rounds, BlockRound{Blocks: n, P99MS: 105})
		}
		r.judge()
		return r.Targets[0]
	}
	require.True(t, judged(harness.FewBlocks, harness.FewBlocks+1).Met)
	require.Equal(t, "the p99 of 31 blocks is nearly their longest time", judged(1000, 31).Undecided)
	require.Equal(t, harness.NotMeasured, judged().Undecided)
}
