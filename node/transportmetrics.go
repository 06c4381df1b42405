package node

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/lightblocks"
	"github.com/starling-kv/starling/node/relay"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// transportMetrics are what operators watch of the transport. A nil one counts nothing.
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
		sent:        counter("sent_bytes_total", "Bytes sent to joining nodes, on the wire."),
		received:    counter("received_bytes_total", "Bytes received from joining nodes, on the wire."),
		opened:      counter("connections_opened_total", "Connections of authenticated nodes."),
		connections: prometheus.NewGauge(prometheus.GaugeOpts(opts("connections", "Authenticated nodes that are connected."))),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts(opts("connections_refused_total",
			"Connections that were not let in, by reason: handshake (it failed, or the network did), too_many, too_many_pending, accept_rate, "+
				"wrong_chain or wrong_version.")), []string{"reason"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts(opts("requests_total",
			"Requests of other nodes, by method and outcome: answered, gone (what was asked for is not here), busy, refused or failed.")),
			[]string{"method", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "starling", Subsystem: "transport", Name: "request_seconds", Help: "Time to make an answer, by method.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}, []string{"method"}),
	}
	// So that what has not happened is 0, not absent.
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

// methodLabels are the methods of the transport; any other number is "unknown".
var methodLabels = map[transport.Method]string{
	fastsync.MethodStatus: "status", fastsync.MethodCommitment: "commitment", fastsync.MethodManifest: "manifest",
	fastsync.MethodChunk: "chunk", fastsync.MethodSubManifest: "sub_manifest", lightblocks.MethodLightBlock: "light_block",
	lightblocks.MethodConsensusParams: "consensus_params", lightblocks.MethodEvidence: "evidence", fastsync.MethodPeers: "peers",
	fastsync.MethodGenesis: "genesis", lightblocks.MethodHeaders: "headers", relay.Method: "relay",
	0: "unknown",
}

func methodLabel(m transport.Method) string {
	if label, known := methodLabels[m]; known {
		return label
	}
	return methodLabels[0]
}

// class is a label for errors of a kind.
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
