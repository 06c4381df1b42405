package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/storagenode"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/fabric"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/statuspage"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// ErrDamaged is wrapped where bytes on disk are not those that were written.
var ErrDamaged = storagenode.ErrDamaged

// ErrStop: the node did not stop in time. Nothing that it acknowledged is lost.
var ErrStop = errors.New("the storage node did not stop in time")

// stopTimeout limits a clean stop, which waits for a state that is being written.
const stopTimeout = 30 * time.Second

// Options are what a storage node is made with.
type Options struct {
	Config *config.Config
	Logger log.Logger
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
}

// Node is a storage node. Fields outside of mu are set by New and do not change.
type Node struct {
	o       Options
	config  *config.Config
	log     log.Logger
	genesis *cmttypes.GenesisDoc
	nodeKey *p2p.NodeKey
	paths   *fabric.Paths // by RDMA; nil: none
	dialer  transport.Dialer
	nodes   *config.StorageNodes
	places  []*place // the ranges of this node, in the order of keys
	headers headers
	peers   atomic.Pointer[fastsync.Peers] // the nodes that it is connected to; nil at first
	young   int64                          // fromGenesis, but in tests
	taking  sync.WaitGroup
	metrics *metrics
	chunks  *snapshots // nil: not opened yet
	lock    io.Closer  // of data/ranges

	handler  atomic.Pointer[transport.Mux] // of the replicas that are there
	server   *tcp.Server                   // nil: it does not listen yet
	status   *statuspage.Server            // nil: none
	pages    []*http.Server                // metrics
	listened []net.Listener                // of pages

	mu struct {
		sync.Mutex
		node    *storagenode.Node  // of all places with a replica; nil: none has
		stopRun context.CancelFunc // of node
		failure error
	}

	failed chan error // holds the first failure
	ctx    context.Context
	cancel context.CancelFunc // ends ctx
	wg     sync.WaitGroup     // goroutines that end with ctx
}

// New opens the ranges that have a state, and serves them. Errors match config.ErrInvalid if a
// person must correct something, and ErrDamaged if data on disk are damaged. After an error,
// everything that was opened is closed.
func New(ctx context.Context, o Options) (*Node, error) {
	n := &Node{o: o, config: o.Config, log: o.Logger, failed: make(chan error, 1), young: fromGenesis}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *Node) open(ctx context.Context) error {
	if err := n.load(); err != nil {
		return err
	}
	watch := disk.NewWatch(n.config.App.Storage.MinFreeBytes, n.config.CometBFT.DBDir())
	if err := watch.Check(); err != nil {
		return err
	}
	n.wg.Go(func() { watch.Run(n.ctx, n.fail) })
	if err := n.lockRanges(); err != nil {
		return err
	}
	n.headers.init()
	chunks, err := newSnapshots(n)
	if err != nil {
		return err
	}
	n.chunks = chunks
	n.metrics = newMetrics(n)
	if n.o.Metrics != nil {
		if err := n.o.Metrics.Register(n.metrics); err != nil {
			return err
		}
	}
	for _, p := range n.places {
		if err := n.openPlace(p); err != nil {
			return err
		}
	}
	n.handler.Store(new(transport.Mux))
	if err := n.changed(); err != nil {
		return err
	}
	if err := n.listenPages(ctx); err != nil {
		return err
	}
	return n.serve()
}

// load reads genesis, key and ranges.
func (n *Node) load() (err error) {
	bft := n.config.CometBFT
	if n.genesis, err = config.LoadGenesis(bft.GenesisFile()); err != nil {
		return err
	}
	if n.nodeKey, err = config.LoadNodeKey(bft); err != nil {
		return err
	}
	key, err := config.TransportKey(n.nodeKey)
	if err != nil {
		return err
	}
	if n.paths, err = fabric.Open(n.config, n.log, n.o.Metrics); err != nil {
		return err
	}
	n.dialer = tcp.NewDialer(tcp.Options{Key: key, ChainID: n.genesis.ChainID, Sides: n.paths.Sides()})
	file := n.config.App.StorageNode.Ranges
	if n.nodes, err = config.LoadStorageNodes(n.config.Home, file); err != nil {
		return err
	}
	n.places = placesOf(n.nodes.Ranges, dsm.Node(n.ID()), rangesDir(n.config))
	if len(n.places) == 0 {
		return config.Invalid(fmt.Errorf("this node, %s, has no range in %q: name it there, in that of every node", n.ID(), file))
	}
	addresses, err := config.JoinAddresses(n.config)
	if err == nil && len(addresses) == 0 {
		err = config.Invalid(errors.New("no validator is known, from which headers come: name transports of some in join.peers, as ID@HOST:26666"))
	}
	return err
}

// rangesDir is the folder of all ranges.
func rangesDir(c *config.Config) string { return filepath.Join(c.CometBFT.DBDir(), "ranges") }

// lockRanges keeps other processes from the same ranges.
func (n *Node) lockRanges() error {
	dir := rangesDir(n.config)
	if err := makeDirs(vfs.Default, dir); err != nil {
		return err
	}
	path := filepath.Join(dir, "LOCK")
	lock, err := vfs.Default.Lock(path)
	if err != nil {
		return fmt.Errorf("%q cannot be locked: %w: does another storage node run in this home?", path, err)
	}
	n.lock = lock
	return nil
}

