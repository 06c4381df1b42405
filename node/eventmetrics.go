package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/storage/events"
)

// newEventMetrics returns the metrics of the event log. nil: this node keeps no events, and all are
// 0.
func newEventMetrics(log *events.Log) prometheus.Collector {
	m := &statMetrics[events.Stats]{subsystem: "events", read: func() (s events.Stats) {
		if log != nil {
			s = log.Stats()
		}
		return s
	}}
	gauge, counter, add := prometheus.GaugeValue, prometheus.CounterValue, m.add
	add(gauge, "least_height", "Lowest height from which watchers can resume.", func(s events.Stats) float64 { return float64(s.Least) })
	add(counter, "replaced_total", "Number of times the event log was replaced by an empty one, because it was damaged or ended below the state's height.", func(s events.Stats) float64 { return float64(s.Replaced) })
	add(gauge, "kept_bytes", "Bytes of stored events, before compression.", func(s events.Stats) float64 { return float64(s.Bytes) })
	add(gauge, "backlog_bytes", "Bytes of events not yet on disk.", func(s events.Stats) float64 { return float64(s.Backlog) })
	add(gauge, "waiting", "Watcher requests currently waiting for an event.", func(s events.Stats) float64 { return float64(s.Waiting) })
	add(counter, "answers_total", "Watcher requests answered.", func(s events.Stats) float64 { return float64(s.Answers) })
	add(counter, "answered_events_total", "Events sent to watchers.", func(s events.Stats) float64 { return float64(s.Events) })
	add(counter, "compacted_total", "Watcher requests for events that are no longer kept.", func(s events.Stats) float64 { return float64(s.Compacted) })
	add(counter, "refused_total", "Watcher requests that failed: too many were waiting, the request was cancelled, or the disk could not be read.", func(s events.Stats) float64 { return float64(s.Refused) })
	return m
}
