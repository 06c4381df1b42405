package storagenode

import (
	"context"
	"net/http"
	"time"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/health"
	"github.com/starling-kv/starling/node/statuspage"
)

// statusSource is the status page's view of a storage node.
type statusSource struct{ n *Process }

var _ statuspage.Source = statusSource{}

// The states of a range, at its node.
const (
	stateFollows = "follows the chain"
	stateBehind  = "behind"
	stateFetched = "is being fetched"
	stateAnother = "another replica" // a replica at another node, whose state is unknown here
)

// Status implements statuspage.Source.
func (s statusSource) Status() statuspage.Status {
	n := s.n
	versions := buildinfo.Read()
	status := statuspage.Status{
		Time: time.Now().UTC(), Phase: statuspage.PhaseRunning, Caches: []statuspage.Cache{}, Snapshots: []int64{},
		Node: statuspage.Node{
			Moniker: n.config.CometBFT.Moniker, ID: string(n.ID()), ChainID: n.genesis.ChainID, Version: versions.Starling, CometBFT: versions.CometBFT,
		},
		Chain: statuspage.Chain{Height: n.headers.newestProved().height}, Sharded: n.ranges(),
		RDMA: n.paths.Status(n.config.CometBFT.P2P.PrivatePeerIDs),
	}
	if height := n.chunks.newest(); height > 0 {
		status.Snapshots = append(status.Snapshots, height)
	}
	if free, known := disk.LeastFree([]string{n.config.CometBFT.DBDir()}); known {
		status.Disk = statuspage.Disk{Known: true, FreeBytes: free, MinFreeBytes: n.config.App.Disk.MinFreeBytes}
	}
	if status.Sharded.Waiting != "" {
		status.Phase = statuspage.PhaseCatchingUp
	}
	return status
}

// Map implements statuspage.Source.
func (s statusSource) Map() statuspage.Map { return statuspage.Map{PerCell: 1} }

// ranges returns the progress of this node's ranges, compared with the newest state whose app hash
// is in a proved header.
func (n *Process) ranges() *statuspage.Sharded {
	head := max(0, n.headers.newestProved().height-1)
	status := &statuspage.Sharded{Head: head, Durable: head, Ranges: []statuspage.ShardRange{}, Liars: []statuspage.ShardLiar{}}
	if facts := n.Health(); !facts.Ready {
		status.Waiting = facts.Line(false)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.mu.places {
		own := statuspage.ShardNode{ID: string(n.ID()), Address: n.addressOf(dsm.NodeID(n.ID())), Connected: true, State: stateFetched, LagBlocks: head}
		r := statuspage.ShardRange{Range: p.String(), Damaged: p.damaged()}
		if f := p.filling.Load(); f != nil {
			r.Filling = f.status()
		}
		if p.replica != nil {
			claim := p.replica.Claim()
			_, waiting := p.replica.Waiting()
			r.QueuedBytes = uint64(waiting)
			own.Newest, own.Durable, own.LagBlocks = claim.Newest, claim.Durable, max(0, head-claim.Durable)
			own.State = stateFollows
			if own.LagBlocks > maxBehind {
				own.State = stateBehind
			}
		}
		r.Durable = own.Durable
		status.Durable = min(status.Durable, own.Durable)
		r.Nodes = append(r.Nodes, own)
		for _, other := range replicasOf(n.nodes.Load(), p.keys) {
			if other != dsm.NodeID(n.ID()) {
				r.Nodes = append(r.Nodes, statuspage.ShardNode{ID: string(other), Address: n.addressOf(other), State: stateAnother})
			}
		}
		status.Ranges = append(status.Ranges, r)
	}
	status.Lag = head - status.Durable
	return status
}

func (n *Process) addressOf(node dsm.NodeID) string { return n.nodes.Load().Addresses[node].HostPort }

// listenStatus serves the status page with /livez and /readyz.
func (n *Process) listenStatus(ctx context.Context) (err error) {
	c := n.config.App.Status
	n.status, err = statuspage.Listen(ctx, c.ListenAddress, statuspage.Options{
		Logger: n.log.With("module", "status"), Source: statusSource{n}, Public: c.Public, Hosts: c.HostNames(),
		Mount: func(mux *http.ServeMux) { health.Register(mux, n.Health) },
	})
	if err != nil {
		return config.AddressError("status.laddr", c.ListenAddress, err)
	}
	return nil
}
