package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/storage/events"
)

// newEventMetrics returns the metrics of the log of events. nil: this node keeps none, and all are
// 0.
func newEventMetrics(log *events.Log) prometheus.Collector {
	m := &statMetrics[events.Stats]{subsystem: "events", read: func() (s events.Stats) {
		if log != nil {
			s = log.Stats()
		}
		return s
	}}
	gauge, counter, add := prometheus.GaugeValue, prometheus.CounterValue, m.add
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
