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

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/relay"
	"github.com/starling-kv/starling/statesync/catchup"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/serve"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// transportWorkers is the number of requests, in addition to those of transportLanes, that are
// served concurrently: few, to leave processors for blocks.
const transportWorkers = 4

// transportLanes separates methods: responses from memory never wait, and neither chunks nor
// evidence reports wait for light blocks, each of which can take a processor for 0.3 s.
func transportLanes() []tcp.Lane {
	return []tcp.Lane{
		{Methods: []transport.Method{protocol.MethodStatus, protocol.MethodCommitment, protocol.MethodPeers, protocol.MethodGenesis}, Workers: 1},
		{
			Methods: []transport.Method{lightblocks.MethodLightBlock, lightblocks.MethodConsensusParams, lightblocks.MethodHeaders},
			Workers: min(3, max(1, runtime.GOMAXPROCS(0)/4)), // lightblocks.Server is busy above 3
		},
		{Methods: []transport.Method{lightblocks.MethodEvidence}, Workers: 1},
		// If a part must wait, it goes over p2p instead.
		{Methods: []transport.Method{relay.Method}, Workers: 4},
		// A sharded validator without a witness holds up its round: chunks must not delay it.
		{Methods: []transport.Method{dsm.MethodWitness}, Workers: 2},
		// A request of nine bytes can cost as much as many witnesses.
		{Methods: []transport.Method{dsm.MethodUpper}, Workers: 1},
	}
}

// serving is this node's server side of the transport, which joining nodes query. All fields are
// set before CometBFT is made; without an address, blocks, light and reactor are nil.
type serving struct {
	address string              // listening address; "": no serving
	wrong   error               // why there is no address
	making  chan struct{}       // slots of long-running responses: one processor is left for blocks
	blocks  *catchup.Server     // serves the blocks that light has
	light   *lightblocks.Server // serves CometBFT's headers, once its stores are set: see setStores
	reactor *comet.AddressReactor
}

// newServing prepares the parts that CometBFT needs. Nothing is served before Node.serve.
func newServing(conf *config.Config, genesis *cmttypes.GenesisDoc, logger log.Logger) serving {
	address, err := config.TransportAddress(conf)
	if err != nil || address == "" {
		return serving{wrong: err}
	}
	making := witness.Places(nil)
	return serving{
		address: address, making: making,
		//nolint:gosec // its draws are public
		reactor: comet.NewAddressReactor(rand.NewPCG(rand.Uint64(), rand.Uint64()), config.PrivatePeers(conf)),
		blocks:  catchup.NewServer(logger.With("module", "transport")),
		light:   lightblocks.NewServer(lightblocks.ServerOptions{ChainID: genesis.ChainID, Logger: logger.With("module", "transport"), Making: making}),
	}
}

// setStores serves headers from CometBFT's stores; nil, nil, nil: from none, before its databases
// are closed. It returns once the former stores are no longer read.
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
	genesis, err := os.ReadFile(n.config.CometBFT.GenesisFile())
	if err != nil {
		return err
	}
	mux := new(transport.Mux)
	serve.New(serve.Options{
		Snapshots: n.application.snapshots, Blocks: n.blockRange, Peers: n.known, Genesis: genesis, Making: n.serving.making,
	}).Register(mux)
	n.serving.light.Register(mux)
	n.serving.blocks.Register(mux)
	if s := n.sharded.Load(); s != nil {
		s.maps.Register(mux)
	}
	n.relay.Register(mux)
	witness.New(witness.Options{Versions: n.application, Making: n.serving.making}).Register(mux)
	var handler transport.Handler = mux
	if wrap != nil {
		handler = wrap(mux)
	}
	if err := n.listen(handler); err != nil {
		return err
	}
	n.log.With("module", "transport").Info("Serving joining nodes", "address", n.server.Load().Addr())
	return nil
}

// listen begins to serve at the transport's address.
func (n *Node) listen(handler transport.Handler) error {
	key, err := config.TransportKey(n.nodeKey)
	if err != nil {
		return err
	}
	if n.transportMetrics == nil && n.config.CometBFT.Instrumentation.Prometheus {
		n.transportMetrics = newTransportMetrics(n.registry())
	}
	o, named := n.config.App.Transport, config.NamedPeers(n.config)
	options := tcp.Options{
		Named: func(id transport.ID) bool { return slices.Contains(named, id) },
		Key:   key, ChainID: n.genesis.ChainID, Handler: handler,
		OpenMethods: []transport.Method{protocol.MethodStatus, protocol.MethodGenesis}, MaxConns: o.MaxPeers, Rate: o.SendRate, RatePerPeer: o.SendRatePerPeer,
		Workers: transportWorkers, MaxConnsPerHost: o.MaxPeersPerHost, Hooks: n.transportMetrics.hooks(),
		Lanes: transportLanes(), Sides: n.paths.Sides(),
	}
	server, err := tcp.Listen(n.serving.address, options)
	if err != nil {
		return config.AddressError("transport.laddr", n.serving.address, err)
	}
	n.serving.reactor.SetOwn(server.Addr())
	n.server.Store(server)
	return nil
}

// known returns the nodes that are advertised to joining nodes. For a sharded state they include
// the storage nodes, which have the chunks that full-state nodes need. The list is unverified.
func (n *Node) known() []transport.Address {
	peers := n.serving.reactor.Known()
	storage := slices.DeleteFunc(n.application.backing.holders(), func(a transport.Address) bool {
		return slices.Contains(config.PrivatePeers(n.config), string(a.ID))
	})
	rand.Shuffle(len(storage), func(i, j int) { storage[i], storage[j] = storage[j], storage[i] })
	return shareAnswer(storage, peers)
}

// shareAnswer merges two lists into one, of which a response contains the first protocol.MaxPeers.
// Each list gets half of these, and the slots that the other one does not need.
func shareAnswer(a, b []transport.Address) []transport.Address {
	first := min(len(a), protocol.MaxPeers/2)
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

// stopServing stops serving, before the stores that it reads are closed.
func (n *Node) stopServing() error {
	server := n.server.Swap(nil)
	if server == nil {
		return nil
	}
	err := server.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	n.serving.setStores(nil, nil, nil)
	return err
}
