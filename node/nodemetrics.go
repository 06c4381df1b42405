package node

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/statesync/fastsync"
)

// registerMetrics registers the metrics of the node, in addition to those that its parts register
// themselves.
func (n *Node) registerMetrics(registry prometheus.Registerer) error {
	collectors := []prometheus.Collector{
		newJoinMetrics(&n.joinView), newBlocksMetrics(&n.blocksView), n.newMetrics(),
		// in sharded mode those of the block zone; package dsm/source has registered its own
		newStorageMetrics(n.application.state, n.databases.BlockZone, n.cache, n.application.store),
		newEventMetrics(n.application.events), newHeightMetrics(n.application.heights),
	}
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// nodeMetrics are the metrics of the node as a whole, read when Prometheus asks.
type nodeMetrics struct {
	n                                                 *Node
	build, appVersion, free, minFree, pinned, missing *prometheus.Desc
}

var _ prometheus.Collector = (*nodeMetrics)(nil)

func (n *Node) newMetrics() *nodeMetrics {
	desc := func(subsystem, name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("starling", subsystem, name), help, labels, nil)
	}
	return &nodeMetrics{
		n:          n,
		build:      desc("", "build_info", "Always 1; the labels say what this program is made of.", "version", "cometbft", "go"),
		appVersion: desc("app", "version", "App version: the rules by which the next block is executed."),
		free:       desc("storage", "disk_free_bytes", "Free space of the disk of the node's data, of the one with least where they are several."),
		minFree:    desc("storage", "disk_min_free_bytes", "Free space below which the node stops (storage.min_free_bytes); 0: it does not look."),
		missing:    desc("statesync", "headers_missing", "Headers from before this node joined that evidence may be about and that are not here."),
		pinned:     desc("statesync", "snapshots_pinned", "Snapshots that other nodes can join from."),
	}
}

// Describe implements prometheus.Collector.
func (m *nodeMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.build, m.appVersion, m.free, m.minFree, m.pinned, m.missing} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *nodeMetrics) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	v := buildinfo.Read()
	gauge(m.build, 1, v.Starling, v.CometBFT, v.Go)
	gauge(m.appVersion, float64(m.n.application.appVersion()))
	if free, known := disk.LeastFree(config.DataFolders(m.n.config.CometBFT)); known {
		gauge(m.free, float64(free))
	}
	gauge(m.minFree, float64(m.n.config.App.Storage.MinFreeBytes))
	gauge(m.missing, float64(m.n.missing().Headers()))
	gauge(m.pinned, float64(len(m.n.application.snapshots.Heights())))
}

// appVersion returns the version of the rules by which the next block is executed; 0: not known.
func (a *Application) appVersion() uint64 {
	info, err := a.Info(context.Background(), nil)
	if err != nil {
		return 0
	}
	return info.AppVersion
}

// maxPeerLabels limits the peers that have metrics of their own: those that are connected and gave
// most. The metrics of a peer go with it, so that peers who come and go do not fill the memory of
// Prometheus.
const maxPeerLabels = 32

// joinMetrics are the progress of a join over the transport, read when Prometheus asks. They are 0
// if there is none.
type joinMetrics struct {
	view joinView
	all  []joinMetric
	// Of each peer, by its node id.
	peers []peerMetric
}

// joinView is what is used of a fastsync.View.
type joinView interface {
	Progress() (fastsync.Progress, bool)
	Peers() []fastsync.PeerView // those that gave most come first
}

type joinMetric struct {
	desc  *prometheus.Desc
	value func(fastsync.Progress) float64
}

type peerMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(fastsync.PeerView) float64
}

var _ prometheus.Collector = (*joinMetrics)(nil)

