package storagenode

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// docs/reference/metrics.md lists each metric, and the sizes of ranges and log count what is there.
func TestMetrics(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, twoRanges()...)
	dir := c.replicaHome()
	n := c.start(dir, log.NewNopLogger(), fromGenesis)
	c.put(0, 20)
	c.dial(n).feedAll("the blocks")

	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(n.metrics))
	families, err := registry.Gather()
	require.NoError(t, err)
	docs, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "metrics.md"))
	require.NoError(t, err)
	series := map[string]int{}
	for _, f := range families {
		require.Contains(t, string(docs), "`"+f.GetName()+"`")
		for _, m := range f.GetMetric() {
			if m.GetGauge().GetValue() > 0 || m.GetCounter().GetValue() > 0 {
				series[f.GetName()]++
			}
		}
	}
	for _, name := range []string{"range_bytes", "range_memory_bytes", "durable_height"} {
		require.Equal(t, len(c.ranges), series["starling_storagenode_"+name], name)
	}
	require.Equal(t, 1, series["starling_storagenode_log_bytes"])
	require.Positive(t, series["starling_storagenode_changes_total"])
}
