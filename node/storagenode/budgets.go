package storagenode

import (
	"os"
	"runtime"
	"runtime/debug"

	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/node/budget"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/transport/tcp"
)

// LimitGarbage makes the garbage collector of this process run at 40 % of garbage, unless the
// environment sets GOGC. Most of a storage node's heap is the cache of pages: at Go's 100 %,
// garbage would take as much memory again. Pages have no pointers, so collections cost little
// (docs/runs/sharded.txt).
func LimitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(40)
	}
}

// budgetsOf returns the budgets of a storage node with this number of ranges, on a machine with
// this number of processors. disk is the limit of what snapshots keep on disk.
func budgetsOf(c config.App, ranges, processors int, disk int64) budget.Table {
	return budget.Table{
		{Name: "pages", Bytes: c.Disk.CacheBytes},
		{Name: "ranges", Bytes: int64(ranges) * rangestore.OpenBytes},
		{Name: "heights", Bytes: c.StorageNode.ServeBytes},
		{Name: "snapshots", Bytes: c.StorageNode.ServeBytes},
		{Name: "snapshots_disk", Bytes: disk, Disk: true},
		{Name: "manifests", Bytes: statesync.MaxManifestBytes},
		{Name: "updates", Bytes: namedBytes},
		{Name: "strangers_updates", Bytes: strangersBytes},
		{Name: "witnesses", Bytes: witness.Budget(processors)},
		{Name: "answers", Bytes: tcp.MaxUnsent + tcp.MaxBodies},
		{Name: "peers", Bytes: peers.MaxBytes},
		{Name: "program", Bytes: budget.Program},
	}
}

// budgets returns the budgets of the node for metrics.
func (n *Process) budgets() budget.Table {
	kept, limits := n.chunks.manager.Kept()
	t := budgetsOf(n.config.App, len(n.all()), runtime.GOMAXPROCS(0), limits.Disk)
	m := n.replicaMemory()
	for name, used := range map[string]int64{
		"pages": n.memory.CacheBytes() + int64(m.Tree), "ranges": int64(m.Database), "heights": int64(m.Heights),
		"updates": n.namedUpdates.Used(), "strangers_updates": n.strangers.Used(), "snapshots": int64(n.chunks.held()), "snapshots_disk": kept.Disk, "manifests": kept.Manifests,
		"witnesses": int64(len(n.making)) * witness.AnswerBytes, "answers": n.server.Load().Used(), "peers": n.peers.Load().Bytes(),
	} {
		t.Measure(name, func() int64 { return used })
	}
	return t
}

// replicaMemory returns the memory of all replicas together.
func (n *Process) replicaMemory() (sum server.Memory) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.mu.places {
		if p.replica != nil {
			m := p.replica.Memory()
			sum.Tree, sum.Heights, sum.Database = sum.Tree+m.Tree, sum.Heights+m.Heights, sum.Database+m.Database
		}
	}
	return sum
}
