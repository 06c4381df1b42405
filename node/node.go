package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/blocksync"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/consensus"
	cmtjson "github.com/cometbft/cometbft/libs/json"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/mempool"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/privval"
	"github.com/cometbft/cometbft/proxy"
	"github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/statesync"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/statuspage"
	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/transport"
)

// stopTimeout bounds a clean stop; CometBFT's parts need well under a second.
const stopTimeout = 30 * time.Second

// ErrStop: the node did not stop in time. Nothing is lost: a start after it is a start after a crash.
var ErrStop = errors.New("the node did not stop in time")

// Option changes how a node is made.
type Option func(*options)

type options struct {
	wrap          func(abci.Application) abci.Application
	wrapTransport func(transport.Handler) transport.Handler
	progress      func(JoinProgress)
	wrapValidator func(cmttypes.PrivValidator) cmttypes.PrivValidator
}

// WithPrivValidator puts a signer of the caller's before the one that config.toml and the home folder name, anew for each CometBFT that the node
// makes. It is for tests and embedders: what protects a validator from signing twice is in the one that is wrapped.
func WithPrivValidator(wrap func(cmttypes.PrivValidator) cmttypes.PrivValidator) Option {
	return func(o *options) { o.wrapValidator = wrap }
}

// WithTransport puts a handler of the caller's between joining nodes and the real one.
func WithTransport(wrap func(transport.Handler) transport.Handler) Option {
	return func(o *options) { o.wrapTransport = wrap }
}

// WithJoinProgress has f called, one call at a time, while the node joins over the transport.
func WithJoinProgress(f func(JoinProgress)) Option {
	return func(o *options) { o.progress = f }
}

// WithApp puts an application of the caller's between CometBFT and the real one.
func WithApp(wrap func(abci.Application) abci.Application) Option {
	return func(o *options) { o.wrap = wrap }
}

