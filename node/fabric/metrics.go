package fabric

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma"
)

// otherPeer is the label of peers that are allowed by their network only: the operator has not
// named them.
const otherPeer = "fabric"

// metrics are the metrics of RDMA channels.
type metrics struct {
	named                                        []transport.ID // peers with their own label
	bytes, calls, paths, downs                   *prometheus.CounterVec
	leaked                                       prometheus.Counter
	devices, queuePairs, up, memory, quarantined *prometheus.Desc
	stats                                        func() rdma.Stats
}

var _ prometheus.Collector = (*metrics)(nil)

func newMetrics(named []transport.ID) *metrics {
	const namespace, subsystem = "starling", "transport"
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	}
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, nil, nil)
	}
	m := &metrics{
		named: named,
		bytes: vec("rdma_bytes_total", "Bytes of responses over RDMA, by peer and direction: sent or received.", "peer", "direction"),
		calls: vec("rdma_calls_total", "Requests answered over RDMA, by peer.", "peer"),
		paths: vec("rdma_paths_total", "RDMA channels established on outbound connections, by peer.", "peer"),
		downs: vec("rdma_fallbacks_total", "RDMA channels that failed or could not be established, by peer and reason; repetitions of the same reason count once.", "peer", "reason"),
		leaked: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "rdma_leaked_total", Help: "RDMA queue pairs that could not be released.",
		}),
		devices:     desc("rdma_devices", "Open RDMA devices."),
		queuePairs:  desc("rdma_queue_pairs", "Open RDMA queue pairs: one per channel."),
		up:          desc("rdma_paths_up", "Established RDMA channels."),
		memory:      desc("rdma_memory_bytes", "Memory registered for RDMA, in bytes."),
		quarantined: desc("rdma_quarantined_slots", "RDMA slots of cancelled requests, to which the peer may still write."),
	}
	// Export zeros instead of absent series.
	for _, id := range append(slices.Clone(named), otherPeer) {
		peer := string(id)
		m.bytes.WithLabelValues(peer, "sent")
		m.bytes.WithLabelValues(peer, "received")
		m.calls.WithLabelValues(peer)
		m.paths.WithLabelValues(peer)
		for _, reason := range rdma.Reasons() {
			m.downs.WithLabelValues(peer, reason)
		}
	}
	return m
}

// label returns a peer's label.
func (m *metrics) label(peer transport.ID) string {
	if slices.Contains(m.named, peer) {
		return string(peer)
	}
	return otherPeer
}

func (m *metrics) hooks() rdma.Hooks {
	count := func(v *prometheus.CounterVec, n int, peer transport.ID, labels ...string) {
		v.WithLabelValues(append([]string{m.label(peer)}, labels...)...).Add(float64(n))
	}
	return rdma.Hooks{
		Up:       func(peer transport.ID, _ rdma.Way) { count(m.paths, 1, peer) },
		Down:     func(peer transport.ID, why error) { count(m.downs, 1, peer, rdma.Reason(why)) },
		Received: func(peer transport.ID, n int) { count(m.bytes, n, peer, "received") },
		Sent:     func(peer transport.ID, n int) { count(m.bytes, n, peer, "sent") },
		Called:   func(peer transport.ID) { count(m.calls, 1, peer) },
		Leaked:   func(error) { m.leaked.Inc() },
	}
}

func (m *metrics) counters() []prometheus.Collector {
	return []prometheus.Collector{m.bytes, m.calls, m.paths, m.downs, m.leaked}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.counters() {
		c.Describe(to)
	}
	for _, d := range []*prometheus.Desc{m.devices, m.queuePairs, m.up, m.memory, m.quarantined} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.counters() {
		c.Collect(to)
	}
	s := m.stats()
	gauge := func(d *prometheus.Desc, v float64) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	gauge(m.devices, float64(s.Devices))
	gauge(m.queuePairs, float64(s.QueuePairs))
	gauge(m.up, float64(s.Up))
	gauge(m.memory, float64(s.Memory))
	gauge(m.quarantined, float64(s.Quarantined))
}
