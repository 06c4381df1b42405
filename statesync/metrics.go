package statesync

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metricsSubsystem goes between the namespace and the names below. With namespace "starling" they do not meet CometBFT's own.
const metricsSubsystem = "statesync"

// Metrics are what operators watch. A nil *Metrics counts nothing.
type Metrics struct {
	offered, verified, bytes, rejected, peers, served, servedBytes prometheus.Counter
	total                                                          prometheus.Gauge
}

// NewMetrics registers the metrics. Those that are registered already are shared: they count for the whole process.
func NewMetrics(namespace string, registry prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return register(registry, prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: metricsSubsystem, Name: name, Help: help,
		}))
	}
	return &Metrics{
		offered:     counter("snapshots_offered", "Snapshots that peers offered to this node while it joined."),
		verified:    counter("chunks_verified", "Chunks received and verified."),
		bytes:       counter("bytes_verified", "Bytes of the verified chunks."),
		rejected:    counter("chunks_rejected", "Chunks received that were not what the manifest says."),
		peers:       counter("peers_rejected", "Peers rejected for what proves that they lied."),
		served:      counter("chunks_served", "Chunks handed out for joining nodes."),
		servedBytes: counter("bytes_served", "Bytes of the chunks handed out for joining nodes."),
		total: register(registry, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: metricsSubsystem, Name: "chunks_total", Help: "Chunks of the snapshot that is or was last restored.",
		})),
	}
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

// Restoring counts the beginning of a restore; ChunkVerified and ChunkRejected what comes of it. They are for ways in of other packages.
func (m *Metrics) Restoring(chunks int) { m.restoring(chunks) }

// ChunkVerified counts a chunk.
func (m *Metrics) ChunkVerified(bytes int) { m.chunkVerified(bytes) }

// ChunkRejected counts an answer that was no chunk.
func (m *Metrics) ChunkRejected() { m.chunkRejected(false) }

// PeerRejected counts a peer that was proved to lie, about whatever.
func (m *Metrics) PeerRejected() {
	if m != nil {
		m.peers.Inc()
	}
}

func (m *Metrics) restoring(chunks int) {
	if m != nil {
		m.total.Set(float64(chunks))
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
			m.peers.Inc()
		}
	}
}

func (m *Metrics) chunkServed(bytes int) {
	if m != nil {
		m.served.Inc()
		m.servedBytes.Add(float64(bytes))
	}
}
