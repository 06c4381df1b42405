package storagenode

import (
	"runtime"

	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/node/budget"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/transport/tcp"
)

// budgetsOf returns the budgets of a storage node on a machine with this number of processors.
func budgetsOf(c config.App, processors int) budget.Table {
	return budget.Table{
		{Name: "pages", Bytes: c.Disk.CacheBytes},
		{Name: "heights", Bytes: c.StorageNode.ServeBytes},
		{Name: "snapshots", Bytes: c.StorageNode.ServeBytes},
		{Name: "manifests", Bytes: statesync.MaxManifestBytes},
		// Each range has as much for named senders. It is counted once: only a faulty validator
		// sends several large updates of one height, or of heights far ahead.
		{Name: "updates", Bytes: server.DefaultWaitingBytes},
		{Name: "strangers_updates", Bytes: strangersBytes},
		{Name: "witnesses", Bytes: witness.Budget(processors)},
		{Name: "answers", Bytes: tcp.MaxUnsent + tcp.MaxBodies},
		{Name: "peers", Bytes: peers.MaxBytes},
		{Name: "program", Bytes: budget.Program},
	}
}

// budgets returns the budgets of the node for metrics.
func (n *Process) budgets() budget.Table {
	t := budgetsOf(n.config.App, runtime.GOMAXPROCS(0))
	strangers := n.strangers.Used()
	waiting := int64(0)
	n.mu.Lock()
	for _, p := range n.mu.places {
		if p.replica != nil {
			_, bytes := p.replica.Waiting()
			waiting += int64(bytes)
		}
	}
	n.mu.Unlock()
	kept, _ := n.chunks.manager.Kept()
	for name, used := range map[string]int64{
		"updates": max(0, waiting-strangers), "strangers_updates": strangers, "snapshots": int64(n.chunks.held()), "manifests": kept.Manifests,
		"witnesses": int64(len(n.making)) * witness.AnswerBytes, "peers": n.peers.Load().Bytes(),
	} {
		t.Measure(name, func() int64 { return used })
	}
	return t
}
