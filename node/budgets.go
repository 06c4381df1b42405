package node

import (
	"runtime"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/node/budget"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/transport/tcp"
)

// shardedBudgets returns the budgets of a validator whose state storage nodes keep, on a machine
// with this number of processors.
func shardedBudgets(c *config.Config, processors int) budget.Table {
	s := c.App.State
	return budget.Table{
		{Name: "blocks", Bytes: c.App.Disk.CacheBytes},
		{Name: "tree", Bytes: c.App.Disk.CacheBytes + int64(upperTreeBytes(s.RetainDepth))},
		{Name: "updates", Bytes: s.KeepUpdatesBytes + s.MaxLagBytes},
		// A witness is there twice while it is added to the tree.
		{Name: "block_witness", Bytes: 2 * app.DefaultWitnessBytes},
		{Name: "witnesses", Bytes: witness.Budget(processors)},
		{Name: "answers", Bytes: tcp.MaxUnsent + tcp.MaxBodies},
		// The mempool is empty during a join.
		{Name: "mempool", Bytes: max(c.CometBFT.Mempool.MaxTxsBytes, c.App.Join.MemoryBytes)},
		{Name: "peers", Bytes: peers.MaxBytes},
		{Name: "program", Bytes: budget.Program},
	}
}

// budgets returns the budgets of the node for metrics. A full state has no limit in memory, so only
// what strangers can make grow has one there.
func (n *Node) budgets() budget.Table {
	making := func() int64 { return int64(len(n.serving.making)) * witness.AnswerBytes }
	if n.config.App.State.Sharded() {
		t := shardedBudgets(n.config, runtime.GOMAXPROCS(0))
		t.Measure("witnesses", making)
		t.Measure("peers", n.others.Bytes)
		return t
	}
	kept, limits := n.application.snapshots.Kept()
	return budget.Table{
		{Name: "snapshots", Bytes: limits.Memory, Used: func() int64 { return kept.Memory }},
		{Name: "snapshots_disk", Bytes: limits.Disk, Used: func() int64 { return kept.Disk }, Disk: true},
		{Name: "manifests", Bytes: limits.Manifests, Used: func() int64 { return kept.Manifests }},
		{Name: "witnesses", Bytes: witness.Budget(runtime.GOMAXPROCS(0)), Used: making},
		{Name: "answers", Bytes: tcp.MaxUnsent + tcp.MaxBodies},
		{Name: "join", Bytes: n.config.App.Join.MemoryBytes},
		{Name: "peers", Bytes: peers.MaxBytes},
	}
}
