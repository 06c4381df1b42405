package node

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/node/relay"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// transportMetrics counts the transport's traffic. A nil one counts nothing.
type transportMetrics struct {
	sent, received, opened prometheus.Counter
	connections            prometheus.Gauge
	refused                *prometheus.CounterVec   // by reason
	requests               *prometheus.CounterVec   // by method and outcome
	seconds                *prometheus.HistogramVec // by method
}

func newTransportMetrics(registry prometheus.Registerer) *transportMetrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "starling", Subsystem: "transport", Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts(opts(name, help)))
	}
	m := &transportMetrics{
		sent:        counter("sent_bytes_total", "Bytes sent on inbound transport connections, on the wire."),
		received:    counter("received_bytes_total", "Bytes received on inbound transport connections, on the wire."),
		opened:      counter("connections_opened_total", "Inbound transport connections of authenticated nodes, since the start."),
		connections: prometheus.NewGauge(prometheus.GaugeOpts(opts("connections", "Open inbound transport connections of authenticated nodes."))),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts(opts("connections_refused_total",
			"Refused inbound transport connections, by reason: handshake (handshake or network failure), too_many, too_many_pending, accept_rate, "+
				"wrong_chain or wrong_version.")), []string{"reason"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts(opts("requests_total",
			"Transport requests from other nodes, by method and outcome: answered, gone (data not available here), busy, refused or failed.")),
			[]string{"method", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "starling", Subsystem: "transport", Name: "request_seconds", Help: "Time to serve a transport request, in seconds, by method.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}, []string{"method"}),
	}
	// Export zeros instead of absent series.
	for _, r := range refusals {
		m.refused.WithLabelValues(r.label)
	}
	m.refused.WithLabelValues(otherRefusal)
	for _, method := range methodLabels {
		m.seconds.WithLabelValues(method)
		m.requests.WithLabelValues(method, answered)
	}
	for _, c := range []prometheus.Collector{m.sent, m.received, m.opened, m.refused, m.connections, m.requests, m.seconds} {
		registry.MustRegister(c)
	}
	return m
}

// methodLabels names the methods of the transport; any other method is "unknown".
var methodLabels = map[transport.Method]string{
	protocol.MethodStatus: "status", protocol.MethodCommitment: "commitment", protocol.MethodManifest: "manifest",
	protocol.MethodChunk: "chunk", protocol.MethodSubManifest: "sub_manifest", lightblocks.MethodLightBlock: "light_block",
	lightblocks.MethodConsensusParams: "consensus_params", lightblocks.MethodEvidence: "evidence", protocol.MethodPeers: "peers",
	protocol.MethodGenesis: "genesis", lightblocks.MethodHeaders: "headers", relay.Method: "relay",
	0: "unknown",
}

func methodLabel(m transport.Method) string {
	if label, known := methodLabels[m]; known {
		return label
	}
	return methodLabels[0]
}

// class is the label of a kind of error.
type class struct {
	is    error
	label string
}

var refusals = []class{
	{tcp.ErrTooManyConns, "too_many"}, {tcp.ErrTooManyPending, "too_many_pending"}, {tcp.ErrAcceptRate, "accept_rate"},
	{transport.ErrWrongChain, "wrong_chain"}, {transport.ErrWrongVersion, "wrong_version"},
}

const otherRefusal = "handshake"

var outcomes = []class{{transport.ErrGone, "gone"}, {transport.ErrBusy, "busy"}, {transport.ErrRefused, "refused"}}

const answered, otherFailure = "answered", "failed"

func classify(err error, classes []class, otherwise string) string {
	for _, c := range classes {
		if errors.Is(err, c.is) {
			return c.label
		}
	}
	return otherwise
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
		Refused:  func(_ string, why error) { m.refused.WithLabelValues(classify(why, refusals, otherRefusal)).Inc() },
		Served: func(r transport.Request, _ int, took time.Duration, err error) {
			outcome := answered
			if err != nil {
				outcome = classify(err, outcomes, otherFailure)
			}
			m.requests.WithLabelValues(methodLabel(r.Method), outcome).Inc()
			m.seconds.WithLabelValues(methodLabel(r.Method)).Observe(took.Seconds())
		},
	}
}
