package shard

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/storagenode"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// maxSenders limits the senders that have a label of their own; others are "other".
const maxSenders = 64

// metrics are what operators watch. Those of ranges are read when Prometheus asks.
type metrics struct {
	n                  *Node
	sent, received     prometheus.Counter
	requests           *prometheus.CounterVec   // by method and outcome
	seconds            *prometheus.HistogramVec // by method
	verdicts           *prometheus.CounterVec   // by sender and kind
	oldest, newest     *prometheus.Desc         // by range
	waiting, waitBytes *prometheus.Desc         // by range
	header, missing    *prometheus.Desc
	snapshot           *prometheus.Desc

	mu      sync.Mutex
	senders map[transport.ID]bool // those with a label; guarded by mu
}

var _ prometheus.Collector = (*metrics)(nil)

func newMetrics(n *Node) *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "starling", Subsystem: "storagenode", Name: name, Help: help}
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("starling", "storagenode", name), help, labels, nil)
	}
	m := &metrics{
		n: n, senders: map[transport.ID]bool{},
		sent:     prometheus.NewCounter(prometheus.CounterOpts(opts("sent_bytes_total", "Bytes sent, on the wire."))),
		received: prometheus.NewCounter(prometheus.CounterOpts(opts("received_bytes_total", "Bytes received, on the wire."))),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts(opts("requests_total",
			"Requests, by method and outcome: answered, gone, busy, refused or failed.")), []string{"method", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "starling", Subsystem: "storagenode", Name: "request_seconds", Help: "Time to make an answer, by method.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}, []string{"method"}),
		verdicts: prometheus.NewCounterVec(prometheus.CounterOpts(opts("verdicts_total",
			"Updates that were dropped, by sender and kind: false (proved), or slow.")), []string{"sender", "kind"}),
		oldest:    desc("oldest_height", "First height that is answered, by range.", "range"),
		newest:    desc("durable_height", "Last height that is answered and on disk, by range.", "range"),
		waiting:   desc("waiting_updates", "Updates that wait for a header, or for earlier ones, by range.", "range"),
		waitBytes: desc("waiting_bytes", "Bytes of these updates, by range.", "range"),
		header:    desc("header_height", "Newest header that is proved."),
		snapshot:  desc("snapshot_height", "Newest snapshot of which chunks are served to nodes that join in local mode; 0: none."),
		missing:   desc("missing_ranges", "Ranges of this node that have no state yet."),
	}
	for _, method := range methodLabels { // so that what has not happened is 0, not absent
		m.requests.WithLabelValues(method, "answered")
		m.seconds.WithLabelValues(method)
	}
	return m
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.oldest, m.newest, m.waiting, m.waitBytes, m.header, m.missing, m.snapshot} {
		to <- d
	}
	for _, c := range []prometheus.Collector{m.sent, m.received, m.requests, m.seconds, m.verdicts} {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	missing := 0
	m.n.mu.Lock()
	for _, p := range m.n.places {
		if p.replica == nil {
			missing++
			continue
		}
		claim := p.replica.Claim()
		updates, bytes := p.replica.Waiting()
		gauge(m.oldest, float64(claim.Oldest), p.String())
		gauge(m.newest, float64(claim.Durable), p.String())
		gauge(m.waiting, float64(updates), p.String())
		gauge(m.waitBytes, float64(bytes), p.String())
	}
	m.n.mu.Unlock()
	gauge(m.missing, float64(missing))
	gauge(m.snapshot, float64(m.n.chunks.newest()))
	gauge(m.header, float64(m.n.headers.newestProved().height))
	for _, c := range []prometheus.Collector{m.sent, m.received, m.requests, m.seconds, m.verdicts} {
		c.Collect(to)
	}
}

var methodLabels = map[transport.Method]string{
	transport.Method(dsm.MethodRanges): "ranges", transport.Method(dsm.MethodWitness): "witness",
	transport.Method(dsm.MethodUpper): "upper", transport.Method(dsm.MethodUpdate): "update",
	transport.Method(dsm.MethodOutline): "outline", fastsync.MethodStatus: "status", fastsync.MethodCommitment: "commitment",
	fastsync.MethodManifest: "manifest", fastsync.MethodChunk: "chunk", fastsync.MethodSubManifest: "sub_manifest",
	fastsync.MethodPeers: "peers", fastsync.MethodGenesis: "genesis", fastsync.MethodParts: "parts", 0: "unknown",
}

func methodLabel(m transport.Method) string {
	if label, known := methodLabels[m]; known {
		return label
	}
	return methodLabels[0]
}

func outcome(err error) string {
	for _, o := range []struct {
		is    error
		label string
	}{{nil, "answered"}, {transport.ErrGone, "gone"}, {transport.ErrBusy, "busy"}, {transport.ErrRefused, "refused"}} {
		if errors.Is(err, o.is) {
			return o.label
		}
	}
	return "failed"
}

func (m *metrics) hooks() tcp.Hooks {
	return tcp.Hooks{
		Sent:     func(n int) { m.sent.Add(float64(n)) },
		Received: func(n int) { m.received.Add(float64(n)) },
		Served: func(r transport.Request, _ int, took time.Duration, err error) {
			m.requests.WithLabelValues(methodLabel(r.Method), outcome(err)).Inc()
			m.seconds.WithLabelValues(methodLabel(r.Method)).Observe(took.Seconds())
		},
	}
}

// label returns the sender's label.
func (m *metrics) label(sender transport.ID) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.senders[sender] {
		if len(m.senders) >= maxSenders {
			return "other"
		}
		m.senders[sender] = true
	}
	return string(sender)
}

// verdict is told who has sent what is false, or was too slow.
func (n *Node) verdict(v storagenode.Verdict) {
	keys := dsm.Range{First: v.Range.First, After: v.Range.After}.String()
	if errors.Is(v.Err, storagenode.ErrSlow) {
		n.metrics.verdicts.WithLabelValues(n.metrics.label(v.Sender), "slow").Inc()
		n.log.Info("An update was not completed in time, and another sender takes its place", "sender", v.Sender, "range", keys, "height", v.Height)
		return
	}
	n.metrics.verdicts.WithLabelValues(n.metrics.label(v.Sender), "false").Inc()
	n.log.Error("A node has sent a false update, and is refused for some time", "sender", v.Sender, "range", keys, "height", v.Height, "err", v.Err)
}
