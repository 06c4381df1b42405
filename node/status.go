package node

import (
	"context"
	"net/http"
	"time"

	"github.com/cometbft/cometbft/store"

	"github.com/starling-kv/starling/health"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/statuspage"
	"github.com/starling-kv/starling/storage/sgc"
)

// blockTimes is over how many blocks the time between two is averaged.
const blockTimes = 20

// serveStatus begins to serve the status page, if there is to be one. The application is there, the rest may come and go.
func (n *Node) serveStatus(ctx context.Context) (err error) {
	c := n.config.App.Status
	if c.ListenAddress == "" {
		return nil
	}
	n.status, err = statuspage.Listen(ctx, c.ListenAddress, statuspage.Options{
		Logger: n.log.With("module", "status"), Source: statusSource{n}, Public: c.Public, Hosts: splitList(c.Hosts), Mount: n.mountStatus,
	})
	if err != nil {
		return addressError("status.laddr", c.ListenAddress, err)
	}
	n.log.Info("Serving the status page", "address", "http://"+n.status.Addr()+"/")
	return nil
}

// mountStatus adds what else is served beside the page.
func (n *Node) mountStatus(mux *http.ServeMux) { health.Register(mux, n.Health) }

// stopStatus ends it, before what it shows is closed.
func (n *Node) stopStatus() error {
	if n.status == nil {
		return nil
	}
	return n.status.Close()
}

// statusSource is what the status page shows of a node.
type statusSource struct{ n *Node }

var _ statuspage.Source = statusSource{}

func (s statusSource) Status() statuspage.Status {
	n := s.n
	versions := BuildVersions()
	status := statuspage.Status{
		Time: time.Now().UTC(),
		Node: statuspage.Node{
			Moniker: n.config.CometBFT.Moniker, ID: n.ID(), ChainID: n.genesis.ChainID,
			Version: versions.Starling, CometBFT: versions.CometBFT, AppVersion: n.application.appVersion(),
		},
		Disk: s.disk(), Caches: s.caches(), Snapshots: n.application.snapshots.Heights(), Join: s.join(),
	}
	status.Chain, status.Phase = s.chain()
	if height, v := n.application.Latest(); v != nil {
		defer v.Release()
		memory := v.Memory()
		status.Chain.Height, status.Chain.AppHash = height, v.AppHash().String()
		status.Tree = statuspage.Tree{
			Keys: int64(v.Len()), Bytes: v.Root().Bytes, Height: int(v.Root().Height), Chunks: v.NumChunks(),
			MemoryBytes: memory.NodeBytes + memory.LeafBytes, HeldNodes: memory.Held, Versions: memory.Versions,
		}
	}
	m := n.application.state.Metrics()
	status.Flusher = statuspage.Flusher{SafeHeight: m.SafeHeight, LagBlocks: m.LagBlocks, LagBytes: m.LagBytes, LagSeconds: m.LagSeconds}
	return status
}

// chain is what CometBFT knows, and what the node is at.
func (s statusSource) chain() (c statuspage.Chain, phase string) {
	n := s.n
	n.mu.Lock()
	defer n.mu.Unlock()
	comet := n.readable()
	if comet == nil {
		if _, joining := n.joinView.Progress(); joining {
			return c, statuspage.PhaseJoining
		}
		return c, statuspage.PhaseStarting
	}
	c.Peers, c.CatchingUp = comet.Switch().Peers().Size(), comet.ConsensusReactor().WaitSync()
	c.BlockTime, c.BlockSeconds = blockTime(comet.BlockStore())
	switch {
	case n.mu.joining:
		return c, statuspage.PhaseStateSync
	case !comet.IsRunning():
		return c, statuspage.PhaseStarting
	case c.CatchingUp:
		return c, statuspage.PhaseCatchingUp
	}
	return c, statuspage.PhaseRunning
}

// blockTime returns the time of the last block, and the average between two of the last ones.
func blockTime(blocks *store.BlockStore) (last time.Time, seconds float64) {
	height := blocks.Height()
	meta := blocks.LoadBlockMeta(height)
	if meta == nil {
		return time.Time{}, 0
	}
	last = meta.Header.Time
	// The first block has the genesis time, which may be long ago.
	from := max(blocks.Base(), height-blockTimes, 2)
	if before := blocks.LoadBlockMeta(from); before != nil && from < height {
		seconds = last.Sub(before.Header.Time).Seconds() / float64(height-from)
	}
	return last, seconds
}

