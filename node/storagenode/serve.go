package storagenode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/health"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// lanes separates methods: an update never waits for a witness, regardless of the witness's cost,
// nor for a chunk, which the other workers serve; and a witness waits for at most one upper tree.
func lanes() []tcp.Lane {
	return []tcp.Lane{
		{Methods: []transport.Method{dsm.MethodRanges}, Workers: 1},
		{Methods: []transport.Method{dsm.MethodUpdate}, Workers: 4},
		{Methods: []transport.Method{
			protocol.MethodStatus, protocol.MethodCommitment, protocol.MethodPeers, protocol.MethodGenesis, protocol.MethodParts,
		}, Workers: 1},
		{Methods: []transport.Method{dsm.MethodWitness}, Workers: max(4, 2*runtime.GOMAXPROCS(0))},
		// A request of nine bytes can cost as much as many witnesses, and waits for witness.Rare.
		{Methods: []transport.Method{dsm.MethodUpper, dsm.MethodLoads}, Workers: 1},
	}
}

// switching calls the handler of the current replicas.
type switching struct{ n *Process }

var _ transport.Weigher = switching{}

func (s switching) Serve(ctx context.Context, r transport.Request) ([]byte, error) {
	return s.n.handler.Load().Serve(ctx, r)
}

func (s switching) Weigh(r transport.Request) int64 { return s.n.handler.Load().Weigh(r) }

// stays reports whether connections of a node are not closed to make room: an operator has named
// it, or the newest map gives it a range.
func (n *Process) stays(id transport.ID) bool { return n.isNamed(id) || n.isStorageNode(id) }

// serve listens for validators and other storage nodes.
func (n *Process) serve() error {
	address, err := config.TransportAddress(n.config)
	if err == nil && address == "" {
		err = errors.New(`transport.laddr is "", so no node could reach this storage node: set it to the address in the storage nodes file`)
	}
	if err != nil {
		return config.Invalid(err)
	}
	key, err := config.TransportKey(n.nodeKey)
	if err != nil {
		return err
	}
	handler := transport.Handler(switching{n})
	if n.o.Wrap != nil {
		handler = n.o.Wrap(handler)
	}
	o := n.transportOptions()
	o.Key, o.Handler, o.Hooks, o.Sides = key, handler, n.metrics.hooks(), n.paths.Sides()
	server, err := tcp.Listen(address, o)
	if err != nil {
		return config.AddressError("transport.laddr", address, err)
	}
	n.server.Store(server)
	return nil
}

// transportOptions returns the options of the transport that decide who is served, and how much.
func (n *Process) transportOptions() tcp.Options {
	o := n.config.App.Transport
	return tcp.Options{
		ChainID: n.genesis.ChainID, MaxConns: o.MaxPeers, MaxConnsPerHost: o.MaxPeersPerHost, Rate: o.SendRate, RatePerPeer: o.SendRatePerPeer,
		Lanes: lanes(), Named: n.stays,
	}
}

// listenPages serves the status page at status.laddr, and metrics at
// instrumentation.prometheus_listen_addr, if these are set.
func (n *Process) listenPages(ctx context.Context) error {
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

func (n *Process) listenPage(ctx context.Context, setting, address string, handler http.Handler) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return config.AddressError(setting, address, err)
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 8 << 10,
	}
	n.pages, n.listened = append(n.pages, server), append(n.listened, listener)
	n.wg.Go(func() { _ = server.Serve(listener) }) // Close ends it
	return nil
}

// maxBehind is the number of blocks that a ready range may lag behind the headers: two are normal.
const maxBehind = 16

// named lists the first few of some ranges.
func named(ranges []string) string {
	const most = 3
	if len(ranges) > most {
		ranges = append(ranges[:most:most], fmt.Sprintf("and %d more", len(ranges)-most))
	}
	return strings.Join(ranges, "; ")
}

// Health reports whether the node is live, and whether all its ranges follow the chain.
func (n *Process) Health() health.Report {
	facts := health.Facts{Now: time.Now(), Started: true}
	lowest, _, some := n.position()
	newest := n.headers.newestProved()
	n.mu.Lock()
	facts.Failed = n.mu.failure
	var missing, behind []string
	for _, p := range n.mu.places {
		if p.role != current {
			continue
		}
		if p.replica == nil {
			missing = append(missing, p.String())
		} else if lag := newest.height - 1 - p.replica.Claim().Durable; lag > maxBehind {
			behind = append(behind, fmt.Sprintf("range %s is %d blocks behind", p, lag))
		}
	}
	n.mu.Unlock()
	facts.Height, facts.BlockTime = lowest, newest.time
	switch {
	case len(missing) > 0:
		facts.Joining = fmt.Sprintf("%s without a state (%s)", english.Plural(len(missing), "range", ""), named(missing))
	case newest.height == 0:
		facts.Joining = "no header has been proved yet"
	}
	facts.Degraded = named(behind)
	facts.CatchingUp = !some || newest.height-lowest > maxBehind
	if free, known := disk.LeastFree([]string{n.config.CometBFT.DBDir()}); known {
		facts.Disk = &health.Disk{Free: free, Minimum: uint64(n.config.App.Disk.MinFreeBytes)}
	}
	return health.Of(facts)
}
