package clientbench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/harness"
)

// A target without measurements is undecided.
func TestLatencyTargets(t *testing.T) {
	verdicts := func(rounds map[string]map[string][]Figures) map[string]harness.Target {
		run := &latencyRun{o: LatencyOptions{Rounds: 1, Workers: 64, Validators: 4, Delay: 1e6}, rounds: rounds}
		all := map[string]harness.Target{}
		for _, target := range run.result().Targets {
			all[target.Name] = target
		}
		return all
	}
	const (
		event, dead = "event p50 at most 5 ms after its put", "a dead proposer costs at most 700 ms"
		regions     = "put p50 between regions, with the better settings, at most 1.3 times the floor"
	)
	all := verdicts(nil)
	for name, target := range all {
		require.False(t, target.Met, name)
	}
	for _, name := range []string{"put p50 at most 50 ms", "range of 100, p50 at most etcd's", event, dead, regions} {
		require.Equal(t, harness.NotMeasured, all[name].Undecided, name)
	}

	all = verdicts(map[string]map[string][]Figures{
		nameStarlingLAN: {OpPut: {{P50MS: 40, P99MS: 160, Number: 100}}, opEventAfter: {{Number: 100}}},
		nameText:        {opPutLoad: {{CPUMicros: 250, Rate: 1000, Number: 100}}},
	})
	require.Equal(t, harness.Target{Name: "put p50 at most 50 ms", Met: true, Figure: 40, Measure: "40.0 ms"}, all["put p50 at most 50 ms"])
	require.False(t, all["put p99 at most 150 ms"].Met)
	require.Empty(t, all["put p99 at most 150 ms"].Undecided)
	require.True(t, all[event].Met, "the event was there first")
	require.Equal(t, harness.NotMeasured, all[dead].Undecided)
}
