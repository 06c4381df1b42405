package app

import (
	"strconv"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/avlstar"
)

// Metrics are the application's metrics for Prometheus.
type Metrics struct {
	Height        prometheus.Gauge       // height of the last committed block
	OldestHeight  prometheus.Gauge       // height of the oldest state that can be queried
	Keys          prometheus.Gauge       // keys in the tree, including system keys
	Bytes         prometheus.Gauge       // bytes of all leaf records
	Chunks        prometheus.Gauge       // chunks in the tree
	Memory        MemoryMetrics          // memory of the tree
	CommitSeconds prometheus.Histogram   // time until the store has taken the state
	Transactions  *prometheus.CounterVec // executed in blocks, by code
	Witness       WitnessMetrics         // of a sharded state
}

// WitnessMetrics count nodes that were missing in a tree and requested from a Source.
type WitnessMetrics struct {
	Rounds    *prometheus.CounterVec   // requests, by call
	Missing   *prometheus.CounterVec   // stubs below which nodes were requested, by call
	Bytes     *prometheus.CounterVec   // length of the received multiproofs, by call
	Wait      *prometheus.HistogramVec // time of one call until its nodes had arrived, by call
	LeftOut   prometheus.Counter       // transactions that PrepareProposal left out
	Unchecked prometheus.Gauge         // transactions that CheckTx admitted unchecked
}

// MemoryMetrics are the memory of the tree and of the older versions that queries and snapshots
// hold.
type MemoryMetrics struct {
	// As in avlstar.MemoryStats.
	InnerNodes, Leaves, Held, HeldBytes, NodeBytes, LeafBytes, Versions prometheus.Gauge
}

// NewMetrics registers the application's metrics.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := NopMetrics()
	t := m.Memory
	registerer.MustRegister(m.Height, m.OldestHeight, m.Keys, m.Bytes, m.Chunks, t.InnerNodes, t.Leaves, t.Held, t.HeldBytes, t.NodeBytes, t.LeafBytes, t.Versions,
		m.CommitSeconds, m.Transactions, m.Witness.Rounds, m.Witness.Missing, m.Witness.Bytes, m.Witness.Wait, m.Witness.LeftOut, m.Witness.Unchecked)
	return m
}

// NopMetrics returns metrics that are not registered.
func NopMetrics() *Metrics {
	const namespace, subsystem = "starling", "app"
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
	}
	m := &Metrics{
		Height:       gauge("height", "Height of the last committed block."),
		OldestHeight: gauge("oldest_height", "Height of the oldest state that can be queried."),
		Keys:         gauge("keys", "Keys in the tree, including system keys."),
		Bytes:        gauge("bytes", "Bytes of all leaf records in the tree."),
		Chunks:       gauge("chunks", "Chunks in the tree."),
		Memory: MemoryMetrics{
			InnerNodes: gauge("tree_inner_nodes", "Inner nodes in memory, including those of older versions."),
			Leaves:     gauge("tree_leaves", "Leaves in memory, including those of older versions."),
			Held:       gauge("tree_held_nodes", "Inner nodes and leaves that are only in older versions, kept for queries, pruning_keep_recent and snapshots."),
			HeldBytes:  gauge("tree_held_bytes", "Memory in bytes of the nodes and leaves that are only in older versions."),
			NodeBytes:  gauge("tree_node_bytes", "Memory in bytes for inner nodes, in use or not."),
			LeafBytes:  gauge("tree_leaf_bytes", "Memory in bytes for leaves, in use or not."),
			Versions:   gauge("tree_versions", "Versions of the tree in use after the last block."),
		},
		CommitSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: "commit_seconds",
			Help: "Time to hand a block's state to the store, including waits for a slow disk.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		Transactions: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "transactions_total",
			Help: "Transactions executed in blocks, by result code (0: success)."}, []string{"code"}),
		Witness: WitnessMetrics{
			Rounds: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "witness_rounds_total",
				Help: "Requests by a partial-state validator for missing nodes of the state, by the call that needed them."}, []string{"call"}),
			Missing: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "witness_missing_total",
				Help: "Subtrees of the state that were missing when they were needed, by the call that needed them."}, []string{"call"}),
			Bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "witness_bytes_total",
				Help: "Bytes of witnesses that a partial-state validator received, by the call that needed them."}, []string{"call"}),
			Wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: "witness_wait_seconds",
				Help:    "Time that one process_proposal or finalize_block waited for witnesses; 0 if it had all nodes. The bucket 0 counts calls without a wait. prepare_proposal never waits.",
				Buckets: append([]float64{0}, prometheus.ExponentialBuckets(0.001, 2, 14)...)}, []string{"call"}),
			LeftOut: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "witness_left_out_total",
				Help: "Transactions that prepare_proposal left out because nodes of the state were missing."}),
			Unchecked: gauge("witness_unchecked", "Transactions in the mempool whose rights could not be checked yet because nodes of the state are missing."),
		},
	}
	// Counters of calls that have not happened yet start at 0.
	for _, call := range []string{forBlock, forProposal, forLater, forQuery, forStart} {
		m.Witness.Rounds.WithLabelValues(call)
		m.Witness.Missing.WithLabelValues(call)
		m.Witness.Bytes.WithLabelValues(call)
	}
	for _, call := range []string{forBlock, forProposal} {
		m.Witness.Wait.WithLabelValues(call)
	}
	return m
}

func (m *Metrics) committed(height int64, v *avlstar.Version) {
	m.Height.Set(float64(height))
	if n, ok := v.Count(); ok {
		m.Keys.Set(float64(n))
	}
	m.Bytes.Set(float64(v.Root().Bytes))
	m.Chunks.Set(float64(v.NumChunks()))
	tree := v.Memory()
	m.Memory.InnerNodes.Set(float64(tree.InnerNodes))
	m.Memory.Leaves.Set(float64(tree.Leaves))
	m.Memory.Held.Set(float64(tree.Held))
	m.Memory.HeldBytes.Set(float64(tree.HeldBytes))
	m.Memory.NodeBytes.Set(float64(tree.NodeBytes))
	m.Memory.LeafBytes.Set(float64(tree.LeafBytes))
	m.Memory.Versions.Set(float64(tree.Versions))
}

func (m *Metrics) executed(results []*abci.ExecTxResult) {
	for _, r := range results {
		m.Transactions.WithLabelValues(strconv.FormatUint(uint64(r.Code), 10)).Inc()
	}
}
