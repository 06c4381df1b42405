package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// transportMetrics are what operators watch of the transport. A nil one counts nothing.
type transportMetrics struct {
	sent, received, opened, refused prometheus.Counter
	connections                     prometheus.Gauge
	served                          *prometheus.CounterVec // by outcome
	seconds                         prometheus.Histogram
}

func newTransportMetrics(registry prometheus.Registerer) *transportMetrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "starling", Subsystem: "transport", Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts(opts(name, help)))
	}
	m := &transportMetrics{
		sent:        counter("sent_bytes", "Bytes sent to joining nodes, on the wire."),
		received:    counter("received_bytes", "Bytes received from joining nodes, on the wire."),
		opened:      counter("connections_opened", "Connections of authenticated nodes."),
		refused:     counter("connections_refused", "Connections that ended before they were authenticated, or were not let in."),
		connections: prometheus.NewGauge(prometheus.GaugeOpts(opts("connections", "Nodes that are connected."))),
		served:      prometheus.NewCounterVec(prometheus.CounterOpts(opts("requests", "Requests answered, by outcome.")), []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "starling", Subsystem: "transport", Name: "request_seconds", Help: "Time to make an answer.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}),
	}
	for _, c := range []prometheus.Collector{m.sent, m.received, m.opened, m.refused, m.connections, m.served, m.seconds} {
		registry.MustRegister(c)
	}
	return m
}

func (m *transportMetrics) hooks() tcp.Hooks {
	if m == nil {
		return tcp.Hooks{}
	}
	return tcp.Hooks{
		Sent:     func(n int) { m.sent.Add(float64(n)) },
		Received: func(n int) { m.received.Add(float64(n)) },
		Opened:   func(transport.ID, string) { m.opened.Inc(); m.connections.Inc() },
		Closed:   func(transport.ID, string, error) { m.connections.Dec() },
		Refused:  func(string, error) { m.refused.Inc() },
		Served: func(_ transport.Request, _ int, took time.Duration, err error) {
			outcome := "answered"
			if err != nil {
				outcome = "failed"
			}
			m.served.WithLabelValues(outcome).Inc()
			m.seconds.Observe(took.Seconds())
		},
	}
}
