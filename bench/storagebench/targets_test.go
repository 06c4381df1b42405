package storagebench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/harness"
)

// The game is judged by hits, even if a cell took long.
func TestTargetsOfTheGame(t *testing.T) {
	const steady = "hits of the game at least those of the best fixed split less 0.3 points, at 10:0"
	const midway = "hits of the game above those of the best fixed split by 0.3 points, when the mix changes midway"
	of := func(mix string, game, split, other float64) []CacheCell {
		return []CacheCell{
			{Split: gameSplit, Mix: mix, HitRate: game, PerS: 10}, {Split: "1/8", Mix: mix, HitRate: split, PerS: 30}, {Split: "7/8", Mix: mix, HitRate: other, PerS: 20},
		}
	}
	history := mix10(10).String()
	for _, c := range []struct {
		cells []CacheCell
		want  harness.Target
	}{
		{of(history, 0.722, 0.722, 0.688), harness.Target{Name: steady, Met: true, Measure: "+0.0 points, 72.2 and 72.2 %"}},
		{of(history, 0.722, 0.724, 0.688), harness.Target{Name: steady, Met: true, Figure: -0.2, Measure: "-0.2 points, 72.2 and 72.4 %"}},
		{of(history, 0.722, 0.688, 0.726), harness.Target{Name: steady, Figure: -0.4, Measure: "-0.4 points, 72.2 and 72.6 %"}},
		{of(changing.String(), 0.623, 0.482, 0.621), harness.Target{Name: midway, Figure: 0.2, Measure: "+0.2 points, 62.3 and 62.1 %"}},
		{of(changing.String(), 0.623, 0.482, 0.619), harness.Target{Name: midway, Met: true, Figure: 0.4, Measure: "+0.4 points, 62.3 and 61.9 %"}},
	} {
		got := (&Result{Cache: c.cells}).targets()
		require.Len(t, got, 1)
		require.InDelta(t, c.want.Figure, got[0].Figure, 1e-9)
		got[0].Figure = c.want.Figure
		require.Equal(t, c.want, got[0])
	}
	require.Empty(t, (&Result{Cache: of(history, 0.722, 0, 0)[:1]}).targets(), "no fixed split to compare with")
}

func TestTargetsOfStarts(t *testing.T) {
	r := &Result{Recovery: &Recovery{Keys: tenMillion, Seconds: 1, PagedS: 0.6}}
	require.Equal(t, []harness.Target{
		{Name: "a start after a crash with the state in memory in at most 1.5 s", Met: true, Figure: 1, Measure: "1 s"},
		{Name: "a paged start after a crash in at most 0.5 s", Figure: 0.6, Measure: "0.6 s"},
	}, r.targets())
	r.Recovery.Keys--
	require.Empty(t, r.targets(), "they are set for ten million keys")
}

func TestTargetOfDurableCommits(t *testing.T) {
	const name = "durable storage adds at most 10 % to a commit, at the median and at the 99th percentile"
	c := &Commit{Blocks: harness.FewBlocks, RatioP50: 1.02, RatioP99: 1.08}
	r := &Result{Commit: c}
	require.Equal(t, []harness.Target{{Name: name, Met: true, Figure: 1.08, Measure: "p50 1.02×, p99 1.08×"}}, r.targets())
	c.RatioP50 = 1.2
	require.Equal(t, []harness.Target{{Name: name, Figure: 1.08, Measure: "p50 1.2×, p99 1.08×"}}, r.targets())
	c.Blocks--
	require.Empty(t, r.targets()[0].Undecided, "the median is of many blocks")
	c.RatioP50 = 1.02
	require.NotEmpty(t, r.targets()[0].Undecided)
}