// isStorageNode reports whether a node is named in the file of ranges: validators tell of these,
// and they have no headers.
func (n *Node) isStorageNode(id transport.ID) bool {
	_, is := n.nodes.Addresses[dsm.Node(id)]
	return is
}

// ID names the node among others.
func (n *Node) ID() transport.ID { return transport.ID(n.nodeKey.ID()) }

// Address is where the node serves.
func (n *Node) Address() transport.Address {
	return transport.Address{ID: n.ID(), HostPort: n.server.Addr().String()}
}

// Claims is what the node has, as others are told.
func (n *Node) Claims() []dsm.Claim {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.node == nil {
		return nil
	}
	return n.mu.node.Claims()
}

// Start begins to follow the chain, and to fetch what is not here. It returns at once.
func (n *Node) Start() {
	n.log.Info("Storage node started", "chain_id", n.genesis.ChainID, "node_id", n.ID(), "address", n.server.Addr(),
		"ranges", len(n.places), "version", buildinfo.Read().Starling, "home", n.config.Home)
	n.wg.Go(func() { n.chunks.run(n.ctx) })
	n.wg.Go(func() {
		err := n.follow(n.ctx)
		if err != nil && n.ctx.Err() == nil {
			n.fail(err)
		}
	})
}

// Failed delivers the first failure after which the node must be stopped.
func (n *Node) Failed() <-chan error { return n.failed }

func (n *Node) fail(err error) {
	n.mu.Lock()
	if n.mu.failure == nil {
		n.mu.failure = err
	}
	n.mu.Unlock()
	select {
	case n.failed <- err:
	default: // the first one counts
	}
}

// Stop ends the node. After stopTimeout it returns ErrStop.
func (n *Node) Stop() error {
	done := make(chan error, 1)
	go func() { done <- n.close() }()
	select {
	case err := <-done:
		n.log.Info("Storage node stopped")
		return err
	case <-time.After(stopTimeout):
		return fmt.Errorf("%w (%s)", ErrStop, stopTimeout)
	}
}

// close ends what runs, and closes what open opened.
func (n *Node) close() error {
	n.cancel()
	var errs []error
	if n.server != nil {
		if err := n.server.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if n.status != nil {
		errs = append(errs, n.status.Close())
	}
	for _, s := range n.pages {
		errs = append(errs, s.Close())
	}
	n.wg.Wait()
	if n.chunks != nil {
		errs = append(errs, n.chunks.manager.Close())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.places {
		p.leave(nil)
		if p.replica != nil {
			errs = append(errs, p.replica.Close())
		}
	}
	if n.o.Metrics != nil && n.metrics != nil {
		n.o.Metrics.Unregister(n.metrics)
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	errs = append(errs, n.paths.Close())
	return errors.Join(errs...)
}

// changed serves and feeds the replicas that are there now.
func (n *Node) changed() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var replicas []*storagenode.Replica
	for _, p := range n.places {
		if p.replica != nil {
			replicas = append(replicas, p.replica)
		}
	}
	o := storagenode.NodeOptions{Outline: n.chunks.outline, Failed: func(err error) {
		n.log.Error("A state was not stored: the next one is tried at its height, and the log keeps what is needed until then", "err", err)
		if disk.IsFull(err) {
			n.fail(err)
		}
	}}
	if ids := n.config.App.StorageNode.SenderIDs(); len(ids) > 0 {
		allowed := make(map[transport.ID]bool, len(ids))
		for _, id := range ids {
			allowed[id] = true
		}
		o.Allow = func(id transport.ID) bool { return allowed[id] }
	}
	node, err := storagenode.NewNode(o, replicas...)
	if err != nil {
		return err
	}
	mux := new(transport.Mux)
	node.Register(mux)
	n.chunks.server.Register(mux)
	n.handler.Store(mux)
	if n.mu.stopRun != nil {
		n.mu.stopRun()
	}
	ctx, cancel := context.WithCancel(n.ctx)
	n.mu.node, n.mu.stopRun = node, cancel
	n.wg.Go(func() {
		defer cancel()
		if err := node.Run(ctx); err != nil && !errors.Is(err, storagenode.ErrClosed) {
			n.fail(err)
		}
	})
	return nil
}

// proved has the replicas look at what waits.
func (n *Node) proved() {
	n.mu.Lock()
	node := n.mu.node
	n.mu.Unlock()
	node.Proved()
	select {
	case n.chunks.wake <- struct{}{}:
	default: // it is awake
	}
}

// join connects to validators, with a header to begin from.
func (n *Node) join(ctx context.Context) (*join.Network, error) {
	addresses, err := config.JoinAddresses(n.config)
	if err != nil {
		return nil, err
	}
	trust, err := n.trust(ctx, addresses)
	if err != nil {
		return nil, err
	}
	network, err := join.Connect(join.NetworkOptions{
		Config: n.config, Logger: n.log.With("module", "headers"), Genesis: n.genesis, NodeKey: n.nodeKey, Addresses: addresses, Trust: &trust,
		Skip: n.isStorageNode,
	})
	if err != nil {
		return nil, err
	}
	n.peers.Store(network.Peers())
	n.log.Info("Following the chain by its headers", "trusted_height", trust.TrustHeight, "hash", fmt.Sprintf("%X", trust.TrustHash))
	return network, nil
}
