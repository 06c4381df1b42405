package node

import (
	"runtime"

	cometnode "github.com/cometbft/cometbft/node"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/node/budget"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/view"
	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/transport/tcp"
)

// shardedBudgets returns the budgets of a validator whose state storage nodes keep, on a machine
// with this number of processors.
func shardedBudgets(c *config.Config, processors int) budget.Table {
	s, disk := c.App.State, c.App.Disk
	return budget.Table{
		{Name: "blocks", Bytes: disk.SharedCache() + blocks.MemTables},
		{Name: "tree", Bytes: disk.CacheBytes + int64(upperTreeBytes(s.RetainDepth))},
		{Name: "heights", Bytes: s.KeepRecentBytes},
		{Name: "updates", Bytes: s.KeepUpdatesBytes + s.MaxLagBytes},
		// A witness is there twice while it is added to the tree.
		{Name: "block_witness", Bytes: 2 * app.DefaultWitnessBytes},
		{Name: "queries", Bytes: app.QueryTreesBytes},
		{Name: "witnesses", Bytes: witness.Budget(processors)},
		{Name: "answers", Bytes: tcp.MaxUnsent + tcp.MaxBodies},
		// The mempool is empty during a join.
		{Name: "mempool", Bytes: max(c.CometBFT.Mempool.MaxTxsBytes, c.App.Join.MemoryBytes)},
		// Those that may have witnesses, and those of the join.
		{Name: "peers", Bytes: 2 * peers.MaxBytes},
		{Name: "program", Bytes: budget.Program},
	}
}

// budgets returns the budgets of the node for metrics. A full state has no limit in memory, so only
// what strangers can make grow has one there.
func (n *Node) budgets() budget.Table {
	making := func() int64 { return int64(len(n.serving.making)) * witness.AnswerBytes }
	answers := func() int64 { return n.server.Load().Used() }
	if n.config.App.State.Sharded() {
		t := shardedBudgets(n.config, runtime.GOMAXPROCS(0))
		tree := n.treeMemory()
		for name, used := range map[string]func() int64{
			"blocks":  n.blocksMemory,
			"tree":    func() int64 { return int64(tree.LatestBytes()) },
			"heights": func() int64 { return int64(tree.HeldBytes) },
			"updates": func() int64 { return int64(n.sharded.Load().source.UpdateBytes()) },
			// The largest one lately: a figure of this moment would nearly always be 0.
			"block_witness": func() int64 { return 2 * int64(n.application.BlockWitnessBytes()) },
			"queries":       n.application.QueryTreesBytes,
			"witnesses":     making,
			"answers":       answers,
			"mempool":       func() int64 { return n.mempoolBytes() + n.joinMemory() },
			"peers":         func() int64 { return n.others.Bytes() + n.dialled.Load().Bytes() },
		} {
			t.Measure(name, used)
		}
		return t
	}
	kept, limits := n.application.snapshots.Kept()
	return budget.Table{
		{Name: "snapshots", Bytes: limits.Memory, Used: func() int64 { return kept.Memory }},
		{Name: "snapshots_disk", Bytes: limits.Disk, Used: func() int64 { return kept.Disk }, Disk: true},
		{Name: "manifests", Bytes: limits.Manifests, Used: func() int64 { return kept.Manifests }},
		{Name: "witnesses", Bytes: witness.Budget(runtime.GOMAXPROCS(0)), Used: making},
		{Name: "answers", Bytes: tcp.MaxUnsent + tcp.MaxBodies, Used: answers},
		{Name: "join", Bytes: n.config.App.Join.MemoryBytes, Used: n.joinMemory},
		{Name: "peers", Bytes: peers.MaxBytes, Used: func() int64 { return n.dialled.Load().Bytes() }},
	}
}

// blocksMemory returns the memory of the caches and memtables of CometBFT's databases. An engine
// other than Starling's does not report its memory.
func (n *Node) blocksMemory() (bytes int64) {
	for _, z := range n.cache.Stats().Zones {
		bytes += z.Bytes
	}
	if zone := n.databases.BlockZone(); zone != nil {
		m := zone.Metrics()
		bytes += m.BlockCacheBytes + int64(m.MemTableBytes)
	}
	return bytes
}

// treeMemory returns the memory of the tree; zeros if there is no state.
func (n *Node) treeMemory() (m avlstar.MemoryStats) {
	if _, v := n.application.Latest(); v != nil {
		defer v.Release()
		m = v.Memory()
	}
	return m
}

func (n *Node) mempoolBytes() (bytes int64) {
	n.instance.Read(func(comet *cometnode.Node, _ bool) { bytes = comet.Mempool().SizeBytes() })
	return bytes
}

// joinMemory returns the memory of the join over the transport in progress; 0: none.
func (n *Node) joinMemory() (bytes int64) {
	if p, _ := n.joinView.Progress(); p.Phase == view.PhaseFetching {
		bytes = p.Memory
	}
	p, _ := n.blocksView.Progress()
	return bytes + p.Memory
}