// Node is a member of a network: CometBFT and the application in one process.
type Node struct {
	config        *Config
	log           log.Logger
	genesis       *cmttypes.GenesisDoc
	nodeKey       *p2p.NodeKey
	validator     cmttypes.PrivValidator
	signer        *remoteSigner                                       // nil: the validator's key is in the home
	wrapValidator func(cmttypes.PrivValidator) cmttypes.PrivValidator // nil: it is taken as it is
	cache         *sgc.Cache                                          // of the block zone and the state zone
	application   *Application
	gate          *gate // what CometBFT sees
	metrics       cometnode.MetricsProvider

	serving          serving
	transportMetrics *transportMetrics // nil: none
	joinProgress     func(JoinProgress)
	joinView         fastsync.View      // what others see of a join over the transport
	status           *statuspage.Server // nil: none
	have             progress           // of CometBFT, when the home was opened
	way              fastWay            // what Start has to do over the transport, before there is a CometBFT

	mu struct {
		sync.Mutex
		joining   bool                    // comet state-syncs, and another one takes its place afterwards
		making    bool                    // a comet is being made, which executes the blocks that the state does not have
		comet     *cometnode.Node         // replaced once, at the end of a state sync
		stopped   bool                    // comet was: databases are those of the one that takes its place
		databases *databases              // of comet
		abort     context.CancelCauseFunc // ends the join under way; nil: there was none
		failure   error                   // the first one, for Health
	}

	failed chan error // holds the first failure
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// New makes a node that is ready to start: it checks configuration and genesis, rebuilds the tree, and lets CometBFT replay the
// blocks that the state zone does not have. Ending ctx stops that. Whatever was opened is closed when it fails.
func New(ctx context.Context, config *Config, logger log.Logger, opts ...Option) (*Node, error) {
	o := options{wrap: func(a abci.Application) abci.Application { return a }}
	for _, option := range opts {
		option(&o)
	}
	n := &Node{config: config, log: logger, failed: make(chan error, 1)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if err := n.open(ctx, o); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *Node) open(ctx context.Context, o options) (err error) {
	comet := n.config.CometBFT
	if err := checkConfigLimits(comet); err != nil {
		return err
	}
	if n.genesis, err = LoadGenesis(comet.GenesisFile()); err != nil {
		return err
	}
	if n.nodeKey, err = loadNodeKey(comet); err != nil {
		return err
	}
	if n.validator, err = loadValidator(comet); err != nil {
		return err
	}
	if err := checkAddresses(ctx, comet, n.config.App.Status.ListenAddress); err != nil {
		return err
	}
	if comet.PrivValidatorListenAddr != "" {
		if n.signer, err = listenForSigner(ctx, comet, n.genesis.ChainID, n.nodeKey, n.log); err != nil {
			return err
		}
		n.validator = n.signer.validator()
	}
	n.wrapValidator = o.wrapValidator
	disk := newDiskWatch(n.config.App.Storage.MinFreeBytes, dataFolders(comet)...)
	if err := disk.check(); err != nil {
		return err
	}
	n.wg.Go(func() { disk.run(n.ctx, n.fail) })
	n.cache = n.config.App.Storage.newCache()
	have, err := n.openDatabases()
	if err != nil {
		return err
	}
	if halt := n.config.App.HaltHeight; have.state != halt { // else that block may have to be executed again, to become durable: see below
		if err := checkHalt(halt, have.state); err != nil {
			return err
		}
	}
	appOptions := ApplicationOptions{
		DataDir: comet.DBDir(), Config: n.config.App, Logger: n.log, Genesis: n.genesis, Failed: n.fail, Cache: n.cache,
		NoBlocks: have.none(), Hint: otherBackend(comet), BlocksFrom: have.base,
	}
	n.have, n.way, n.joinProgress = have, n.fastWayOf(have), o.progress
	appOptions.KeepRestored = n.way != noJoin
	if comet.Instrumentation.Prometheus {
		appOptions.Metrics = prometheus.DefaultRegisterer
	}
	if n.application, err = NewApplication(appOptions); err != nil {
		return err
	}
	if err := checkHalt(n.config.App.HaltHeight, n.application.Height()); err != nil {
		return err
	}
	if appOptions.Metrics != nil {
		if err := n.registerMetrics(appOptions.Metrics); err != nil {
			return err
		}
	}
	if err := n.serveStatus(ctx); err != nil {
		return err
	}
	if have.unbased { // only now: the state zone has confirmed that no block led to its state
		if err := n.mu.databases.forgetState(n.log.With("module", "databases")); err != nil {
			return err
		}
	}
	n.mu.joining = comet.StateSync.Enable && have.none() && !n.onlyValidator() && n.way == noJoin
	n.gate = &gate{Application: o.wrap(n.application), halt: n.config.App.HaltHeight, canGoOn: n.application.CanGoOn, stop: n.fail, leave: n.leaveComet}
	n.metrics = onceMetrics(cometnode.DefaultMetricsProvider(comet.Instrumentation))
	if err := n.serve(o.wrapTransport); err != nil {
		return err
	}
	if _, _, unfinished := n.application.target.Unfinished(); unfinished && n.way == noJoin && !have.none() {
		return errors.New("this node was fetching the state to catch up when it was stopped, and has given the old one up: start it with --statesync.enable, join.fast = true and join.catch_up_blocks above 0, so that it goes on")
	}
	if n.way != noJoin {
		return nil // CometBFT is made once there is something that it can go on from, see Start
	}
	if err := n.newComet(ctx); err != nil {
		return err
	}
	return sameGenesis(n.genesis, n.Comet().GenesisDoc())
}

// join brings a node over the transport to where CometBFT goes on from, and makes CometBFT.
func (n *Node) join(ctx context.Context) error {
	switch err := n.joinFast(ctx); {
	case err == nil:
	case errors.Is(err, errNoTransport) && n.way == joinNew && len(n.config.CometBFT.StateSync.RPCServers) >= 2 && !n.unfinished():
		n.log.Error("Cannot join over the transport: falling back to CometBFT's own state sync, which takes longer", "err", err)
		n.mu.Lock()
		n.mu.joining = true
		n.mu.Unlock()
	case errors.Is(err, errNoTransport) && n.way == joinNew:
		return fmt.Errorf("cannot join: %w (or name two RPC servers in statesync.rpc_servers, to join by CometBFT's own state sync)", err)
	default:
		return fmt.Errorf("join: %w", err)
	}
	if err := n.newComet(ctx); err != nil {
		return err
	}
	return sameGenesis(n.genesis, n.Comet().GenesisDoc())
}

func (n *Node) openDatabases() (progress, error) {
	d := newDatabases(n.config.CometBFT, blocks.Options{
		Logger: n.log.With("module", "blocks"), Fatal: endProcess, Cache: n.cache, CacheBytes: n.config.App.Storage.databaseCache(),
	})
	n.mu.Lock()
	n.mu.databases = d
	n.mu.Unlock()
	return d.prepare(n.log.With("module", "databases"))
}

// blockZone returns the block zone that is open, nil where there is none.
func (n *Node) blockZone() *blocks.Zone {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.databases == nil {
		return nil
	}
	return n.mu.databases.blockZone()
}

// makeComet opens CometBFT's databases again and makes CometBFT.
func (n *Node) makeComet(ctx context.Context) error {
	if _, err := n.openDatabases(); err != nil {
		return err
	}
	return n.newComet(ctx)
}

// newComet makes CometBFT over the databases that are open. It turns the panics with which CometBFT meets data that does not fit
// together into errors.
func (n *Node) newComet(ctx context.Context) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("CometBFT cannot start from the data in %s: %w", n.config.CometBFT.DBDir(), panicked(cause))
		}
	}()
	if err := checkHalt(n.gate.halt, n.application.Height()); err != nil {
		return err
	}
	n.mu.Lock()
	n.mu.making = true
	provide, config := n.mu.databases.provide, n.config.CometBFT
	var logger log.Logger = consensusLog{n.log, n.fail, n.consensusFailed}
	if n.mu.joining {
		config, logger = withoutRPC(config), joinLog{logger, n.fail}
	}
	n.mu.Unlock()
	var opts []cometnode.Option
	if r := n.serving.reactor; r != nil {
		opts = append(opts, cometnode.CustomReactors(map[string]p2p.Reactor{"STARLING_ADDRESSES": r.attach()}))
	}
	validator := n.validator
	if n.signer != nil {
		config, validator = withoutSigner(config), n.signer.validator()
	}
	if n.wrapValidator != nil {
		validator = n.wrapValidator(validator)
	}
	comet, err := cometnode.NewNodeWithContext(ctx, config, validator, n.nodeKey, clientCreator{n.gate},
		func() (*cmttypes.GenesisDoc, error) { return n.genesis, nil }, provide, n.metrics, logger, opts...)
	n.mu.Lock()
	n.mu.making = false
	if err == nil {
		n.mu.comet, n.mu.stopped = comet, false
	}
	n.mu.Unlock()
	if cause := n.gate.cause(); cause != nil {
		return cause
	}
	if err != nil {
		return fmt.Errorf("CometBFT cannot start: %w", err)
	}
	return n.setStores(comet)
}

