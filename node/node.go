package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/fabric"
	"github.com/starling-kv/starling/node/grpcserver"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/node/registry"
	"github.com/starling-kv/starling/node/relay"
	"github.com/starling-kv/starling/node/signer"
	"github.com/starling-kv/starling/node/statuspage"
	"github.com/starling-kv/starling/statesync/catchup"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/snapshot"
	"github.com/starling-kv/starling/statesync/view"
	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// stopTimeout limits a clean stop. CometBFT's parts need well under a second.
const stopTimeout = 30 * time.Second

// ErrStop: the node did not stop in time. No data are lost: the next start recovers as after a
// crash.
var ErrStop = errors.New("the node did not stop in time")

// Option changes how a node is created.
type Option func(*options)

type options struct {
	wrap          func(abci.Application) abci.Application
	wrapTransport func(transport.Handler) transport.Handler
	progress      func(join.Progress)
	blocks        func(catchup.Progress)
	wrapValidator func(cmttypes.PrivValidator) cmttypes.PrivValidator
	joinTimes     join.Times // for tests
	faults        faults     // for tests
}

// faults are failing disks, for tests.
type faults struct {
	state  vfs.FS                // file system of the state zone; nil: the operating system's
	blocks func(*blocks.Options) // changes the block zone's options; may be nil
}

// WithPrivValidator wraps the configured signer, each time that the node makes a CometBFT. It is
// for tests and embedders: the wrapped signer has the protection against signing twice.
func WithPrivValidator(wrap func(cmttypes.PrivValidator) cmttypes.PrivValidator) Option {
	return func(o *options) { o.wrapValidator = wrap }
}

// WithTransport wraps the handler of transport requests.
func WithTransport(wrap func(transport.Handler) transport.Handler) Option {
	return func(o *options) { o.wrapTransport = wrap }
}

// WithJoinProgress calls f while the node joins over the transport, never concurrently.
func WithJoinProgress(f func(join.Progress)) Option {
	return func(o *options) { o.progress = f }
}

// WithBlocksProgress calls f while the node fetches blocks over the transport, never concurrently.
func WithBlocksProgress(f func(catchup.Progress)) Option {
	return func(o *options) { o.blocks = f }
}

// WithApp wraps the application that CometBFT calls.
func WithApp(wrap func(abci.Application) abci.Application) Option {
	return func(o *options) { o.wrap = wrap }
}

// Node is a member of a network: CometBFT and the application in one process. Unless its comment
// says otherwise, a field is set by New, before other goroutines use it, and does not change
// afterwards.
type Node struct {
	config    *config.Config
	began     time.Time
	signing   *signing
	log       log.Logger
	genesis   *cmttypes.GenesisDoc
	nodeKey   *p2p.NodeKey
	local     *signer.Signer      // nil: a remote signer has the validator's key
	signer    *comet.RemoteSigner // nil: the validator's key is in the home
	cache     *sgc.Cache          // shared by the block zone and the state zone
	paths     *fabric.Paths       // RDMA channels; nil: none
	databases *comet.Databases    // CometBFT's; open except between two CometBFTs
	// instance is CometBFT. It and application are set before the status page, the transport and
	// metrics can use the node; they may be nil after New has failed.
	instance    *comet.Instance
	application *Application

	serving serving
	server  atomic.Pointer[tcp.Server] // of serving; nil: not listening
	relay   *relay.Relay
	others  *peers.Peers                // in sharded mode, nodes that may have witnesses; nil: none
	dialled atomic.Pointer[peers.Peers] // by the last join or search for headers; nil: none
	// sharded is set in sharded mode, once the storage nodes file has been read.
	sharded          atomic.Pointer[sharded]
	transportMetrics *transportMetrics // nil: none
	registered       *registry.Registry
	// joinView is the progress of a join over the transport. It is safe for concurrent use.
	joinView    view.Join
	blocksView  catchup.View // the same for the blocks after it
	joinOptions join.Options // for the join, if way is not None
	// way is the task of Start over the transport before CometBFT is made.
	way    join.Way
	status *statuspage.Server // nil: none
	lastTx lastTx             // for the status page
	grpc   *grpcserver.Server // nil: none

	mu struct {
		sync.Mutex
		abort   context.CancelCauseFunc // ends the current join; nil: none was started
		failure error                   // the first failure, for Health
		gap     comet.Gap               // missing headers that evidence may refer to
	}

	failed  chan error  // holds the first failure
	started atomic.Bool // Start was called
	ctx     context.Context
	cancel  context.CancelFunc // ends ctx
	// life ends all waits for storage nodes: it ends with ctx, and during New also with New's
	// context.
	life    context.Context
	endLife context.CancelFunc
	// wg counts the goroutines that end with ctx; Stop waits for them before it closes anything.
	wg sync.WaitGroup
}

