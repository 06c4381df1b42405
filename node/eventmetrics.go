package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/storage/events"
)

// eventMetrics are the metrics of the log of events, read when Prometheus asks.
type eventMetrics struct {
	log *events.Log // nil: this node keeps none, and all are 0
	all []eventMetric
}

type eventMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(events.Stats) float64
}

var _ prometheus.Collector = (*eventMetrics)(nil)

func newEventMetrics(log *events.Log) *eventMetrics {
	m := &eventMetrics{log: log}
	add := func(kind prometheus.ValueType, name, help string, value func(events.Stats) float64) {
		m.all = append(m.all, eventMetric{prometheus.NewDesc(prometheus.BuildFQName("starling", "events", name), help, nil, nil), kind, value})
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "least_height", "Lowest height from which watchers can continue.", func(s events.Stats) float64 { return float64(s.Least) })
	add(counter, "anew_total", "Times that the log began anew: it was damaged, or did not lead up to the state.", func(s events.Stats) float64 { return float64(s.Anew) })
	add(gauge, "kept_bytes", "Bytes of the events that are kept, before compression.", func(s events.Stats) float64 { return float64(s.Bytes) })
	add(gauge, "backlog_bytes", "Bytes of events that are not on disk yet.", func(s events.Stats) float64 { return float64(s.Backlog) })
	add(gauge, "waiting", "Requests of watchers that wait for an event.", func(s events.Stats) float64 { return float64(s.Waiting) })
	add(counter, "answers_total", "Requests of watchers that were answered.", func(s events.Stats) float64 { return float64(s.Answers) })
	add(counter, "answered_events_total", "Events in these answers.", func(s events.Stats) float64 { return float64(s.Events) })
	add(counter, "compacted_total", "Requests for events that are no longer kept.", func(s events.Stats) float64 { return float64(s.Compacted) })
	add(counter, "refused_total", "Requests that failed: too many waited, they were given up, or the disk could not be read.", func(s events.Stats) float64 { return float64(s.Refused) })
	return m
}

// Describe implements prometheus.Collector.
func (m *eventMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, one := range m.all {
		to <- one.desc
	}
}

// Collect implements prometheus.Collector.
func (m *eventMetrics) Collect(to chan<- prometheus.Metric) {
	var s events.Stats
	if m.log != nil {
		s = m.log.Stats()
	}
	for _, one := range m.all {
		to <- prometheus.MustNewConstMetric(one.desc, one.kind, one.value(s))
	}
}
