package storagenode

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// maxSenders limits the senders with their own label; the label of all others is "other".
const maxSenders = 64

// metrics are the storage node's metrics. Those of ranges are read when Prometheus scrapes.
type metrics struct {
	n                  *Process
	sent, received     prometheus.Counter
	requests           *prometheus.CounterVec   // by method and outcome
	seconds            *prometheus.HistogramVec // by method
	verdicts           *prometheus.CounterVec   // by sender and kind
	oldest, newest     *prometheus.Desc         // by range
	waiting, waitBytes *prometheus.Desc         // by range
	disk, memory       *prometheus.Desc         // by range
	reads, changes     *prometheus.Desc         // by range
	logged, strangers  *prometheus.Desc
	header, missing    *prometheus.Desc
	damaged            *prometheus.Desc
	snapshot, version  *prometheus.Desc

	mu      sync.Mutex
	senders map[transport.ID]bool // senders with their own label; guarded by mu
}

var _ prometheus.Collector = (*metrics)(nil)

func newMetrics(n *Process) *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "starling", Subsystem: "storagenode", Name: name, Help: help}
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("starling", "storagenode", name), help, labels, nil)
	}
	m := &metrics{
		n: n, senders: map[transport.ID]bool{},
		sent:     prometheus.NewCounter(prometheus.CounterOpts(opts("sent_bytes_total", "Bytes that the storage node sent, on the wire."))),
		received: prometheus.NewCounter(prometheus.CounterOpts(opts("received_bytes_total", "Bytes that the storage node received, on the wire."))),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts(opts("requests_total",
			"Requests to the storage node, by method and outcome: answered, gone (data not available here), busy, refused or failed.")), []string{"method", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "starling", Subsystem: "storagenode", Name: "request_seconds", Help: "Time to serve a request to the storage node, in seconds, by method.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}, []string{"method"}),
		verdicts: prometheus.NewCounterVec(prometheus.CounterOpts(opts("verdicts_total",
			"Dropped updates, by sender and kind: false (proved invalid) or slow.")), []string{"sender", "kind"}),
		oldest:    desc("oldest_height", "Oldest height that the storage node serves, by range.", "range"),
		newest:    desc("durable_height", "Newest height on disk, by range.", "range"),
		waiting:   desc("waiting_updates", "Updates waiting for a header or for earlier updates, by range.", "range"),
		waitBytes: desc("waiting_bytes", "Bytes of updates waiting for a header or for earlier updates, by range.", "range"),
		disk:      desc("range_bytes", "Bytes of the state on disk, by range.", "range"),
		memory:    desc("range_memory_bytes", "Bytes of the tree in memory, by range.", "range"),
		reads:     desc("reads_total", "Keys and ranges of keys whose proofs were requested and sent since the range was opened, by range.", "range"),
		changes:   desc("changes_total", "Keys that blocks changed since the range was opened, by range.", "range"),
		version:   desc("map_version", "Version of the newest map of the ranges that the storage node has; 0: the file is not signed."),
		strangers: desc("stranger_bytes", "Bytes of updates waiting from senders that the operator has not named."),
		logged:    desc("log_bytes", "Bytes of the updates in the log of all ranges."),
		header:    desc("header_height", "Height of the newest proved header."),
		snapshot:  desc("snapshot_height", "Height of the newest snapshot whose chunks are served to joining full-state nodes; 0: none."),
		missing:   desc("missing_ranges", "Ranges assigned to this storage node that have no state yet."),
		damaged:   desc("damaged_ranges", "Ranges whose damaged data were put aside, in folders that end in -damaged."),
	}
	for _, method := range methodLabels { // export zeros instead of absent series
		m.requests.WithLabelValues(method, "answered")
		m.seconds.WithLabelValues(method)
	}
	return m
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.oldest, m.newest, m.waiting, m.waitBytes, m.disk, m.memory, m.reads, m.changes, m.version, m.logged, m.strangers, m.header, m.missing, m.damaged, m.snapshot} {
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
	missing, damaged := 0, 0
	m.n.mu.Lock()
	for _, p := range m.n.mu.places {
		if p.damaged() != "" {
			damaged++
		}
		if p.replica == nil {
			if p.role == current {
				missing++
			}
			continue
		}
		claim := p.replica.Claim()
		updates, bytes := p.replica.Waiting()
		gauge(m.oldest, float64(claim.Oldest), p.String())
		gauge(m.newest, float64(claim.Durable), p.String())
		gauge(m.waiting, float64(updates), p.String())
		gauge(m.waitBytes, float64(bytes), p.String())
		disk, memory := p.replica.Sizes()
		gauge(m.disk, float64(disk), p.String())
		gauge(m.memory, float64(memory), p.String())
		reads, changes := p.replica.Traffic()
		to <- prometheus.MustNewConstMetric(m.reads, prometheus.CounterValue, float64(reads), p.String())
		to <- prometheus.MustNewConstMetric(m.changes, prometheus.CounterValue, float64(changes), p.String())
	}
	m.n.mu.Unlock()
	gauge(m.version, float64(m.n.maps.Current().Version))
	gauge(m.logged, float64(m.n.redo.Bytes()))
	gauge(m.strangers, float64(m.n.strangers.Used()))
	gauge(m.missing, float64(missing))
	gauge(m.damaged, float64(damaged))
	gauge(m.snapshot, float64(m.n.chunks.newest()))
	gauge(m.header, float64(m.n.headers.newestProved().height))
	for _, c := range []prometheus.Collector{m.sent, m.received, m.requests, m.seconds, m.verdicts} {
		c.Collect(to)
	}
}

var methodLabels = map[transport.Method]string{
	dsm.MethodRanges: "ranges", dsm.MethodWitness: "witness",
	dsm.MethodUpper: "upper", dsm.MethodUpdate: "update",
	dsm.MethodOutline: "outline", dsm.MethodMap: "map", dsm.MethodLoads: "loads", protocol.MethodStatus: "status", protocol.MethodCommitment: "commitment",
	protocol.MethodManifest: "manifest", protocol.MethodChunk: "chunk", protocol.MethodSubManifest: "sub_manifest",
	protocol.MethodPeers: "peers", protocol.MethodGenesis: "genesis", protocol.MethodParts: "parts", 0: "unknown",
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

// label returns the sender's label, or "other" once maxSenders have one.
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

// verdict counts and logs a sender's invalid or slow update.
func (n *Process) verdict(v server.Verdict) {
	keys := avlstar.KeyRange{First: v.Range.First, After: v.Range.After}.String()
	if errors.Is(v.Err, server.ErrSlow) {
		n.metrics.verdicts.WithLabelValues(n.metrics.label(v.Sender), "slow").Inc()
		n.log.Info("An update was not completed in time: using another sender", "sender", v.Sender, "range", keys, "height", v.Height)
		return
	}
	n.metrics.verdicts.WithLabelValues(n.metrics.label(v.Sender), "false").Inc()
	n.log.Error("A node sent an invalid update: refusing its updates for some time", "sender", v.Sender, "range", keys, "height", v.Height, "err", v.Err)
}