// New creates a node that is ready to start: it checks configuration and genesis, rebuilds the
// tree, and has CometBFT replay the blocks that the state zone is missing. Ending ctx interrupts
// that. On an error, everything that was opened is closed.
func New(ctx context.Context, config *config.Config, logger log.Logger, opts ...Option) (*Node, error) {
	o := options{wrap: func(a abci.Application) abci.Application { return a }}
	for _, option := range opts {
		option(&o)
	}
	n := &Node{config: config, log: logger, failed: make(chan error, 1), began: time.Now(), registered: registry.New(prometheus.DefaultRegisterer)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.life, n.endLife = context.WithCancel(n.ctx) //nolint:gosec // close calls it
	if err := n.open(ctx, o); err != nil {
		select {
		case failed := <-n.failed:
			if errors.Is(failed, ErrAway) { // it ended the wait in open
				err = failed
			}
		default:
		}
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *Node) open(ctx context.Context, o options) error {
	if err := join.Forked(n.config); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, n.endLife)()
	validator, err := n.openKeys(ctx)
	if err != nil {
		return err
	}
	have, err := n.openDatabases(o.faults)
	if err != nil {
		return err
	}
	if n.paths, err = fabric.Open(n.config, n.log, n.registry()); err != nil {
		return err
	}
	onlyValidator := isOnlyValidator(validator, n.genesis)
	n.signing = newSigning(validator)
	n.serving = newServing(n.config, n.genesis, n.log)
	if err := n.openApplication(ctx, have, validator, o); err != nil {
		return n.joinAgain(err)
	}
	if err := n.openRelay(); err != nil {
		return err
	}
	if host := config.SharedHost(n.config.CometBFT.P2P); host != "" {
		n.log.Error("p2p.persistent_peers names several nodes of one host, and only one will be connected: set allow_duplicate_ip = true in [p2p] of config.toml",
			"host", host)
	}
	n.instance = comet.New(comet.Options{
		Config: n.config.CometBFT, Logger: n.log, Genesis: n.genesis, NodeKey: n.nodeKey, Databases: n.databases,
		Application: comet.NewHalter(o.wrap(n.application), n.config.App.HaltHeight, n.application.CanGoOn, n.fail),
		Verify:      n.application.Verify,
		Height:      n.application.Height, Restored: n.application.joined.Load,
		Validator: validator, Signer: n.signer, WrapValidator: o.wrapValidator,
		Reactor: n.serving.reactor, WrapConsensus: n.relay.Wrap, Serve: n.useStores, Failed: n.fail, ConsensusEnded: n.consensusFailed, HeaderMissing: n.headerMissing,
	})
	n.joinOptions = join.Options{
		Config: n.config, Logger: n.log, Genesis: n.genesis, NodeKey: n.nodeKey, OnlyValidator: onlyValidator, Sides: n.paths.Sides(),
		State: joinState{n.application}, Chain: n.databases, Have: have,
		Metrics: n.application.metrics, View: &n.joinView, Progress: o.progress, Times: o.joinTimes,
		BlocksView: &n.blocksView, BlocksProgress: o.blocks, Dialled: n.dialled.Store,
		Executor: func(ctx context.Context) (join.Executor, error) { return n.instance.Executor(ctx) },
	}
	n.joinOptions.Sharded, n.joinOptions.Skip = n.application.backing.joining(n.application), n.isStorageNode
	if n.way, err = join.Decide(n.joinOptions); err != nil {
		return err
	}
	if n.config.CometBFT.Instrumentation.Prometheus {
		if err := n.registerMetrics(n.registry()); err != nil {
			return err
		}
	}
	if err := n.serveStatus(ctx); err != nil {
		return err
	}
	if have.Unbased { // the state zone has confirmed that no block led to its state
		if err := n.databases.ForgetState(); err != nil {
			return err
		}
	}
	if err := n.serveGRPC(ctx); err != nil {
		return err
	}
	if err := n.serve(o.wrapTransport); err != nil {
		return err
	}
	if err := n.serveHeaders(have); err != nil {
		return err
	}
	if n.way != join.None && n.way != join.Blocks {
		return nil // CometBFT is made once it can continue from something, see Start
	}
	// In sharded mode, join.Decide has returned another way.
	if have.None() && n.config.CometBFT.StateSync.Enable && !onlyValidator {
		n.instance.StateSync()
	}
	if n.unfinishedRestore() && !have.None() {
		return config.Invalid(errors.New("this node was stopped while it fetched a newer state, and its old state is gone: to continue, start it with --statesync.enable, join.mode = \"fast\" and catch_up.state_threshold_blocks above 0"))
	}
	if n.way == join.Blocks {
		return nil // as above
	}
	return n.instance.Make(ctx)
}

// openKeys reads and checks limits, genesis, keys and addresses, and waits for a remote signer. It
// returns the validator; nil: none.
func (n *Node) openKeys(ctx context.Context) (validator cmttypes.PrivValidator, err error) {
	bft := n.config.CometBFT
	if err := config.CheckLimits(bft); err != nil {
		return nil, err
	}
	if n.genesis, err = config.LoadGenesis(bft.GenesisFile()); err != nil {
		return nil, err
	}
	if n.nodeKey, err = config.LoadNodeKey(bft); err != nil {
		return nil, err
	}
	if n.local, err = config.LoadValidator(bft); err != nil {
		return nil, err
	}
	if err := config.CheckAddresses(ctx, bft, n.config.App); err != nil {
		return nil, err
	}
	if bft.PrivValidatorListenAddr != "" {
		if n.signer, err = comet.ListenForSigner(ctx, bft, n.genesis.ChainID, n.nodeKey, n.log); err != nil {
			return nil, err
		}
		return n.signer.Validator(), nil
	}
	return n.local, nil
}

// openDatabases opens CometBFT's databases, and checks the free disk space, now and until the node
// stops.
func (n *Node) openDatabases(f faults) (comet.Heights, error) {
	c := n.config.App.Disk
	watch := disk.NewWatch(c.MinFreeBytes, config.DataFolders(n.config.CometBFT)...)
	if err := watch.Check(); err != nil {
		return comet.Heights{}, err
	}
	n.wg.Go(func() { watch.Run(n.ctx, n.fail) })
	n.cache = sgc.New(c.SharedCache())
	zone := blocks.Options{
		Logger: n.log.With("module", "blocks"), Fatal: disk.EndProcess, ReadFailed: n.readFailed, Cache: n.cache, CacheBytes: c.DatabaseCache(),
	}
	if f.blocks != nil {
		f.blocks(&zone)
	}
	n.databases = comet.NewDatabases(n.config.CometBFT, n.log.With("module", "databases"), zone)
	have, err := n.databases.Open()
	if err == nil {
		n.removeUnfinished() // no other process uses this home
	}
	return have, err
}

// removeUnfinished removes the temporary files that killed CometBFTs left. A remaining file is
// harmless.
func (n *Node) removeUnfinished() {
	c := n.config.CometBFT
	removed, err := disk.RemoveUnfinished(filepath.Dir(c.PrivValidatorStateFile()), filepath.Dir(c.PrivValidatorKeyFile()), filepath.Dir(c.P2P.AddrBookFile()))
	if err != nil {
		n.log.Error("Cannot remove temporary files left by a kill", "err", err)
	} else if removed > 0 {
		n.log.Info("Removed temporary files left by a kill", "files", removed)
	}
}

// readFailed ends the process if the block zone cannot be read: in some goroutines CometBFT would
// end it without a reason, in others it would continue. During New, the error is returned instead.
func (n *Node) readFailed(err error) {
	if n.started.Load() {
		disk.EndProcess(err)
	}
}

// openApplication rebuilds the tree. The error is comet.ErrPastHalt if the node has reached
// halt_height.
func (n *Node) openApplication(ctx context.Context, have comet.Heights, validator cmttypes.PrivValidator, options options) (err error) {
	halt := n.config.App.HaltHeight
	if have.State != halt { // otherwise that block may have to be executed again to become durable
		if err := comet.CheckHalt(halt, have.State); err != nil {
			return err
		}
	}
	o := ApplicationOptions{
		DataDir: n.config.CometBFT.DBDir(), Config: n.config.App, Logger: n.log, Genesis: n.genesis, Failed: n.fail, Cache: n.cache,
		NoBlocks: have.None(), Hint: comet.OtherBackend(n.config.CometBFT), BlocksFrom: have.Base,
		KeepRestored: join.Allowed(n.config, isOnlyValidator(validator, n.genesis)), fs: options.faults.state,
		ProposeTimeout: n.config.CometBFT.Consensus.TimeoutPropose, SyncBlocks: n.databases.Sync,
	}
	if n.config.App.State.Sharded() {
		if err := n.prepareSharded(&o, have, validator); err != nil {
			return err
		}
		// The status page that shows what the node is waiting for, and the headers.
		defer func() { err = errors.Join(err, n.stopStatus(), n.stopServing()) }()
	}
	o.Metrics = n.registry()
	if n.application, err = NewApplication(o); err != nil {
		return err
	}
	n.wg.Go(n.watchLost)
	return comet.CheckHalt(halt, n.application.Height())
}

// registry returns the registry for metrics; nil: metrics are off.
func (n *Node) registry() prometheus.Registerer {
	if n.config.CometBFT.Instrumentation.Prometheus {
		return n.registered
	}
	return nil
}

// join brings the node over the transport to a height that CometBFT can continue from, and makes
// CometBFT.
func (n *Node) join(ctx context.Context) error {
	stop, err := n.metricsWhileJoining(ctx)
	if err != nil {
		return err
	}
	err = join.Run(ctx, n.way, n.joinOptions)
	stop() // CometBFT serves metrics from now on
	inVain := errors.Is(err, join.ErrNoTransport) || errors.Is(err, snapshot.ErrNothing)
	switch {
	case err == nil:
	case inVain && n.way == join.New && n.joinOptions.InBand() && !n.unfinished():
		n.log.Error("Cannot join over the transport: falling back to CometBFT's own state sync, which takes longer", "err", err)
		n.instance.StateSync()
	case errors.Is(err, join.ErrNoTransport) && n.way == join.New && n.joinOptions.Sharded == nil:
		return fmt.Errorf("cannot join: %w (a peer's transport is expected at its p2p port + %d: use --join.peers ID@HOST:PORT for another address; or set two statesync.rpc_servers to join by CometBFT's own state sync)", err, config.PortOffset)
	default:
		return fmt.Errorf("join: %w", err)
	}
	return n.instance.Make(ctx)
}

// metricsWhileJoining serves metrics until CometBFT does.
func (n *Node) metricsWhileJoining(ctx context.Context) (stop func(), err error) {
	c := n.config.CometBFT.Instrumentation
	if !c.IsPrometheusEnabled() {
		return func() {}, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.PrometheusListenAddr)
	if err != nil {
		return nil, config.AddressError("instrumentation.prometheus_listen_addr", c.PrometheusListenAddr, err)
	}
	server := &http.Server{Handler: promhttp.Handler(), ReadHeaderTimeout: 10 * time.Second}
	n.wg.Go(func() { _ = server.Serve(listener) }) // Close ends it
	return func() { _ = server.Close() }, nil
}

// isOnlyValidator reports whether a validator is the only genesis validator, so that there is no
// peer to join (CometBFT's node/node.go, onlyValidatorIsUs).
func isOnlyValidator(validator cmttypes.PrivValidator, genesis *cmttypes.GenesisDoc) bool {
	if validator == nil || len(genesis.Validators) != 1 {
		return false
	}
	key, err := validator.GetPubKey()
	return err == nil && key.Equals(genesis.Validators[0].PubKey)
}

// Start starts the node as a member of the network, after a join if one is needed. It waits for the
// genesis time if that is in the future. Ending ctx interrupts both.
func (n *Node) Start(ctx context.Context) error {
	n.started.Store(true)
	if wait := time.Until(n.genesis.GenesisTime); wait > 0 {
		n.log.Info("Waiting for the genesis time", "genesis_time", n.genesis.GenesisTime)
		if err := sleep.For(ctx, wait); err != nil {
			return err
		}
	}
	if n.way != join.None {
		joining, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(n.ctx, func() { cancel(n.ctx.Err()) })()
		n.mu.Lock()
		n.mu.abort = cancel
		n.mu.Unlock()
		if err := n.join(joining); err != nil {
			if cause := context.Cause(joining); cause != nil && ctx.Err() == nil {
				err = cause
			}
			return err
		}
	}
	if err := n.askHeaders(ctx); err != nil {
		return err
	}
	height := n.application.Height()
	if err := n.instance.Start(n.ctx, &n.wg); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	n.log.Info("Starling node started", "chain_id", n.genesis.ChainID, "moniker", n.config.CometBFT.Moniker, "node_id", n.ID(),
		"height", height, "rpc", n.config.CometBFT.RPC.ListenAddress, "p2p", n.config.CometBFT.P2P.ListenAddress,
		"version", buildinfo.Read().Starling, "home", n.config.Home)
	return nil
}

// ID returns the node's p2p ID.
func (n *Node) ID() string { return string(n.nodeKey.ID()) }

// Comet returns the current CometBFT; nil: none yet. At the end of a state sync another one
// replaces it.
func (n *Node) Comet() *cometnode.Node { return n.instance.Comet() }

// Application returns the application without the wrapper of WithApp.
func (n *Node) Application() *Application { return n.application }

// Failed delivers the first failure after which the node must be stopped, such as a state that
// could not be saved.
func (n *Node) Failed() <-chan error { return n.failed }

// fail reports a failure after which the node must be stopped. Later failures are ignored.
func (n *Node) fail(err error) {
	select {
	case n.failed <- err:
	default: // the first failure counts
	}
	n.mu.Lock()
	abort := n.mu.abort
	if n.mu.failure == nil {
		n.mu.failure = err
	}
	n.mu.Unlock()
	if abort != nil {
		abort(err) // a join would otherwise continue for hours
	}
}

// unfinished reports whether there is an interrupted join to resume.
func (n *Node) unfinished() bool {
	return n.unfinishedRestore() || n.application.Height() > 0
}

// unfinishedRestore reports whether a restore removed the old state without completing a new one.
func (n *Node) unfinishedRestore() bool {
	return n.application.backing.unfinished()
}

// Stop stops the node in an order in which nothing calls the application after its storage is
// closed. A node that was not started only releases its resources. After stopTimeout it returns
// ErrStop.
func (n *Node) Stop() error {
	n.cancel()
	done := make(chan error, 1)
	go func() {
		n.wg.Wait()
		done <- n.close()
	}()
	select {
	case err := <-done:
		n.log.Info("Starling node stopped")
		return err
	case <-time.After(stopTimeout):
		return fmt.Errorf("%w (%s)", ErrStop, stopTimeout)
	}
}

// close stops and closes everything that open opened, in reverse order.
func (n *Node) close() error {
	n.cancel()
	n.endLife()
	n.grpc.Close()
	errs := []error{n.stopStatus(), n.stopServing()}
	if n.application != nil {
		errs = append(errs, n.application.StopJoining())
	}
	if n.local != nil { // while the databases are locked: afterwards another process may sign
		errs = append(errs, n.local.Close())
	}
	if n.instance != nil {
		errs = append(errs, n.instance.Stop())
	}
	if n.relay != nil { // after CometBFT, whose p2p sends what the relay does not deliver
		n.relay.Close()
	}
	if n.databases != nil { // open without an instance if New failed
		errs = append(errs, n.databases.Close())
	}
	if n.signer != nil {
		errs = append(errs, n.signer.Stop())
	}
	if n.application != nil {
		errs = append(errs, n.application.Close())
	}
	if n.others != nil {
		n.others.Close()
	}
	errs = append(errs, n.paths.Close())
	n.registered.Close()
	return errors.Join(errs...)
}
