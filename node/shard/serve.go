package shard

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/health"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// lanes keep methods apart: no update waits for a witness, whatever that takes to make, and neither
// for a chunk, which has the other workers.
func lanes() []tcp.Lane {
	return []tcp.Lane{
		{Methods: []transport.Method{transport.Method(dsm.MethodRanges)}, Workers: 1},
		{Methods: []transport.Method{transport.Method(dsm.MethodUpdate)}, Workers: 4},
		{Methods: []transport.Method{
			fastsync.MethodStatus, fastsync.MethodCommitment, fastsync.MethodPeers, fastsync.MethodGenesis, fastsync.MethodParts,
		}, Workers: 1},
		{Methods: []transport.Method{transport.Method(dsm.MethodWitness), transport.Method(dsm.MethodUpper)}, Workers: max(4, 2*runtime.GOMAXPROCS(0))},
	}
}

// switching calls the handler of the replicas that are there now.
type switching struct{ n *Node }

var _ transport.Weigher = switching{}

func (s switching) Serve(ctx context.Context, r transport.Request) ([]byte, error) {
	return s.n.handler.Load().Serve(ctx, r)
}

func (s switching) Weigh(r transport.Request) int64 { return s.n.handler.Load().Weigh(r) }

// serve listens for validators and other storage nodes.
func (n *Node) serve() error {
	address, err := config.TransportAddress(n.config)
	if err == nil && address == "" {
		err = errors.New(`transport.laddr is "", so that nobody could reach this storage node: give it the address that the file of ranges names`)
	}
	if err != nil {
		return config.Invalid(err)
	}
	key, err := config.TransportKey(n.nodeKey)
	if err != nil {
		return err
	}
	named := append(config.NamedPeers(n.config), n.config.App.StorageNode.SenderIDs()...)
	for node := range n.nodes.Addresses {
		named = append(named, transport.ID(node))
	}
	o := n.config.App.Transport
	n.server, err = tcp.Listen(address, tcp.Options{
		Key: key, ChainID: n.genesis.ChainID, Handler: switching{n}, MaxConns: o.MaxPeers, MaxConnsPerHost: o.MaxPeersPerHost,
		Rate: o.SendRate, RatePerPeer: o.SendRatePerPeer, Lanes: lanes(), Named: named, Hooks: n.metrics.hooks(), Sides: n.paths.Sides(),
	})
	if err != nil {
		return config.AddressError("transport.laddr", address, err)
	}
	return nil
}

// listenPages serves the status page at status.laddr, and metrics at
// instrumentation.prometheus_listen_addr, where these are set.
func (n *Node) listenPages(ctx context.Context) error {
	if n.config.App.Status.ListenAddress != "" {
		if err := n.listenStatus(ctx); err != nil {
			return err
		}
	}
	if c := n.config.CometBFT.Instrumentation; c.IsPrometheusEnabled() {
		return n.listenPage(ctx, "instrumentation.prometheus_listen_addr", c.PrometheusListenAddr, promhttp.Handler())
	}
	return nil
}

func (n *Node) listenPage(ctx context.Context, setting, address string, handler http.Handler) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return config.AddressError(setting, address, err)
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 8 << 10,
	}
	n.pages, n.listened = append(n.pages, server), append(n.listened, listener)
	n.wg.Go(func() { _ = server.Serve(listener) }) // ends with Close
	return nil
}

// maxBehind is how many blocks a range that is ready may be behind the headers: two are normal.
const maxBehind = 16

// Health reports whether the node is alive, and whether all its ranges follow the chain.
func (n *Node) Health() health.Report {
	facts := health.Facts{Now: time.Now(), Started: true}
	lowest, _, some := n.position()
	newest := n.headers.newestProved()
	n.mu.Lock()
	facts.Failed = n.mu.failure
	missing := 0
	for _, p := range n.places {
		if p.replica == nil {
			missing++
		}
	}
	n.mu.Unlock()
	facts.Height, facts.BlockTime = lowest, newest.time
	switch {
	case missing > 0:
		facts.Joining = english.Plural(missing, "range", "") + " without a state"
	case newest.height == 0:
		facts.Joining = "no header is proved yet"
	}
	facts.CatchingUp = !some || newest.height-lowest > maxBehind
	if free, known := disk.LeastFree([]string{n.config.CometBFT.DBDir()}); known {
		facts.Disk = &health.Disk{Free: free, Minimum: uint64(n.config.App.Storage.MinFreeBytes)}
	}
	return health.Of(facts)
}
