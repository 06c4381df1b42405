package statesync

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metricsSubsystem goes between the namespace and the names below. With namespace "starling" they
// do not meet CometBFT's own.
const metricsSubsystem = "statesync"

// Metrics are what operators watch. A nil *Metrics counts nothing.
type Metrics struct {
	offered, verified, bytes, rejected, served, servedBytes prometheus.Counter
	banned                                                  *prometheus.CounterVec // by BanReason
	chunks                                                  prometheus.Gauge
}

// BanReason is about what a peer has been proved to lie. There are only these, so that they can be
// a label.
type BanReason string

// The reasons.
const (
	BanChunk    BanReason = "chunk"    // bytes that are no part of the state
	BanManifest BanReason = "manifest" // what does not lead to the app hash
	BanMessage  BanReason = "message"  // an answer that cannot be read
	BanHeader   BanReason = "header"   // a header that the validators did not sign
	BanBlock    BanReason = "block"    // blocks that the validators did not sign
)

var banReasons = []BanReason{BanChunk, BanManifest, BanMessage, BanHeader, BanBlock}

// NewMetrics registers the metrics. Those that are registered already are shared: they count for
// the whole process.
func NewMetrics(namespace string, registry prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return register(registry, prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: metricsSubsystem, Name: name, Help: help,
		}))
	}
	m := &Metrics{
		offered:     counter("snapshots_offered_total", "Snapshots that peers offered to this node in CometBFT's state sync."),
		verified:    counter("chunks_verified_total", "Chunks that this node received and verified while it joined."),
		bytes:       counter("bytes_verified_total", "Bytes of the chunks that were verified."),
		rejected:    counter("chunks_rejected_total", "Chunks that this node received and that were not what the manifest says."),
		served:      counter("chunks_served_total", "Chunks handed out to joining nodes."),
		servedBytes: counter("bytes_served_total", "Bytes of the chunks handed out to joining nodes."),
		banned: register(registry, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: metricsSubsystem, Name: "peers_banned_total",
			Help: "Peers banned for what proves that they lied while this node joined, by what it was about: chunk, manifest, message, header or block.",
		}, []string{"reason"})),
		chunks: register(registry, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: metricsSubsystem, Name: "snapshot_chunks", Help: "Chunks of the snapshot that is or was last restored.",
		})),
	}
	for _, reason := range banReasons {
		m.banned.WithLabelValues(string(reason)) // so that it is 0, not absent
	}
	return m
}

func register[C prometheus.Collector](registry prometheus.Registerer, c C) C {
	err := registry.Register(c)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if old, same := there.ExistingCollector.(C); same {
			return old
		}
	}
	if err != nil {
		panic(err) // two different metrics of one name: a mistake in this program
	}
	return c
}

func (m *Metrics) snapshotOffered() {
	if m != nil {
		m.offered.Inc()
	}
}

// Restoring counts the beginning of a restore; ChunkVerified and ChunkRejected what comes of it.
// They are for ways in of other packages.
func (m *Metrics) Restoring(chunks int) { m.restoring(chunks) }

// ChunkVerified counts a chunk.
func (m *Metrics) ChunkVerified(bytes int) { m.chunkVerified(bytes) }

// ChunkRejected counts an answer that was no chunk.
func (m *Metrics) ChunkRejected() { m.chunkRejected(false) }

// PeerBanned counts a peer that was proved to lie.
func (m *Metrics) PeerBanned(about BanReason) {
	if m != nil {
		m.banned.WithLabelValues(string(about)).Inc()
	}
}

func (m *Metrics) restoring(chunks int) {
	if m != nil {
		m.chunks.Set(float64(chunks))
	}
}

func (m *Metrics) chunkVerified(bytes int) {
	if m != nil {
		m.verified.Inc()
		m.bytes.Add(float64(bytes))
	}
}

func (m *Metrics) chunkRejected(newPeer bool) {
	if m != nil {
		m.rejected.Inc()
		if newPeer {
			m.PeerBanned(BanChunk)
		}
	}
}

func (m *Metrics) chunkServed(bytes int) {
	if m != nil {
		m.served.Inc()
		m.servedBytes.Add(float64(bytes))
	}
}
