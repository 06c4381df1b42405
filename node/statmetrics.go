package node

import "github.com/prometheus/client_golang/prometheus"

// statMetrics are metrics that are all computed from one reading of some statistics, made when
// Prometheus scrapes.
type statMetrics[S any] struct {
	subsystem string
	read      func() S
	all       []statMetric[S]
}

type statMetric[S any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(S) float64
}

var _ prometheus.Collector = (*statMetrics[struct{}])(nil)

// add adds a metric without labels, starling_SUBSYSTEM_NAME.
func (m *statMetrics[S]) add(kind prometheus.ValueType, name, help string, value func(S) float64) {
	desc := prometheus.NewDesc(prometheus.BuildFQName("starling", m.subsystem, name), help, nil, nil)
	m.all = append(m.all, statMetric[S]{desc, kind, value})
}

// Describe implements prometheus.Collector.
func (m *statMetrics[S]) Describe(to chan<- *prometheus.Desc) {
	for _, one := range m.all {
		to <- one.desc
	}
}

// Collect implements prometheus.Collector.
func (m *statMetrics[S]) Collect(to chan<- prometheus.Metric) {
	s := m.read()
	for _, one := range m.all {
		to <- prometheus.MustNewConstMetric(one.desc, one.kind, one.value(s))
	}
}
