package budget

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
)

func table() Table {
	return Table{{Name: "a", Bytes: 300 << 20}, {Name: "b", Bytes: 200 << 20}, {Name: "b_disk", Bytes: 1 << 40, Disk: true}}
}

// A start needs the sum of the budgets in memory, or what the setting says.
func TestCheck(t *testing.T) {
	b := table()
	require.EqualValues(t, 500<<20, b.Memory())
	require.NoError(t, b.check(0, 500<<20))
	require.NoError(t, b.check(1, 2))
	err := b.check(0, 500<<20-1)
	require.ErrorIs(t, err, config.ErrInvalid)
	text, hint, found := strings.Cut(err.Error(), "\nhint: ")
	require.True(t, found)
	require.Equal(t, "this node needs 500 MiB of memory, but 499 MiB are available (the least of GOMEMLIMIT, control group and machine)", text)
	require.Contains(t, hint, "the largest is a, 300 MiB")
	require.Contains(t, hint, "min_memory_bytes = 524287999 ")
	require.NoError(t, b.check(524287999, 500<<20-1), "the hint helps")
	require.ErrorContains(t, b.check(800<<20, 600<<20), "needs 800 MiB of memory, but 600 MiB")
}

func TestMetrics(t *testing.T) {
	b := table()
	b.Measure("b", func() int64 { return 7 })
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(NewMetrics(func() Table { return b })))
	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()+" "+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	require.Equal(t, map[string]float64{
		"starling_budget_bytes a": 300 << 20, "starling_budget_bytes b": 200 << 20, "starling_budget_bytes b_disk": 1 << 40, "starling_budget_used_bytes b": 7,
	}, got)
}
