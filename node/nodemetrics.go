package node

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/node/budget"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/statesync/view"
)

// registerMetrics registers the metrics of the node, in addition to those that its parts register
// themselves.
func (n *Node) registerMetrics(registry prometheus.Registerer) error {
	collectors := []prometheus.Collector{
		newJoinMetrics(&n.joinView), newBlocksMetrics(&n.blocksView), n.newMetrics(),
		newStorageMetrics(n.application.local, n.databases.BlockZone, n.cache),
		newEventMetrics(n.application.events), budget.NewMetrics(n.budgets),
	}
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// nodeMetrics are the metrics of the node as a whole, read when Prometheus scrapes.
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
		build:      desc("", "build_info", "Always 1; the labels have the versions of Starling, CometBFT and Go.", "version", "cometbft", "go"),
		appVersion: desc("app", "version", "App version of the next block: it selects the rules of execution."),
		free:       desc("storage", "disk_free_bytes", "Free space of the disk with the node's data; with several disks, the least."),
		minFree:    desc("storage", "disk_min_free_bytes", "Free space below which the node stops (disk.min_free_bytes); 0: not checked."),
		missing:    desc("statesync", "headers_missing", "Missing headers from before this node joined that evidence in a block may refer to."),
		pinned:     desc("statesync", "snapshots_pinned", "Snapshots served to joining nodes."),
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
	gauge(m.minFree, float64(m.n.config.App.Disk.MinFreeBytes))
	gauge(m.missing, float64(m.n.missing().Headers()))
	gauge(m.pinned, float64(len(m.n.application.snapshots.Heights())))
}

// appVersion returns the app version of the next block; 0: unknown.
func (a *Application) appVersion() uint64 {
	info, err := a.Info(context.Background(), nil)
	if err != nil {
		return 0
	}
	return info.AppVersion
}

// maxPeerLabels limits the peers with their own metrics: the connected ones that sent the most. A
// peer's metrics disappear with the peer, so that changing peers do not fill Prometheus' memory.
const maxPeerLabels = 32

// joinMetrics are the progress of a join over the transport, read when Prometheus scrapes. They are
// 0 if there was none.
type joinMetrics struct {
	view joinView
	all  []joinMetric
	// Labelled by the peer's node id.
	peers []peerMetric
}

// joinView is the part of view.Join that joinMetrics uses.
type joinView interface {
	Progress() (view.Progress, bool)
	Peers() []view.Peer // the peers that sent the most come first
}

type joinMetric struct {
	desc  *prometheus.Desc
	value func(view.Progress) float64
}

type peerMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(view.Peer) float64
}

var _ prometheus.Collector = (*joinMetrics)(nil)

func newJoinMetrics(joined joinView) *joinMetrics {
	m := &joinMetrics{view: joined}
	name := func(name string) string { return prometheus.BuildFQName("starling", "statesync", name) }
	add := func(is, help string, value func(view.Progress) float64) {
		m.all = append(m.all, joinMetric{prometheus.NewDesc(name("join_"+is), help, nil, nil), value})
	}
	add("active", "1 while this node fetches the state over the transport, otherwise 0.", func(p view.Progress) float64 {
		if p.Phase == "" || p.Phase == view.PhaseDone {
			return 0
		}
		return 1
	})
	add("height", "Height of the snapshot of the current or last join.", func(p view.Progress) float64 { return float64(p.Height) })
	add("chunks_done", "Verified chunks of the joined snapshot.", func(p view.Progress) float64 { return float64(p.ChunksDone) })
	add("bytes", "Total bytes of the joined snapshot's chunks.", func(p view.Progress) float64 { return float64(p.Bytes) })
	add("bytes_done", "Bytes of the joined snapshot that have been verified.", func(p view.Progress) float64 { return float64(p.BytesDone) })
	add("reused_bytes", "Bytes of the joined snapshot that were already on disk.", func(p view.Progress) float64 { return float64(p.Reused) })
	add("wasted_bytes", "Bytes received in vain during the join: invalid data, duplicates, interrupted responses.", func(p view.Progress) float64 { return float64(p.Wasted) })
	add("refetched", "Repeated requests during the join.", func(p view.Progress) float64 { return float64(p.Refetched) })
	add("retargets", "Number of times the join switched to another snapshot.", func(p view.Progress) float64 { return float64(p.Retargets) })
	add("peers", "Connected peers of the current or last join.", func(p view.Progress) float64 { return float64(p.Peers) })
	add("bytes_per_second", "Join rate since the snapshot was chosen, in bytes per second.", func(p view.Progress) float64 { return float64(p.Rate) })
	add("seconds", "Duration of the current or last join, in seconds.", func(p view.Progress) float64 { return p.Elapsed.Seconds() })

	addPeer := func(kind prometheus.ValueType, is, help string, value func(view.Peer) float64) {
		m.peers = append(m.peers, peerMetric{prometheus.NewDesc(name("peer_"+is), help, []string{"peer"}, nil), kind, value})
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	addPeer(gauge, "requests_in_flight", "Requests of the join in flight to the peer.", func(p view.Peer) float64 { return float64(p.InFlight) })
	addPeer(counter, "chunks_verified_total", "Responses of the peer that were verified during the join.", func(p view.Peer) float64 { return float64(p.Verified) })
	addPeer(counter, "bytes_verified_total", "Bytes of the peer's responses that were verified during the join.", func(p view.Peer) float64 { return float64(p.VerifiedBytes) })
	addPeer(counter, "wasted_bytes_total", "Bytes received from the peer in vain during the join.", func(p view.Peer) float64 { return float64(p.WastedBytes) })
	addPeer(gauge, "bytes_per_second", "Measured rate of the peer during the join, in bytes per second; 0: not measured yet.", func(p view.Peer) float64 { return float64(p.Rate) })
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