// withoutRPC is the configuration of a CometBFT whose RPC somebody else serves (joiningRPC).
func withoutRPC(c *cfg.Config) *cfg.Config {
	copied, rpc := *c, *c.RPC
	rpc.ListenAddress, rpc.GRPCListenAddress = "", ""
	copied.RPC = &rpc
	return &copied
}

// onlyValidator: this node is all of the network's genesis validators, so there is nobody to join (node.go, onlyValidatorIsUs).
func (n *Node) onlyValidator() bool {
	if n.validator == nil || len(n.genesis.Validators) != 1 {
		return false
	}
	key, err := n.validator.GetPubKey()
	return err == nil && key.Equals(n.genesis.Validators[0].PubKey)
}

// onceMetrics makes CometBFT's metrics once: they cannot be registered twice.
func onceMetrics(provider cometnode.MetricsProvider) cometnode.MetricsProvider {
	var (
		once sync.Once
		m1   *consensus.Metrics
		m2   *p2p.Metrics
		m3   *mempool.Metrics
		m4   *state.Metrics
		m5   *proxy.Metrics
		m6   *blocksync.Metrics
		m7   *statesync.Metrics
	)
	return func(chainID string) (*consensus.Metrics, *p2p.Metrics, *mempool.Metrics, *state.Metrics, *proxy.Metrics, *blocksync.Metrics, *statesync.Metrics) {
		once.Do(func() { m1, m2, m3, m4, m5, m6, m7 = provider(chainID) })
		return m1, m2, m3, m4, m5, m6, m7
	}
}

func loadNodeKey(c *cfg.Config) (*p2p.NodeKey, error) {
	key, err := p2p.LoadNodeKey(c.NodeKeyFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the node key %s is missing: put it back, or run `starlingd init` for a new home", c.NodeKeyFile())
	}
	if err != nil {
		return nil, fmt.Errorf("node key %s: %w", c.NodeKeyFile(), err)
	}
	return key, nil
}

