package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/treestore"
)

// storageMetrics are the metrics of both zones and their cache, read when Prometheus asks.
type storageMetrics struct {
	state  *storage.Zone       // nil: storage nodes keep the state
	blocks func() *blocks.Zone // nil: none at the moment
	cache  *sgc.Cache
	store  *treestore.Store // nil if state is

	all []storageMetric
	// Of each zone, by the label zone.
	hits, misses, ghostHits, entries, bytes, target *prometheus.Desc
	disk, amplification                             *prometheus.Desc

	scrubbed, passes *prometheus.Desc
}

// storageMetric is one that has no label.
type storageMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(storage.Metrics, sgc.Stats) float64
}

var _ prometheus.Collector = (*storageMetrics)(nil)

func newStorageMetrics(state *storage.Zone, zone func() *blocks.Zone, cache *sgc.Cache, store *treestore.Store) *storageMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("starling", "storage", name), help, labels, nil)
	}
	m := &storageMetrics{
		state: state, blocks: zone, cache: cache, store: store,
		hits:          desc("cache_hits_total", "Lookups in the shared cache that found what they asked for.", "zone"),
		misses:        desc("cache_misses_total", "Lookups in the shared cache that did not find what they asked for.", "zone"),
		ghostHits:     desc("cache_ghost_hits_total", "Lookups in the shared cache for what it had let go of lately: a larger share of it would have had them.", "zone"),
		entries:       desc("cache_entries", "Entries that the shared cache holds.", "zone"),
		bytes:         desc("cache_bytes", "Memory of what the shared cache holds.", "zone"),
		target:        desc("cache_target_bytes", "Current limit of a zone's memory in the shared cache.", "zone"),
		disk:          desc("disk_bytes", "Bytes that a zone has on disk.", "zone"),
		amplification: desc("write_amplification", "Bytes written to disk for each byte that was to be kept.", "zone"),
		scrubbed:      desc("scrubbed_bytes_total", "Bytes of keys and values on disk that were verified in the background."),
		passes:        desc("scrub_passes_total", "How often all of the state on disk was verified in the background."),
	}
	add := func(kind prometheus.ValueType, name, help string, value func(storage.Metrics, sgc.Stats) float64) {
		m.all = append(m.all, storageMetric{desc(name, help), kind, value})
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	add(counter, "cache_moves_total", "How often memory of the cache moved from one zone to the other.", func(_ storage.Metrics, c sgc.Stats) float64 { return float64(c.Moves) })
	add(counter, "cache_moved_bytes_total", "Memory of the cache that moved from one zone to the other.", func(_ storage.Metrics, c sgc.Stats) float64 { return float64(c.MovedBytes) })
	if state == nil {
		return m
	}
	add(gauge, "safe_height", "Height of the state that is on disk.", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.SafeHeight) })
	add(gauge, "lag_blocks", "Blocks whose state is not on disk yet.", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.LagBlocks) })
	add(gauge, "lag_bytes", "Bytes of changes that are not on disk yet.", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.LagBytes) })
	add(gauge, "lag_seconds", "Age of the oldest block whose state is not on disk yet.", func(s storage.Metrics, _ sgc.Stats) float64 { return s.LagSeconds })
	add(counter, "flushes_total", "Flushes of the state.", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.Flushes) })
	add(counter, "flush_seconds_total", "Time that flushes of the state took.", func(s storage.Metrics, _ sgc.Stats) float64 { return s.FlushSeconds })
	add(counter, "flush_bytes_total", "Bytes of changes that flushes of the state made durable: keys, values and heights, and 16 bytes for each key.", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.FlushedBytes) })
	add(counter, "wait_seconds_total", "Time that blocks waited because the disk was too far behind.", func(s storage.Metrics, _ sgc.Stats) float64 { return s.WaitSeconds })
	add(counter, "compaction_bytes_total", "Bytes that compactions of the state wrote.", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.CompactionBytes) })
	add(gauge, "generations", "States of earlier flushes that are kept for reading.", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.Generations) })
	return m
}

// Describe is that of prometheus.Collector.
func (m *storageMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, one := range m.all {
		to <- one.desc
	}
	for _, d := range []*prometheus.Desc{m.hits, m.misses, m.ghostHits, m.entries, m.bytes, m.target, m.disk, m.amplification} {
		to <- d
	}
	if m.state != nil {
		to <- m.scrubbed
		to <- m.passes
	}
}

// Collect is that of prometheus.Collector.
func (m *storageMetrics) Collect(to chan<- prometheus.Metric) {
	stats, zones := m.cache.Stats(), []sgc.Zone{sgc.Blocks}
	var state storage.Metrics
	if m.state != nil {
		state, zones = m.state.Metrics(), []sgc.Zone{sgc.State, sgc.Blocks}
	}
	for _, one := range m.all {
		to <- prometheus.MustNewConstMetric(one.desc, one.kind, one.value(state, stats))
	}
	labelled := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, zone sgc.Zone) {
		to <- prometheus.MustNewConstMetric(d, kind, value, zone.String())
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	for _, zone := range zones {
		s := stats.Zones[zone]
		labelled(m.hits, counter, float64(s.Hits), zone)
		labelled(m.misses, counter, float64(s.Misses), zone)
		labelled(m.ghostHits, counter, float64(s.GhostHits), zone)
		labelled(m.entries, gauge, float64(s.Entries), zone)
		labelled(m.bytes, gauge, float64(s.Bytes+s.Other), zone)
		labelled(m.target, gauge, float64(s.Target), zone)
	}
	if m.state != nil {
		labelled(m.disk, gauge, float64(state.DiskBytes), sgc.State)
		labelled(m.amplification, gauge, state.WriteAmplification, sgc.State)
		scrub := m.store.ScrubStats()
		to <- prometheus.MustNewConstMetric(m.scrubbed, counter, float64(scrub.Bytes))
		to <- prometheus.MustNewConstMetric(m.passes, counter, float64(scrub.Passes))
	}
	if zone := m.blocks(); zone != nil {
		blocks := zone.Metrics()
		labelled(m.disk, gauge, float64(blocks.DiskBytes), sgc.Blocks)
		labelled(m.amplification, gauge, blocks.WriteAmp, sgc.Blocks)
	}
}
