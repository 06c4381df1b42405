package node

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	cfg "github.com/cometbft/cometbft/config"
	cometed25519 "github.com/cometbft/cometbft/crypto/ed25519"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	sm "github.com/cometbft/cometbft/state"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/lightblocks"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// portOffset is what lies between the p2p port of a node and that of its transport, unless it is told otherwise.
const portOffset = 10

// transportWorkers is how many requests are answered at a time: few, so that blocks have the processors.
const transportWorkers = 4

// transportAddress is where a node with this configuration serves joining nodes; "": nowhere.
func transportAddress(c *Config) (string, error) {
	if c.App.Transport.ListenAddress != autoAddress {
		_, address, found := strings.Cut(c.App.Transport.ListenAddress, "://")
		if !found {
			address = c.App.Transport.ListenAddress
		}
		return address, nil
	}
	_, address, found := strings.Cut(c.CometBFT.P2P.ListenAddress, "://")
	if !found {
		address = c.CometBFT.P2P.ListenAddress
	}
	if address == "" {
		return "", nil
	}
	shifted, err := shiftPort(address)
	if err != nil {
		return "", fmt.Errorf(`transport.laddr is "auto", and p2p.laddr %q: %w`, c.CometBFT.P2P.ListenAddress, err)
	}
	return shifted, nil
}

// shiftPort turns the address of a node's p2p into that of its transport.
func shiftPort(hostPort string) (string, error) {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return "", err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", fmt.Errorf("port %q: %w", port, err)
	}
	if n == 0 {
		return net.JoinHostPort(host, "0"), nil // any port: then any for the transport, too
	}
	if n+portOffset > 65535 {
		return "", fmt.Errorf("port %d + %d is no port: set transport.laddr", n, portOffset)
	}
	return net.JoinHostPort(host, strconv.FormatUint(n+portOffset, 10)), nil
}

// transportAddresses reads a list of addresses.
func transportAddresses(list string) ([]transport.Address, error) {
	var addresses []transport.Address
	for _, s := range splitList(list) {
		a, err := transport.ParseAddress(s)
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, a)
	}
	return addresses, nil
}

func splitList(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' })
}

// joinAddresses is where a joining node begins: what join.peers names, and the hosts of p2p's peers and seeds, whose transports are taken to
// listen portOffset above.
func joinAddresses(c *Config) ([]transport.Address, error) {
	addresses, err := transportAddresses(c.App.Join.Peers)
	if err != nil {
		return nil, fmt.Errorf("join.peers: %w", err)
	}
	for _, list := range []struct{ setting, peers string }{
		{"p2p.persistent_peers", c.CometBFT.P2P.PersistentPeers}, {"p2p.seeds", c.CometBFT.P2P.Seeds},
	} {
		for _, s := range splitList(list.peers) {
			a, err := transport.ParseAddress(s)
			if err == nil {
				a.HostPort, err = shiftPort(a.HostPort)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", list.setting, err)
			}
			addresses = append(addresses, a)
		}
	}
	return addresses, nil
}

// transportKey is the node key as the transport takes it.
func transportKey(key *p2p.NodeKey) (ed25519.PrivateKey, error) {
	private, ok := key.PrivKey.(cometed25519.PrivKey)
	if !ok {
		return nil, fmt.Errorf("the node key is of type %q, the transport needs ed25519", key.PrivKey.Type())
	}
	return ed25519.PrivateKey(private), nil
}

// serving is this node's side of the transport: what joining nodes ask it.
type serving struct {
	server  *tcp.Server // nil: it serves nobody
	light   *lightblocks.Server
	reactor *addressReactor
}

// serve begins to serve. What CometBFT has is served once it is there: see setStores.
func (n *Node) serve(wrap func(transport.Handler) transport.Handler) error {
	address, err := transportAddress(n.config)
	if err != nil || address == "" {
		return err
	}
	key, err := transportKey(n.nodeKey)
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
	light := lightblocks.NewServer(lightblocks.ServerOptions{ChainID: n.genesis.ChainID, Logger: logger})
	reactor := newAddressReactor()
	mux := new(transport.Mux)
	fastsync.NewServer(fastsync.ServerOptions{
		Snapshots: n.application.snapshots, Blocks: n.blockRange, Peers: reactor.known, Genesis: genesis,
	}).Register(mux)
	light.Register(mux)
	var handler transport.Handler = mux
	if wrap != nil {
		handler = wrap(mux)
	}
	o := n.config.App.Transport
	options := tcp.Options{
		Key: key, ChainID: n.genesis.ChainID, Handler: handler, MaxConns: o.MaxPeers, Rate: o.SendRate, RatePerPeer: o.SendRatePerPeer,
		Workers: transportWorkers, MaxConnsPerHost: o.MaxPeersPerHost, Hooks: n.transportMetrics.hooks(),
	}
	server, err := tcp.Listen(address, options)
	if err != nil {
		return addressError("transport.laddr", address, err)
	}
	reactor.setOwn(server.Addr())
	n.serving = serving{server, light, reactor}
	logger.Info("Serving joining nodes", "address", server.Addr())
	return nil
}

// blockRange is what CometBFT has.
func (n *Node) blockRange() (base, height int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	comet := n.readable()
	if comet == nil {
		return 0, 0
	}
	store := comet.BlockStore()
	return store.Base(), store.Height()
}

// setStores lets headers be served from what CometBFT has; nil: from nothing, before its databases are closed.
func (n *Node) setStores(comet *cometnode.Node) error {
	light := n.serving.light
	switch {
	case light == nil:
		return nil
	case comet == nil:
		light.SetStores(nil, nil, nil)
		return nil
	}
	n.mu.Lock()
	databases := n.mu.databases
	n.mu.Unlock()
	stateDB, err := databases.provide(&cfg.DBContext{ID: "state", Config: n.config.CometBFT})
	if err != nil {
		return err
	}
	light.SetStores(comet.BlockStore(), sm.NewStore(stateDB, sm.StoreOptions{}), comet.EvidencePool().AddEvidence)
	return nil
}

// stopServing ends it, before what it serves from is closed.
func (n *Node) stopServing() error {
	if n.serving.server == nil {
		return nil
	}
	err := n.serving.server.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return errors.Join(err, n.setStores(nil))
}
