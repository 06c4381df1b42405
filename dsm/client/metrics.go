package client

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/transport"
)

// Metrics are the metrics of a Client.
type Metrics struct {
	Requests  *prometheus.CounterVec // by node, method and outcome
	Lies      *prometheus.CounterVec // by node, range and verdict
	Bytes     *prometheus.CounterVec // by method and direction
	Lag       *prometheus.GaugeVec   // in blocks, by range
	Queued    *prometheus.GaugeVec   // bytes of updates, by range
	Behind    *prometheus.GaugeVec   // replicas, by range
	Durable   prometheus.Gauge       // height
	Blocked   prometheus.Counter     // seconds
	Unserved  *prometheus.CounterVec // by range
	Elsewhere prometheus.Counter     // requests for neighbours' paths
}

// NewMetrics registers the metrics.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := NopMetrics()
	registerer.MustRegister(m.Requests, m.Lies, m.Bytes, m.Lag, m.Queued, m.Behind, m.Durable, m.Blocked, m.Unserved, m.Elsewhere)
	return m
}

// NopMetrics returns metrics that are not registered.
func NopMetrics() *Metrics {
	const namespace, subsystem = "starling", "dsm"
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	}
	return &Metrics{
		Requests: counters("requests_total", "Requests to storage nodes and helpers, by node, method and outcome.", "node", "method", "outcome"),
		Lies:     counters("lies_total", "Invalid answers, by node, range and verdict.", "node", "range", "verdict"),
		Bytes:    counters("bytes_total", "Bytes to and from storage nodes, by method and direction.", "method", "direction"),
		Lag: gauges("lag_blocks",
			"Recent blocks that fewer than min_acks replicas of a range have on disk.", "range"),
		Queued: gauges("queued_bytes", "Bytes of updates kept for the replicas of a range.", "range"),
		Behind: gauges("replicas_behind",
			"Replicas of a range that are more than 16 blocks behind, or that have not reported since the start.", "range"),
		Durable: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "durable_height",
			Help: "Newest height that min_acks replicas of each range have on disk."}),
		Blocked: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "blocked_seconds_total",
			Help: "Seconds that blocks waited because a range had too few replicas within the allowed lag."}),
		Unserved: counters("unserved_total", "Fetches that no replica and no helper answered, by range.", "range"),
		Elsewhere: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "ways_elsewhere_total",
			Help: "Requests for the paths to neighbours of a key, sent after storage nodes opened nothing on the path to the key."}),
	}
}

// Outcomes of a request, as a label.
const (
	outcomeOK      = "ok"
	outcomeGone    = "gone"
	outcomeBusy    = "busy"
	outcomeRefused = "refused"
	outcomeBroken  = "broken"
	outcomeEnded   = "ended" // the request was cancelled
	outcomeLong    = "too_long"
)

func outcome(err error) string {
	switch {
	case err == nil:
		return outcomeOK
	case errors.Is(err, transport.ErrGone):
		return outcomeGone
	case errors.Is(err, transport.ErrBusy):
		return outcomeBusy
	case errors.Is(err, transport.ErrRefused):
		return outcomeRefused
	case errors.Is(err, transport.ErrTooLong):
		return outcomeLong
	case errors.Is(err, context.Canceled):
		return outcomeEnded
	}
	return outcomeBroken
}

func methodName(method transport.Method) string {
	switch method {
	case dsm.MethodRanges:
		return "ranges"
	case dsm.MethodWitness:
		return "witness"
	case dsm.MethodUpper:
		return "upper"
	case dsm.MethodUpdate:
		return "update"
	}
	return "other"
}

func (m *Metrics) called(n dsm.NodeID, method transport.Method, sent, received int, err error) {
	name := methodName(method)
	m.Requests.WithLabelValues(string(n), name, outcome(err)).Inc()
	m.Bytes.WithLabelValues(name, "sent").Add(float64(sent))
	m.Bytes.WithLabelValues(name, "received").Add(float64(received))
}
