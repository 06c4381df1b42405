package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/storage/sgc"
)

// storageMetrics are the metrics of both zones and their cache, read when Prometheus scrapes.
type storageMetrics struct {
	home   *local              // nil: storage nodes keep the state
	blocks func() *blocks.Zone // nil: none at present
	cache  *sgc.Cache

	all []storageMetric
	// Labelled by zone.
	hits, misses, ghostHits, entries, bytes, target *prometheus.Desc
	disk, amplification                             *prometheus.Desc

	scrubbed, passes *prometheus.Desc
}

// storageMetric is a metric without labels.
type storageMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(storage.Metrics, sgc.Stats) float64
}

var _ prometheus.Collector = (*storageMetrics)(nil)

func newStorageMetrics(home *local, zone func() *blocks.Zone, cache *sgc.Cache) *storageMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("starling", "storage", name), help, labels, nil)
	}
	m := &storageMetrics{
		home: home, blocks: zone, cache: cache,
		hits:          desc("cache_hits_total", "Hits in the cache shared by the state and block stores, by zone.", "zone"),
		misses:        desc("cache_misses_total", "Misses in the cache shared by the state and block stores, by zone.", "zone"),
		ghostHits:     desc("cache_ghost_hits_total", "Cache misses for recently evicted entries, by zone: a larger share of the cache would have avoided them.", "zone"),
		entries:       desc("cache_entries", "Entries in the cache, by zone.", "zone"),
		bytes:         desc("cache_bytes", "Memory used by the cache, in bytes, by zone.", "zone"),
		target:        desc("cache_target_bytes", "Current limit of the zone's share of the cache, in bytes.", "zone"),
		disk:          desc("disk_bytes", "Disk space used by the zone, in bytes.", "zone"),
		amplification: desc("write_amplification", "Bytes written to disk per byte stored, by zone.", "zone"),
		scrubbed:      desc("scrubbed_bytes_total", "Bytes of keys and values on disk verified by the background scrub."),
		passes:        desc("scrub_passes_total", "Number of times the background scrub verified the whole state on disk."),
	}
	add := func(kind prometheus.ValueType, name, help string, value func(storage.Metrics, sgc.Stats) float64) {
		m.all = append(m.all, storageMetric{desc(name, help), kind, value})
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	add(counter, "cache_moves_total", "Number of times cache memory moved from one zone to the other.", func(_ storage.Metrics, c sgc.Stats) float64 { return float64(c.Moves) })
	add(counter, "cache_moved_bytes_total", "Bytes of cache memory moved from one zone to the other.", func(_ storage.Metrics, c sgc.Stats) float64 { return float64(c.MovedBytes) })
	if home == nil {
		return m
	}
	add(gauge, "safe_height", "Height of the state on disk (durable height).", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.SafeHeight) })
	add(gauge, "lag_blocks", "Blocks whose changes are not yet on disk.", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.LagBlocks) })
	add(gauge, "lag_bytes", "Bytes of changes not yet on disk.", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.LagBytes) })
	add(gauge, "lag_seconds", "Age of the oldest block whose changes are not yet on disk, in seconds.", func(s storage.Metrics, _ sgc.Stats) float64 { return s.LagSeconds })
	add(counter, "flushes_total", "Flushes of the state to disk.", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.Flushes) })
	add(counter, "flush_seconds_total", "Time spent flushing the state to disk, in seconds.", func(s storage.Metrics, _ sgc.Stats) float64 { return s.FlushSeconds })
	add(counter, "flush_bytes_total", "Bytes of changes flushed to disk: keys, values and heights, plus 16 bytes per key.", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.FlushedBytes) })
	add(counter, "wait_seconds_total", "Time that blocks waited for the flusher's backlog, in seconds.", func(s storage.Metrics, _ sgc.Stats) float64 { return s.WaitSeconds })
	add(counter, "compaction_bytes_total", "Bytes written by compactions of the state.", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.CompactionBytes) })
	add(gauge, "generations", "States of earlier flushes kept readable.", func(s storage.Metrics, _ sgc.Stats) float64 { return float64(s.Generations) })
	return m
}

// Describe implements prometheus.Collector.
func (m *storageMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, one := range m.all {
		to <- one.desc
	}
	for _, d := range []*prometheus.Desc{m.hits, m.misses, m.ghostHits, m.entries, m.bytes, m.target, m.disk, m.amplification} {
		to <- d
	}
	if m.home != nil {
		to <- m.scrubbed
		to <- m.passes
	}
}

// Collect implements prometheus.Collector.
func (m *storageMetrics) Collect(to chan<- prometheus.Metric) {
	stats, zones := m.cache.Stats(), []sgc.Zone{sgc.Blocks}
	var state storage.Metrics
	if m.home != nil {
		state, zones = m.home.state.Metrics(), []sgc.Zone{sgc.State, sgc.Blocks}
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
	if m.home != nil {
		labelled(m.disk, gauge, float64(state.DiskBytes), sgc.State)
		labelled(m.amplification, gauge, state.WriteAmplification, sgc.State)
		scrub := m.home.store.ScrubStats()
		to <- prometheus.MustNewConstMetric(m.scrubbed, counter, float64(scrub.Bytes))
		to <- prometheus.MustNewConstMetric(m.passes, counter, float64(scrub.Passes))
	}
	if zone := m.blocks(); zone != nil {
		blocks := zone.Metrics()
		labelled(m.disk, gauge, float64(blocks.DiskBytes), sgc.Blocks)
		labelled(m.amplification, gauge, blocks.WriteAmp, sgc.Blocks)
	}
}