// loadValidator reads the validator's key and signing state; nil: a remote signer holds them. CometBFT's own loader ends the process when it cannot.
func loadValidator(c *cfg.Config) (cmttypes.PrivValidator, error) {
	if c.PrivValidatorListenAddr != "" {
		return nil, nil // a remote signer holds it
	}
	var (
		key   privval.FilePVKey
		state privval.FilePVLastSignState
	)
	for _, file := range []struct {
		what, path string
		into       any
	}{
		{"validator key", c.PrivValidatorKeyFile(), &key},
		{"validator's signing state", c.PrivValidatorStateFile(), &state},
	} {
		raw, err := os.ReadFile(file.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("the %s %s is missing: put it back from where it was moved to, or run `starlingd init` for a new home (a validator that signs without its state may sign twice)", file.what, file.path)
		}
		if err == nil {
			err = cmtjson.Unmarshal(raw, file.into)
		}
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", file.what, file.path, err)
		}
	}
	return privval.LoadFilePV(c.PrivValidatorKeyFile(), c.PrivValidatorStateFile()), nil
}

// Start lets the node take part in the network. It waits for the genesis time, if that is still to come, until ctx ends.
func (n *Node) Start(ctx context.Context) error {
	if wait := time.Until(n.genesis.GenesisTime); wait > 0 {
		n.log.Info("Waiting for the genesis time", "genesis_time", n.genesis.GenesisTime)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
	if n.way != noJoin {
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
	height := n.application.Height()
	if err := n.startComet(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	n.log.Info("Starling node started", "chain_id", n.genesis.ChainID, "moniker", n.config.CometBFT.Moniker, "node_id", n.ID(),
		"height", height, "rpc", n.config.CometBFT.RPC.ListenAddress, "p2p", n.config.CometBFT.P2P.ListenAddress,
		"version", BuildVersions().Starling, "home", n.config.Home)
	return nil
}

// ID is the node's name among its peers.
func (n *Node) ID() string { return string(n.nodeKey.ID()) }

// Comet is the CometBFT node inside. At the end of a state sync another one takes its place.
func (n *Node) Comet() *cometnode.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.comet
}

// readable is the CometBFT whose databases are open, nil: there is none. They are closed only after they have left n.mu, so who holds n.mu, as the
// caller does, can read them.
func (n *Node) readable() *cometnode.Node {
	if n.mu.databases == nil || n.mu.stopped {
		return nil
	}
	return n.mu.comet
}

// Application is the real application, without a wrapper.
func (n *Node) Application() *Application { return n.application }

// Failed delivers the failure after which the node must be stopped (a state that could not be saved).
func (n *Node) Failed() <-chan error { return n.failed }

func (n *Node) fail(err error) {
	select {
	case n.failed <- err:
	default: // the first one counts
	}
	n.mu.Lock()
	abort := n.mu.abort
	if n.mu.failure == nil {
		n.mu.failure = err
	}
	n.mu.Unlock()
	if abort != nil {
		abort(err) // a join under way would go on for hours
	}
}

// unfinished says whether a join has left something that it goes on from.
func (n *Node) unfinished() bool {
	_, _, unfinished := n.application.target.Unfinished()
	return unfinished || n.application.Height() > 0
}

// Stop ends the node, in order: nothing is asked of the application once its storage is closed. A node that was not started only
// releases what it holds.
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

// close stops what runs and releases what open opened.
func (n *Node) close() error {
	n.cancel()
	errs := []error{n.stopStatus(), n.stopServing()}
	if n.application != nil {
		errs = append(errs, n.application.StopJoining())
	}
	errs = append(errs, n.stopComet())
	if n.signer != nil {
		errs = append(errs, n.signer.stop())
	}
	if n.application != nil {
		errs = append(errs, n.application.Close())
	}
	return errors.Join(errs...)
}

// stopComet stops CometBFT, with its connections to the application, and closes its databases.
func (n *Node) stopComet() error {
	n.mu.Lock()
	comet, databases := n.mu.comet, n.mu.databases
	n.mu.databases, n.mu.stopped = nil, true
	n.mu.Unlock()
	errs := []error{n.setStores(nil)}
	if comet != nil && comet.IsRunning() {
		errs = append(errs, comet.Stop())
		comet.Wait()
	}
	if comet != nil && comet.ProxyApp().IsRunning() {
		errs = append(errs, comet.ProxyApp().Stop())
	}
	if databases != nil {
		errs = append(errs, databases.closeAll())
	}
	return errors.Join(errs...)
}
