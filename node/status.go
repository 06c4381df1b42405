package node

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/store"

	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/health"
	"github.com/starling-kv/starling/node/statuspage"
	"github.com/starling-kv/starling/statesync/catchup"
	"github.com/starling-kv/starling/statesync/view"
	"github.com/starling-kv/starling/storage/sgc"
)

// blockTimes is the number of blocks over which the block interval is averaged.
const blockTimes = 20

// serveStatus serves the status page, if one is configured. The page shows the application, and
// CometBFT once it runs.
func (n *Node) serveStatus(ctx context.Context) (err error) {
	c := n.config.App.Status
	if c.ListenAddress == "" {
		return nil
	}
	if err := n.listenStatus(ctx, statusSource{n}, n.mountStatus); err != nil {
		return err
	}
	n.log.Info("Serving the status page", "address", "http://"+n.status.Addr()+"/")
	return nil
}

func (n *Node) listenStatus(ctx context.Context, source statuspage.Source, mount func(*http.ServeMux)) (err error) {
	c := n.config.App.Status
	n.status, err = statuspage.Listen(ctx, c.ListenAddress, statuspage.Options{
		Logger: n.log.With("module", "status"), Source: source, Public: c.Public, Hosts: c.HostNames(), Mount: mount,
	})
	if err != nil {
		return config.AddressError("status.laddr", c.ListenAddress, err)
	}
	return nil
}

// mountStatus adds the handlers served alongside the page.
func (n *Node) mountStatus(mux *http.ServeMux) { health.Register(mux, n.Health) }

// stopStatus stops the page before the objects that it shows are closed.
func (n *Node) stopStatus() error {
	status := n.status
	n.status = nil
	if status == nil {
		return nil
	}
	return status.Close()
}

// statusSource is the status page's view of a node.
type statusSource struct{ n *Node }

var _ statuspage.Source = statusSource{}

func (s statusSource) Status() statuspage.Status {
	n := s.n
	versions := buildinfo.Read()
	status := statuspage.Status{
		Time: time.Now().UTC(),
		Node: statuspage.Node{
			Moniker: n.config.CometBFT.Moniker, ID: n.ID(), ChainID: n.genesis.ChainID,
			Version: versions.Starling, CometBFT: versions.CometBFT, AppVersion: n.application.appVersion(),
			Started: n.began.UTC(),
		},
		Disk: s.disk(), Caches: s.caches(), Snapshots: n.application.snapshots.Heights(), Join: s.join(), CatchUp: s.catchUp(),
		RDMA: n.paths.Status(n.config.CometBFT.P2P.PrivatePeerIDs),
	}
	status.Chain, status.Phase = s.chain()
	status.Chain.MissingHeaders = n.missing().Headers()
	if height, v := n.application.Latest(); v != nil {
		defer v.Release()
		memory := v.Memory()
		status.Chain.Height, status.Chain.AppHash = height, v.AppHash().String()
		status.Chain.OldestHeight = n.application.Oldest()
		n.instance.Read(func(comet *cometnode.Node, _ bool) {
			status.Chain.Validator = n.signing.status(v, comet.BlockStore())
		})
		status.Tree = statuspage.Tree{
			Keys: int64(v.Len()), Bytes: v.Root().Bytes, Height: int(v.Root().Height), Chunks: v.NumChunks(),
			MemoryBytes: memory.NodeBytes + memory.LeafBytes, HeldNodes: memory.Held, HeldBytes: memory.HeldBytes, Versions: memory.Versions,
		}
	}
	n.application.backing.report(&status)
	return status
}

// chain returns the state of CometBFT, and the phase of the node.
func (s statusSource) chain() (c statuspage.Chain, phase string) {
	there := s.n.instance.Read(func(comet *cometnode.Node, syncing bool) {
		c.Peers, c.CatchingUp = comet.Switch().Peers().Size(), comet.ConsensusReactor().WaitSync()
		c.PeerList = chainPeers(comet.Switch().Peers(), s.n.config.CometBFT.P2P.PrivatePeerIDs)
		c.BlockTime, c.BlockSeconds = blockTime(comet.BlockStore())
		c.LastTxHeight, c.LastTxTime = s.n.lastTx.find(comet.BlockStore())
		c.WaitingTxs = comet.Mempool().Size()
		switch {
		case syncing:
			phase = statuspage.PhaseStateSync
		case !comet.IsRunning():
			phase = statuspage.PhaseStarting
		case c.CatchingUp:
			phase = statuspage.PhaseCatchingUp
		default:
			phase = statuspage.PhaseRunning
		}
	})
	if there {
		return c, phase
	}
	if p, catching := s.n.blocksView.Progress(); catching && p.State == catchup.CatchUp {
		return c, statuspage.PhaseCatchingUp
	}
	if _, joining := s.n.joinView.Progress(); joining {
		return c, statuspage.PhaseJoining
	}
	return c, statuspage.PhaseStarting
}

