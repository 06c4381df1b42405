package dsmbench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/harness"
)

func TestTargets(t *testing.T) {
	targets := func(r *Result) map[string]harness.Target {
		all := map[string]harness.Target{}
		for _, target := range r.targets() {
			all[target.Name] = target
		}
		return all
	}
	r := &Result{
		Keys: tenMillion, Transfers: Row{Sizes: &Sizes{}}, MemoryRatio: 0.2, Range: Range{Keys: 1000}, StartS: 4, StorageMB: 300,
		ShardRows: []ShardRow{{Shards: 1, Ranges: 1}, {Shards: 4, Ranges: 4}}, WitnessOpsS: 200_000, WitnessCPURatio: 1.2,
		TogetherRows: []ShardRow{{Shards: 1, Ranges: 4, CPUMicros: 2, ApartMicros: 3}}, TogetherCPURatio: 1.1,
		Moves: &Moves{Seconds: 2, CopySeconds: 1, MovingBlocks: harness.FewBlocks, CalmBlocks: harness.FewBlocks}, MoveP99X: 1.1,
	}
	large := []string{
		"memory at most a tenth of the full tree's, at 10,000,000 keys", "a start after SIGKILL at most 3 s, at 10,000,000 keys",
		"a storage node with 256 MiB for its range at most 400 MB, at 10,000,000 keys",
	}
	const together = "CPU per key with 4 ranges on 1 node at most 1.15× that with 1 range"
	const cpu, p99, move = "CPU per key with 4 shards at most 1.15× that with 1", "p99 between blocks during a move at most 1.3 × that without",
		"a move of a 100 MB range at most 3 × a plain copy"
	all := targets(r)
	require.Subset(t, all, map[string]harness.Target{
		large[0]: {Name: large[0], Figure: 0.2, Measure: "0.200 at 10,000,000 keys, of 0.00 GB"},
		large[1]: {Name: large[1], Figure: 4, Measure: "4.00 s at 10,000,000 keys"},
		cpu:      {Name: cpu, Figure: 1.2, Measure: "1.2×"},
		together: {Name: together, Met: true, Figure: 1.1, Measure: "1.1×; with a request for each range 1.65×"},
		move:     {Name: move, Met: true, Figure: 2, Measure: "2.0×, 2.0 s of 0 MB"},
	})
	require.True(t, all[large[2]].Met)
	require.True(t, all[p99].Met)

	const ratio = "a start after SIGKILL with 10,000,000 keys at most 1.3× one with 1,000,000"
	require.NotContains(t, all, ratio)
	r.StartMillion, r.StartTenMillion = 2, 2.8
	all = targets(r)
	require.Equal(t, harness.Target{Name: large[1], Met: true, Figure: 2.8, Measure: "2.80 s at 10,000,000 keys"}, all[large[1]])
	require.False(t, all[ratio].Met)
	require.InDelta(t, 1.4, all[ratio].Figure, 1e-9)
	r.StartMillion, r.StartTenMillion = 0, 0

	r.Keys--
	r.ShardRows, r.WitnessCPURatio = r.ShardRows[:1], 1
	r.Moves.CalmBlocks--
	r.Moves.CopySeconds = 0
	all = targets(r)
	for _, name := range large {
		require.NotContains(t, all, name)
	}
	require.Contains(t, all, "at most 8 bytes written per changed byte")
	require.Contains(t, all, "at least 100,000 keys per second and core")
	require.NotContains(t, all, "CPU per key with 1 shards at most 1.1× that with 1", "one row cannot be compared")
	require.NotEmpty(t, all[p99].Undecided, "too few blocks without a move")
	require.Equal(t, harness.NotMeasured, all[move].Undecided)
}