func newJoinMetrics(view joinView) *joinMetrics {
	m := &joinMetrics{view: view}
	name := func(name string) string { return prometheus.BuildFQName("starling", "statesync", name) }
	add := func(is, help string, value func(fastsync.Progress) float64) {
		m.all = append(m.all, joinMetric{prometheus.NewDesc(name("join_"+is), help, nil, nil), value})
	}
	add("active", "1 while this node fetches the state from other nodes' transports, else 0.", func(p fastsync.Progress) float64 {
		if p.Phase == "" || p.Phase == fastsync.PhaseDone {
			return 0
		}
		return 1
	})
	add("height", "Height of the snapshot that is or was last joined at.", func(p fastsync.Progress) float64 { return float64(p.Height) })
	add("chunks_done", "Chunks of that snapshot that are here and verified.", func(p fastsync.Progress) float64 { return float64(p.ChunksDone) })
	add("bytes", "Bytes of the chunks of that snapshot.", func(p fastsync.Progress) float64 { return float64(p.Bytes) })
	add("bytes_done", "Bytes of those that are here and verified.", func(p fastsync.Progress) float64 { return float64(p.BytesDone) })
	add("reused_bytes", "Bytes of those that had not to be fetched.", func(p fastsync.Progress) float64 { return float64(p.Reused) })
	add("wasted_bytes", "Bytes that were wasted: false data, second copies, interrupted answers.", func(p fastsync.Progress) float64 { return float64(p.Wasted) })
	add("refetched", "Requests for what had been asked for before.", func(p fastsync.Progress) float64 { return float64(p.Refetched) })
	add("retargets", "How often another snapshot was taken instead.", func(p fastsync.Progress) float64 { return float64(p.Retargets) })
	add("peers", "Peers that the state is or was fetched from: those connected.", func(p fastsync.Progress) float64 { return float64(p.Peers) })
	add("bytes_per_second", "Speed of the join since its snapshot was chosen.", func(p fastsync.Progress) float64 { return float64(p.Rate) })
	add("seconds", "Time that the join takes or took.", func(p fastsync.Progress) float64 { return p.Elapsed.Seconds() })

	addPeer := func(kind prometheus.ValueType, is, help string, value func(fastsync.PeerView) float64) {
		m.peers = append(m.peers, peerMetric{prometheus.NewDesc(name("peer_"+is), help, []string{"peer"}, nil), kind, value})
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	addPeer(gauge, "requests_in_flight", "Requests that a peer has not answered yet.", func(p fastsync.PeerView) float64 { return float64(p.InFlight) })
	addPeer(counter, "chunks_verified_total", "Answers of a peer that were verified.", func(p fastsync.PeerView) float64 { return float64(p.Verified) })
	addPeer(counter, "bytes_verified_total", "Bytes of a peer's answers that were verified.", func(p fastsync.PeerView) float64 { return float64(p.VerifiedBytes) })
	addPeer(counter, "wasted_bytes_total", "Bytes of a peer that were wasted.", func(p fastsync.PeerView) float64 { return float64(p.WastedBytes) })
	addPeer(gauge, "bytes_per_second", "Speed of a peer, as measured; 0: not yet.", func(p fastsync.PeerView) float64 { return float64(p.Rate) })
	return m
}

// Describe implements prometheus.Collector.
func (m *joinMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, one := range m.all {
		to <- one.desc
	}
	for _, one := range m.peers {
		to <- one.desc
	}
}

// Collect implements prometheus.Collector.
func (m *joinMetrics) Collect(to chan<- prometheus.Metric) {
	p, _ := m.view.Progress()
	for _, one := range m.all {
		to <- prometheus.MustNewConstMetric(one.desc, prometheus.GaugeValue, one.value(p))
	}
	shown := 0
	for _, peer := range m.view.Peers() {
		if peer.Address == "" {
			continue
		}
		if shown++; shown > maxPeerLabels {
			return
		}
		for _, one := range m.peers {
			to <- prometheus.MustNewConstMetric(one.desc, one.kind, one.value(peer), string(peer.ID))
		}
	}
}