// chainPeers lists the nodes to which CometBFT is connected, longest connection first. Those of
// p2p.private_peer_ids are omitted, because the page may be public.
func chainPeers(set p2p.IPeerSet, private string) []statuspage.ChainPeer {
	peers := []statuspage.ChainPeer{}
	for _, p := range set.Copy() {
		if strings.Contains(private, string(p.ID())) {
			continue
		}
		peer := statuspage.ChainPeer{ID: string(p.ID()), Outbound: p.IsOutbound(), Seconds: p.Status().Duration.Seconds()}
		if address := p.SocketAddr(); address != nil {
			peer.Address = address.DialString()
		}
		if info, ok := p.NodeInfo().(p2p.DefaultNodeInfo); ok {
			peer.Moniker = info.Moniker
		}
		peers = append(peers, peer)
	}
	slices.SortFunc(peers, func(a, b statuspage.ChainPeer) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.ID, b.ID))
	})
	return peers[:min(len(peers), statuspage.MaxPeers)]
}

// blockTime returns the time of the last block, and the average interval of recent blocks.
func blockTime(blocks *store.BlockStore) (last time.Time, seconds float64) {
	height := blocks.Height()
	meta := blocks.LoadBlockMeta(height)
	if meta == nil {
		return time.Time{}, 0
	}
	last = meta.Header.Time
	// The first block has the genesis time, which may be far in the past.
	from := max(blocks.Base(), height-blockTimes, 2)
	if before := blocks.LoadBlockMeta(from); before != nil && from < height {
		seconds = last.Sub(before.Header.Time).Seconds() / float64(height-from)
	}
	return last, seconds
}

// caches returns the zones' shares of the cache.
func (s statusSource) caches() []statuspage.Cache {
	stats, disk := s.n.cache.Stats(), map[sgc.Zone]uint64{}
	if home := s.n.application.local; home != nil {
		disk[sgc.State] = home.state.Metrics().DiskBytes
	}
	if zone := s.n.databases.BlockZone(); zone != nil {
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
	free, known := disk.LeastFree(config.DataFolders(s.n.config.CometBFT))
	return statuspage.Disk{Known: known, FreeBytes: free, MinFreeBytes: s.n.config.App.Disk.MinFreeBytes}
}

// catchUp returns the progress of blocks fetched over the transport; nil: none were.
func (s statusSource) catchUp() *statuspage.CatchUp {
	p, was := s.n.blocksView.Progress()
	if !was {
		return nil
	}
	return &statuspage.CatchUp{
		State: string(p.State), Height: p.Height, Target: p.Target, Blocks: p.Blocks, Bytes: p.Bytes, Rate: p.Rate, BlockRate: p.BlockRate,
		Connected: p.Peers, Banned: p.Banned, Seconds: p.Elapsed.Seconds(), SecondsLeft: p.Left.Seconds(),
	}
}

// join returns the progress of a join over the transport; nil: there was none.
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
	if p.Phase == view.PhaseFetching {
		j.SecondsLeft = p.Left.Seconds()
	}
	peers := s.n.joinView.Peers()
	var verified uint64
	for _, peer := range peers {
		verified += peer.VerifiedBytes
	}
	for _, peer := range listed(peers) {
		// The peer's share of the join's rate, so that the shares add up.
		rate := float64(p.Rate) * float64(peer.VerifiedBytes) / float64(max(verified, 1))
		j.Peers = append(j.Peers, statuspage.Peer{
			Index: peer.Index, ID: string(peer.ID), Address: peer.Address, State: peer.State.String(), Reason: peer.Reason,
			Rate: uint64(rate), RoundTrip: peer.RoundTrip.Seconds(), InFlight: peer.InFlight,
			Chunks: peer.Verified, Bytes: peer.VerifiedBytes, Wasted: peer.WastedBytes,
		})
	}
	return j
}

// listed returns the peers to show. If there are too many, it returns those that sent the most,
// which come first, and at least half as many banned ones if there are that many.
func listed(peers []view.Peer) []view.Peer {
	if len(peers) <= statuspage.MaxPeers {
		return peers
	}
	var good, banned []view.Peer
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

// cellStates maps the states of a chunk to those of the page.
var cellStates = [...]statuspage.CellState{
	view.CellWaiting: statuspage.CellWaiting, view.CellAsked: statuspage.CellAsked, view.CellChecking: statuspage.CellChecking,
	view.CellStored: statuspage.CellStored, view.CellHere: statuspage.CellHere, view.CellPartly: statuspage.CellPartly,
}

func (s statusSource) Map() statuspage.Map {
	c := s.n.joinView.Cells(statuspage.MaxCells)
	m := statuspage.Map{Version: c.Version, Height: c.Height, Chunks: c.Chunks, PerCell: c.PerCell, Cells: make([]statuspage.Cell, len(c.Cells))}
	for i, cell := range c.Cells {
		m.Cells[i] = statuspage.Cell{State: cellStates[cell.State], Lied: cell.Lied, Peer: cell.Peer}
	}
	return m
}
