package storagenode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/internal/durable/onvfs"
	"github.com/starling-kv/starling/internal/wake"
	"github.com/starling-kv/starling/node/budget"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/fabric"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/node/rangemap"
	"github.com/starling-kv/starling/node/registry"
	"github.com/starling-kv/starling/node/statuspage"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// ErrDamaged is wrapped by errors about data that were damaged on the way to the disk.
var ErrDamaged = server.ErrDamaged

// ErrStop: the node did not stop in time. No acknowledged data are lost.
var ErrStop = errors.New("the storage node did not stop in time")

// namedBytes bounds the waiting updates of nodes that the operator has named, and strangersBytes
// those of all others, for all ranges.
const (
	namedBytes     = 512 << 20
	strangersBytes = 256 << 20
)

// stopTimeout limits a clean stop, which waits for a state being written.
const stopTimeout = 30 * time.Second

// Options configures a storage node.
type Options struct {
	Config *config.Config
	Logger log.Logger
	// Metrics is the registry for metrics; nil: no metrics.
	Metrics prometheus.Registerer
	// SnapshotFile is the path of a snapshot file, from which ranges without a state are filled.
	// "": none.
	SnapshotFile string
	// Wrap changes the handler of transport requests; nil: it stays.
	Wrap func(transport.Handler) transport.Handler
}

// Process is a storage node. Fields outside of mu are set by New and do not change.
type Process struct {
	o       Options
	config  *config.Config
	log     log.Logger
	genesis *cmttypes.GenesisDoc
	nodeKey *p2p.NodeKey
	paths   *fabric.Paths // RDMA channels; nil: none
	dialer  transport.Dialer
	maps    *rangemap.Maps
	nodes   atomic.Pointer[config.StorageNodes] // that the follower has applied
	newMap  atomic.Pointer[config.StorageNodes] // set by SetMap for the follower; nil: none
	mapSet  chan struct{}                       // has room for one; wakes the follower
	// changing is held while ranges are added, or removed with their folders
	changing sync.Mutex
	named    []transport.ID // validators that the settings name; see isNamed
	headers  headers
	peers    atomic.Pointer[peers.Peers] // connected nodes; nil at first
	young    int64                       // fromGenesis, except in tests
	// retireAfter is the constant, except in tests.
	retireAfter time.Duration
	taking      sync.WaitGroup
	metrics     *metrics
	registered  *registry.Registry // nil: no metrics
	memory      *rangestore.Memory // of all ranges
	redo        *server.RedoLog    // of all ranges; nil: not opened yet
	// budgets of waiting updates, of nodes that the operator has named and of others
	namedUpdates, strangers *server.Shares
	making                  chan struct{} // slots of witnesses being made
	chunks                  *snapshots    // nil: not opened yet
	lock                    io.Closer     // of data/ranges
	snapshot                *snapshotFile // nil: none
	filler                  filler

	handler  atomic.Pointer[transport.Mux] // handler of the current replicas
	server   atomic.Pointer[tcp.Server]    // nil: not listening yet
	status   *statuspage.Server            // nil: none
	pages    []*http.Server                // servers of metrics
	listened []net.Listener                // listeners of pages

	mu struct {
		sync.Mutex
		node    *server.Server     // all places with a replica; nil: none
		stopRun context.CancelFunc // stops node
		places  []*place           // the ranges of this node, in key order; replaced as a whole
		failure error
	}

	failed chan error // holds the first failure
	ctx    context.Context
	cancel context.CancelFunc // ends ctx
	wg     sync.WaitGroup     // goroutines that end with ctx
}