// caches are the zones' shares of the cache.
func (s statusSource) caches() []statuspage.Cache {
	stats, disk := s.n.cache.Stats(), map[sgc.Zone]uint64{sgc.State: s.n.application.state.Metrics().DiskBytes}
	if zone := s.n.blockZone(); zone != nil {
		disk[sgc.Blocks] = zone.Metrics().DiskBytes
	}
	var caches []statuspage.Cache
	for _, zone := range []sgc.Zone{sgc.State, sgc.Blocks} {
		z := stats.Zones[zone]
		caches = append(caches, statuspage.Cache{
			Zone: zone.String(), Hits: z.Hits, Misses: z.Misses, GhostHits: z.GhostHits, Entries: z.Entries,
			Bytes: z.Bytes + z.Other, TargetBytes: z.Target, DiskBytes: disk[zone],
		})
	}
	return caches
}

func (s statusSource) disk() statuspage.Disk {
	free, known := leastFree(dataFolders(s.n.config.CometBFT))
	return statuspage.Disk{Known: known, FreeBytes: free, MinFreeBytes: s.n.config.App.Storage.MinFreeBytes}
}

// leastFree returns the free space of the folder that has least; false: no file system says it.
func leastFree(folders []string) (least uint64, known bool) {
	for _, folder := range folders {
		if free, err := freeBytes(folder); err == nil && (!known || free < least) {
			least, known = free, true
		}
	}
	return least, known
}

// join is how far a join over the transport is.
func (s statusSource) join() *statuspage.Join {
	p, joined := s.n.joinView.Progress()
	if !joined {
		return nil
	}
	j := &statuspage.Join{
		Phase: string(p.Phase), Height: p.Height, Chunks: p.Chunks, ChunksDone: p.ChunksDone, Bytes: p.Bytes, BytesDone: p.BytesDone,
		ReusedBytes: p.Reused, WastedBytes: p.Wasted, Rejected: p.Rejected, Refetched: p.Refetched, Connected: p.Peers, Banned: p.Banned,
		Retargets: p.Retargets, Rate: p.Rate, Seconds: p.Elapsed.Seconds(), MapVersion: s.n.joinView.Version(), Peers: []statuspage.Peer{},
	}
	if p.Phase == fastsync.PhaseFetching {
		j.SecondsLeft = p.Left.Seconds()
	}
	for _, peer := range listed(s.n.joinView.Peers()) {
		j.Peers = append(j.Peers, statuspage.Peer{
			Index: peer.Index, ID: string(peer.ID), Address: peer.Address, State: peer.State.String(), Reason: peer.Reason,
			Rate: peer.Rate, RoundTrip: peer.RoundTrip.Seconds(), InFlight: peer.InFlight,
			Chunks: peer.Verified, Bytes: peer.VerifiedBytes, Wasted: peer.WastedBytes,
		})
	}
	return j
}

// listed are the peers that are shown where there are many: those that gave most, which come first, and of the banned ones half as many.
func listed(peers []fastsync.PeerView) []fastsync.PeerView {
	if len(peers) <= statuspage.MaxPeers {
		return peers
	}
	var good, banned []fastsync.PeerView
	for _, p := range peers {
		if p.Reason != "" {
			banned = append(banned, p)
		} else {
			good = append(good, p)
		}
	}
	banned = banned[:min(len(banned), max(statuspage.MaxPeers/2, statuspage.MaxPeers-len(good)))]
	good = good[:min(len(good), statuspage.MaxPeers-len(banned))]
	return append(good, banned...)
}

// cellStates are the states of a chunk as the page calls them.
var cellStates = [...]statuspage.CellState{
	fastsync.CellWaiting: statuspage.CellWaiting, fastsync.CellAsked: statuspage.CellAsked, fastsync.CellChecking: statuspage.CellChecking,
	fastsync.CellStored: statuspage.CellStored, fastsync.CellHere: statuspage.CellHere, fastsync.CellPartly: statuspage.CellPartly,
}

func (s statusSource) Map() statuspage.Map {
	c := s.n.joinView.Cells(statuspage.MaxCells)
	m := statuspage.Map{Version: c.Version, Height: c.Height, Chunks: c.Chunks, PerCell: c.PerCell, Cells: make([]statuspage.Cell, len(c.Cells))}
	for i, cell := range c.Cells {
		m.Cells[i] = statuspage.Cell{State: cellStates[cell.State], Lied: cell.Lied, Peer: cell.Peer}
	}
	return m
}
