package registry

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// A second node of a process registers the same metrics after the first has stopped, and only what
// a node registered is removed.
func TestClose(t *testing.T) {
	all := prometheus.NewRegistry()
	gauge := func(name string, value float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name}, func() float64 { return value })
	}
	require.NoError(t, all.Register(gauge("other", 0)))
	first, second := New(all), New(all)
	first.MustRegister(gauge("a", 1), gauge("b", 1))
	require.Error(t, second.Register(gauge("a", 2)))
	second.Close()
	first.Close()
	second.MustRegister(gauge("a", 2))
	families, err := all.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	require.Equal(t, map[string]float64{"a": 2, "other": 0}, got)
	(*Registry)(nil).Close()
}
