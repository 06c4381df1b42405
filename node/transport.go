package node

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"

	"github.com/cometbft/cometbft/libs/log"
	cometnode "github.com/cometbft/cometbft/node"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/catchup"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/serve"
	"github.com/starling-kv/starling/lightblocks"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/relay"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// transportWorkers is the number of requests, beside transportLanes, that are answered at a time:
// few, so that the processors are free for blocks.
const transportWorkers = 4

// transportLanes keep methods apart: what is answered from memory never waits, and neither chunks
// nor reports of evidence wait for light blocks, of which one can take a processor for 0.3 s.
func transportLanes() []tcp.Lane {
	return []tcp.Lane{
		{Methods: []transport.Method{fastsync.MethodStatus, fastsync.MethodCommitment, fastsync.MethodPeers, fastsync.MethodGenesis}, Workers: 1},
		{
			Methods: []transport.Method{lightblocks.MethodLightBlock, lightblocks.MethodConsensusParams, lightblocks.MethodHeaders},
			Workers: min(3, max(1, runtime.GOMAXPROCS(0)/4)), // lightblocks.Server is busy above 3
		},
		{Methods: []transport.Method{lightblocks.MethodEvidence}, Workers: 1},
		// A part that waits for anything goes by p2p instead.
		{Methods: []transport.Method{relay.Method}, Workers: 4},
		// Validators in sharded mode that lack a witness hold up a round: chunks must not delay it.
		{Methods: []transport.Method{transport.Method(dsm.MethodWitness), transport.Method(dsm.MethodUpper)}, Workers: 2},
	}
}

// serving is this node's side of the transport, where joining nodes send requests. The fields but
// server are set before CometBFT is made; without an address, blocks, light and reactor are nil.
type serving struct {
	address string              // to listen on; "": nobody is served
	wrong   error               // why there is no address
	making  chan struct{}       // places of answers that take long: one processor is left to blocks
	blocks  *catchup.Server     // serves its blocks, as light
	light   *lightblocks.Server // serves CometBFT's headers, once there are stores: see setStores
	reactor *comet.AddressReactor
	server  *tcp.Server // nil: it does not listen yet
}

// newServing prepares what CometBFT is given. Nobody is served before Node.serve.
func newServing(conf *config.Config, genesis *cmttypes.GenesisDoc, logger log.Logger) serving {
	address, err := config.TransportAddress(conf)
	if err != nil || address == "" {
		return serving{wrong: err}
	}
	making := make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))
	return serving{
		address: address, making: making,
		//nolint:gosec // it draws what anybody may see
		reactor: comet.NewAddressReactor(rand.NewPCG(rand.Uint64(), rand.Uint64()), config.PrivatePeers(conf)),
		blocks:  catchup.NewServer(logger.With("module", "transport")),
		light:   lightblocks.NewServer(lightblocks.ServerOptions{ChainID: genesis.ChainID, Logger: logger.With("module", "transport"), Making: making}),
	}
}

// setStores serves headers from CometBFT's stores; nil, nil, nil: from none, before its databases
// are closed. It returns once nobody reads the former stores.
func (s *serving) setStores(blocks *store.BlockStore, states sm.Store, evidence func(cmttypes.Evidence) error) {
	switch {
	case s.light == nil:
	case blocks == nil: // SetStores must not get a nil pointer in an interface
		s.light.SetStores(nil, nil, nil)
		s.blocks.SetBlocks(nil)
	default:
		s.blocks.SetBlocks(blocks)
		s.light.SetStores(blocks, states, evidence)
	}
}

// serve listens, if there is an address, and serves joining nodes.
func (n *Node) serve(wrap func(transport.Handler) transport.Handler) error {
	if n.serving.wrong != nil || n.serving.address == "" {
		return n.serving.wrong
	}
	key, err := config.TransportKey(n.nodeKey)
	if err != nil {
		return err
	}
	genesis, err := os.ReadFile(n.config.CometBFT.GenesisFile())
	if err != nil {
		return err
	}
	if n.transportMetrics == nil && n.config.CometBFT.Instrumentation.Prometheus {
		n.transportMetrics = newTransportMetrics(prometheus.DefaultRegisterer)
	}
	logger := n.log.With("module", "transport")
	mux := new(transport.Mux)
	fastsync.NewServer(fastsync.ServerOptions{
		Snapshots: n.application.snapshots, Blocks: n.blockRange, Peers: n.known, Genesis: genesis, Making: n.serving.making,
	}).Register(mux)
	n.serving.light.Register(mux)
	n.serving.blocks.Register(mux)
	if n.relay != nil {
		n.relay.Register(mux)
	}
	serve.New(serve.Options{Versions: n.application, Making: n.serving.making}).Register(mux)
	var handler transport.Handler = mux
	if wrap != nil {
		handler = wrap(mux)
	}
	o := n.config.App.Transport
	options := tcp.Options{
		Key: key, ChainID: n.genesis.ChainID, Handler: handler,
		OpenMethods: []transport.Method{fastsync.MethodStatus, fastsync.MethodGenesis}, MaxConns: o.MaxPeers, Rate: o.SendRate, RatePerPeer: o.SendRatePerPeer,
		Workers: transportWorkers, MaxConnsPerHost: o.MaxPeersPerHost, Hooks: n.transportMetrics.hooks(),
		Lanes: transportLanes(), Named: config.NamedPeers(n.config), Sides: n.paths.Sides(),
	}
	server, err := tcp.Listen(n.serving.address, options)
	if err != nil {
		return config.AddressError("transport.laddr", n.serving.address, err)
	}
	n.serving.reactor.SetOwn(server.Addr())
	n.serving.server = server
	logger.Info("Serving joining nodes", "address", server.Addr())
	return nil
}

// known returns the nodes that joining nodes are told of. Where storage nodes keep the state, they
// are among them: they have the chunks that a node in local mode needs. It is a hint.
func (n *Node) known() []transport.Address {
	peers := n.serving.reactor.Known()
	if n.application.sharded == nil {
		return peers
	}
	var storage []transport.Address
	for _, node := range n.application.sharded.nodes.Ranges.Nodes() {
		if !slices.Contains(config.PrivatePeers(n.config), string(node)) {
			storage = append(storage, n.application.sharded.nodes.Addresses[node])
		}
	}
	rand.Shuffle(len(storage), func(i, j int) { storage[i], storage[j] = storage[j], storage[i] })
	return shareAnswer(storage, peers)
}

// shareAnswer puts two lists into one, of which an answer takes the first fastsync.MaxPeers: each
// gets half of these, and what the other does not need.
func shareAnswer(a, b []transport.Address) []transport.Address {
	first := min(len(a), fastsync.MaxPeers/2)
	return slices.Concat(a[:first], b, a[first:])
}

// blockRange returns the first and the last height of CometBFT's blocks; 0, 0: there are none to
// read.
func (n *Node) blockRange() (base, height int64) {
	n.instance.Read(func(comet *cometnode.Node, _ bool) {
		base, height = comet.BlockStore().Base(), comet.BlockStore().Height()
	})
	return base, height
}

// stopServing ends the serving, before the stores that it reads are closed.
func (n *Node) stopServing() error {
	if n.serving.server == nil {
		return nil
	}
	err := n.serving.server.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	n.serving.setStores(nil, nil, nil)
	return err
}