// New opens the ranges that have a state, and serves them. Errors match config.ErrInvalid if the
// operator must correct something. After an error, everything that was opened is closed.
func New(ctx context.Context, o Options) (*Process, error) {
	n := &Process{
		o: o, config: o.Config, log: o.Logger, failed: make(chan error, 1), young: fromGenesis, retireAfter: retireAfter,
		namedUpdates: server.NewShares(namedBytes), strangers: server.NewShares(strangersBytes), making: witness.Places(nil),
		mapSet: make(chan struct{}, 1),
	}
	n.filler = byWitnesses{n}
	if o.Metrics != nil {
		n.registered = registry.New(o.Metrics)
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *Process) open(ctx context.Context) error {
	if err := join.Forked(n.config); err != nil {
		return err
	}
	if err := n.load(); err != nil {
		return err
	}
	if err := budgetsOf(n.config.App, len(n.all()), runtime.GOMAXPROCS(0), 0).Check(n.config.App.MinMemoryBytes); err != nil {
		return err
	}
	watch := disk.NewWatch(n.config.App.Disk.MinFreeBytes, n.config.CometBFT.DBDir())
	if err := watch.Check(); err != nil {
		return err
	}
	n.wg.Go(func() { watch.Run(n.ctx, n.fail) })
	if err := n.lockRanges(); err != nil {
		return err
	}
	n.headers.init()
	if path := n.o.SnapshotFile; path != "" {
		var err error
		if n.snapshot, err = openSnapshotFile(path, n.genesis.ChainID, n.log); err != nil {
			return err
		}
	}
	chunks, err := newSnapshots(n)
	if err != nil {
		return err
	}
	n.chunks = chunks
	n.metrics = newMetrics(n)
	n.memory = rangestore.NewMemory(n.config.App.Disk.CacheBytes)
	if err := n.openRedo(); err != nil {
		return err
	}
	if n.registered != nil {
		for _, c := range []prometheus.Collector{n.metrics, budget.NewMetrics(n.budgets)} {
			if err := n.registered.Register(c); err != nil {
				return err
			}
		}
	}
	for _, p := range n.all() {
		if err := n.openPlace(ctx, p); err != nil {
			return err
		}
	}
	if err := n.openOthers(ctx); err != nil {
		return err
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

// load reads the genesis file, the key and the storage nodes file.
func (n *Process) load() (err error) {
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
	n.named = append(config.NamedPeers(n.config), n.config.App.StorageNode.SenderIDs()...)
	file := n.config.App.StorageNode.Ranges
	nodes, err := config.LoadStorageNodes(n.config.Home, file)
	if err != nil {
		return err
	}
	n.nodes.Store(nodes)
	n.maps, err = rangemap.New(rangemap.Options{
		Logger: n.log.With("module", "map"), Home: n.config.Home, File: file, ChainID: n.genesis.ChainID, Self: n.ID(), Dialer: n.dialer,
		Peers: n.conns,
		Use: func(m *config.StorageNodes) error {
			n.SetMap(m)
			return nil
		},
	}, nodes)
	if err != nil {
		return err
	}
	n.mu.places = placesOf(nodes, dsm.NodeID(n.ID()), rangesDir(n.config))
	switch {
	case len(n.mu.places) > 0:
	case nodes.Version > 0:
		n.log.Info("The map of the ranges does not have this node yet: waiting for a newer one", "node_id", n.ID(), "map_version", nodes.Version)
	default:
		return config.Invalid(fmt.Errorf("this node, %s, has no range in %q: add it there, and to the file of every node", n.ID(), file))
	}
	addresses, err := config.JoinAddresses(n.config)
	if err == nil && len(addresses) == 0 {
		err = config.Invalid(errors.New("no validator is configured as a source of headers: add transports of validators to join.peers, as ID@HOST:26666"))
	}
	return err
}

// rangesDir is the folder of all ranges.
func rangesDir(c *config.Config) string { return config.RangesDir(c.CometBFT.DBDir()) }

// lockRanges locks the ranges against other processes.
func (n *Process) lockRanges() error {
	dir := rangesDir(n.config)
	if err := onvfs.MakeDir(vfs.Default, dir); err != nil {
		return err
	}
	path := filepath.Join(dir, config.RangesLock)
	lock, err := vfs.Default.Lock(path)
	if err != nil {
		return fmt.Errorf("%q cannot be locked: %w: is another storage node running in this home?", path, err)
	}
	n.lock = lock
	return nil
}

// conns returns the connected validators and full-state nodes.
func (n *Process) conns() []transport.Conn {
	if p := n.peers.Load(); p != nil {
		return p.Conns()
	}
	return nil
}

// isStorageNode reports whether the storage nodes file lists a node. Validators advertise such
// nodes, but they have no headers.
func (n *Process) isStorageNode(id transport.ID) bool {
	_, is := n.nodes.Load().Addresses[dsm.NodeID(id)]
	return is
}

// isNamed reports whether an operator has named a node as a source of updates or headers: this
// node's operator in its settings, or that of the map.
func (n *Process) isNamed(id transport.ID) bool {
	return slices.Contains(n.named, id) || n.nodes.Load().HasValidator(id)
}

// ID returns the node's ID.
func (n *Process) ID() transport.ID { return transport.ID(n.nodeKey.ID()) }

// Address returns the address at which the node serves.
func (n *Process) Address() transport.Address {
	return transport.Address{ID: n.ID(), HostPort: n.server.Load().Addr().String()}
}

// Claims returns the heights of the node's ranges, as reported to other nodes.
func (n *Process) Claims() []dsm.Claim {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.node == nil {
		return nil
	}
	return n.mu.node.Claims()
}

// Start begins to follow the chain and to fetch missing ranges. It returns at once.
func (n *Process) Start() {
	n.log.Info("Storage node started", "chain_id", n.genesis.ChainID, "node_id", n.ID(), "address", n.server.Load().Addr(),
		"ranges", len(n.all()), "version", buildinfo.Read().Starling, "home", n.config.Home)
	n.wg.Go(func() { n.chunks.run(n.ctx) })
	n.wg.Go(func() { n.maps.Run(n.ctx) })
	n.wg.Go(func() {
		err := n.follow(n.ctx)
		if err != nil && n.ctx.Err() == nil {
			n.fail(err)
		}
	})
}

// Failed delivers the first failure after which the node must be stopped.
func (n *Process) Failed() <-chan error { return n.failed }

func (n *Process) fail(err error) {
	n.mu.Lock()
	if n.mu.failure == nil {
		n.mu.failure = err
	}
	n.mu.Unlock()
	select {
	case n.failed <- err:
	default: // the first failure counts
	}
}

// Stop ends the node. After stopTimeout it returns ErrStop.
func (n *Process) Stop() error {
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

// close stops and closes everything that open opened.
func (n *Process) close() error {
	n.cancel()
	var errs []error
	if server := n.server.Load(); server != nil {
		if err := server.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if n.status != nil {
		errs = append(errs, n.status.Close())
	}
	for _, s := range n.pages {
		errs = append(errs, s.Close())
	}
	n.mu.Lock()
	for _, p := range n.mu.places {
		if p.replica != nil {
			p.replica.StopSettling() // an Advance may wait for it
		}
	}
	n.mu.Unlock()
	n.wg.Wait()
	if n.chunks != nil {
		errs = append(errs, n.chunks.manager.Close())
	}
	for _, p := range n.all() {
		// Without mu, which storeFailed takes.
		errs = append(errs, p.closeFetched(), n.dropReplica(p))
	}
	if n.redo != nil {
		errs = append(errs, n.redo.Close())
	}
	if n.snapshot != nil {
		errs = append(errs, n.snapshot.Close())
	}
	n.registered.Close()
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	errs = append(errs, n.paths.Close())
	return errors.Join(errs...)
}

// changed starts serving and feeding the current replicas.
func (n *Process) changed() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var replicas []*server.Replica
	for _, p := range n.mu.places {
		if p.replica != nil {
			replicas = append(replicas, p.replica)
		}
	}
	o := server.ServerOptions{Making: n.making, Outline: n.chunks.outline, Broken: n.broken}
	if ids := n.config.App.StorageNode.SenderIDs(); len(ids) > 0 {
		allowed := make(map[transport.ID]bool, len(ids))
		for _, id := range ids {
			allowed[id] = true
		}
		o.Allow = func(id transport.ID) bool { return allowed[id] }
	}
	node, err := server.NewServer(o, replicas...)
	if err != nil {
		return err
	}
	mux := new(transport.Mux)
	node.Register(mux)
	n.chunks.server.Register(mux)
	n.maps.Register(mux)
	n.handler.Store(mux)
	if n.mu.stopRun != nil {
		n.mu.stopRun()
	}
	ctx, cancel := context.WithCancel(n.ctx)
	n.mu.node, n.mu.stopRun = node, cancel
	n.wg.Go(func() {
		defer cancel()
		_ = node.Run(ctx) // it calls Broken
	})
	return nil
}

// proved wakes the replicas to process waiting updates.
func (n *Process) proved() {
	n.mu.Lock()
	node := n.mu.node
	n.mu.Unlock()
	node.Proved()
	wake.Up(n.chunks.wake)
}

// join connects to validators, beginning with a trusted header.
func (n *Process) join(ctx context.Context) (*join.Network, error) {
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
