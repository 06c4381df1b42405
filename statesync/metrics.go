package statesync

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metricsSubsystem follows the namespace in metric names. With namespace "starling" the names do
// not collide with CometBFT's.
const metricsSubsystem = "statesync"

// Metrics are the metrics of state sync. A nil *Metrics counts nothing.
type Metrics struct {
	offered, verified, bytes, rejected, served, servedBytes prometheus.Counter
	banned                                                  *prometheus.CounterVec // by BanReason
	chunks                                                  prometheus.Gauge
}

// BanReason is the kind of invalid data that a peer provably sent. The set is fixed, so a reason
// can be a label.
type BanReason string

// The reasons for bans.
const (
	BanChunk    BanReason = "chunk"    // a chunk that is not part of the state
	BanManifest BanReason = "manifest" // a manifest that does not lead to the app hash
	BanMessage  BanReason = "message"  // an undecodable answer
	BanHeader   BanReason = "header"   // a header that the validators did not sign
	BanBlock    BanReason = "block"    // blocks that the validators did not sign
)

var banReasons = []BanReason{BanChunk, BanManifest, BanMessage, BanHeader, BanBlock}

// NewMetrics registers the metrics. Metrics that are already registered are shared by the whole
// process.
func NewMetrics(namespace string, registry prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return register(registry, prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: metricsSubsystem, Name: name, Help: help,
		}))
	}
	m := &Metrics{
		offered:     counter("snapshots_offered_total", "Snapshots that peers offered to this node in CometBFT's state sync."),
		verified:    counter("chunks_verified_total", "Chunks that this node received and verified while it joined."),
		bytes:       counter("bytes_verified_total", "Bytes of verified chunks."),
		rejected:    counter("chunks_rejected_total", "Chunks that this node received and that did not match the manifest."),
		served:      counter("chunks_served_total", "Chunks served to joining nodes."),
		servedBytes: counter("bytes_served_total", "Bytes of the chunks served to joining nodes."),
		banned: register(registry, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: metricsSubsystem, Name: "peers_banned_total",
			Help: "Peers banned while this node joined because they provably sent invalid data, by kind of data: chunk, manifest, message, header or block.",
		}, []string{"reason"})),
		chunks: register(registry, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: metricsSubsystem, Name: "snapshot_chunks", Help: "Number of chunks of the snapshot being restored or restored last.",
		})),
	}
	for _, reason := range banReasons {
		m.banned.WithLabelValues(string(reason)) // exports 0 instead of nothing
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
		panic(err) // two different metrics with one name: a bug
	}
	return c
}

func (m *Metrics) snapshotOffered() {
	if m != nil {
		m.offered.Inc()
	}
}

// Restoring counts the start of a restore. ChunkVerified and ChunkRejected count its progress.
// Other packages that restore states use them.
func (m *Metrics) Restoring(chunks int) { m.restoring(chunks) }

// ChunkVerified counts a verified chunk.
func (m *Metrics) ChunkVerified(bytes int) { m.chunkVerified(bytes) }

// ChunkRejected counts an invalid chunk.
func (m *Metrics) ChunkRejected() { m.chunkRejected(false) }

// PeerBanned counts a peer that provably sent invalid data.
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
