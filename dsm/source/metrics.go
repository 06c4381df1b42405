package source

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/ask"
	"github.com/starling-kv/starling/transport"
)

// Metrics are what operators watch.
type Metrics struct {
	Requests  *prometheus.CounterVec // by node, method and outcome
	Lies      *prometheus.CounterVec // by node, range and verdict
	Bytes     *prometheus.CounterVec // by method and direction
	Lag       *prometheus.GaugeVec   // in blocks, by range
	Queued    *prometheus.GaugeVec   // bytes of updates, by range
	Durable   prometheus.Gauge       // height
	Blocked   prometheus.Counter     // seconds
	Unserved  *prometheus.CounterVec // by range
	Elsewhere prometheus.Counter     // ways that were found by the key before
}

// NewMetrics registers the metrics.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := NopMetrics()
	registerer.MustRegister(m.Requests, m.Lies, m.Bytes, m.Lag, m.Queued, m.Durable, m.Blocked, m.Unserved, m.Elsewhere)
	return m
}

// NopMetrics returns metrics that are registered nowhere.
func NopMetrics() *Metrics {
	const namespace, subsystem = "starling", "dsm"
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	}
	return &Metrics{
		Requests: counters("requests_total", "Requests to storage nodes, by node, method and outcome.", "node", "method", "outcome"),
		Lies:     counters("lies_total", "Answers that no honest storage node sends, by node, range and what was wrong.", "node", "range", "verdict"),
		Bytes:    counters("bytes_total", "Bytes to and from storage nodes, by method and direction.", "method", "direction"),
		Lag: gauges("lag_blocks",
			"Blocks that fewer than min_acks replicas of a range have on disk.", "range"),
		Queued: gauges("queued_bytes", "Bytes of updates that are kept for the replicas of a range.", "range"),
		Durable: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "durable_height",
			Help: "The newest height that min_acks replicas of each range have on disk."}),
		Blocked: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "blocked_seconds_total",
			Help: "Seconds that blocks waited because a range had too few replicas within the lag that is allowed."}),
		Unserved: counters("unserved_total", "Rounds in which no replica of a range answered what was asked, by range.", "range"),
		Elsewhere: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "ways_elsewhere_total",
			Help: "Requests for the way to the key before, since the way to a key leads elsewhere at the height that storage nodes have."}),
	}
}

// Outcomes of a request, as a label.
const (
	outcomeOK      = "ok"
	outcomeGone    = "gone"
	outcomeBusy    = "busy"
	outcomeRefused = "refused"
	outcomeBroken  = "broken"
	outcomeEnded   = "ended" // it was not needed any more
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

func methodName(method uint8) string {
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

func (m *Metrics) called(n dsm.Node, method uint8, sent, received int, err error) {
	name := methodName(method)
	m.Requests.WithLabelValues(string(n), name, outcome(err)).Inc()
	m.Bytes.WithLabelValues(name, "sent").Add(float64(sent))
	m.Bytes.WithLabelValues(name, "received").Add(float64(received))
}

func (m *Metrics) lied(n dsm.Node, r dsm.Range, v ask.Verdict) {
	m.Lies.WithLabelValues(string(n), r.String(), string(v)).Inc()
}
