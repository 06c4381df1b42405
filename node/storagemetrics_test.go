package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/storage/sgc"
)

// A sharded node has the metrics of its block zone, but none of a state zone.
func TestStorageMetricsOfAShardedNode(t *testing.T) {
	cache := sgc.New(1 << 20)
	zone, err := blocks.Open("blocks", blocks.Options{FS: vfs.NewMem(), Cache: cache})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, zone.Close()) })
	db := zone.DB("state")
	require.NoError(t, db.SetSync([]byte("a"), []byte("1")))
	_, err = db.Get([]byte("a"))
	require.NoError(t, err)

	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(newStorageMetrics(nil, func() *blocks.Zone { return zone }, cache)))
	families, err := registry.Gather()
	require.NoError(t, err)
	docs, err := os.ReadFile(filepath.Join("..", "docs", "reference", "metrics.md"))
	require.NoError(t, err)
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
		require.Contains(t, string(docs), "`"+f.GetName()+"`")
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				require.Equal(t, sgc.Blocks.String(), label.GetValue(), f.GetName())
			}
		}
	}
	require.Subset(t, names, []string{"starling_storage_disk_bytes", "starling_storage_write_amplification", "starling_storage_cache_hits_total", "starling_storage_cache_bytes"})
	require.NotContains(t, names, "starling_storage_safe_height")
	require.NotContains(t, names, "starling_storage_scrub_passes_total")
}
