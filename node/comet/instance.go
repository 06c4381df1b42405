package comet

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/node/config"
)

// Options say how to make CometBFT.
type Options struct {
	Config    *cfg.Config
	Logger    log.Logger
	Genesis   *cmttypes.GenesisDoc
	NodeKey   *p2p.NodeKey
	Databases *Databases
	// Application is the application that CometBFT calls, up to a last block.
	Application *Halter
	// Height returns the height of the application's last block, Restored that of the snapshot that
	// was restored in this process; 0: none.
	Height, Restored func() int64
	// Validator is the one whose key lies in the home. It is ignored if there is a Signer.
	Validator cmttypes.PrivValidator
	Signer    *RemoteSigner // nil: the validator's key is in the home
	// WrapValidator is called for each CometBFT that is made; nil: the validator is used as it is.
	WrapValidator func(cmttypes.PrivValidator) cmttypes.PrivValidator
	// Reactor tells peers about this node's transport; nil: there is none.
	Reactor *AddressReactor
	// WrapConsensus returns the reactor that takes the place of a CometBFT's consensus reactor;
	// nil: that stays.
	WrapConsensus func(*cometnode.Node) (p2p.Reactor, error)
	// Serve is called with the stores of a CometBFT that was made, and with nil, nil, nil before
	// they are closed. It returns once nobody reads the former stores.
	Serve func(blocks *store.BlockStore, states sm.Store, evidence func(cmttypes.Evidence) error)
	// Failed is called with a failure after which the node must be stopped, ConsensusEnded with the
	// cause when consensus ends, which CometBFT itself only logs.
	Failed, ConsensusEnded func(error)
	// HeaderMissing is called with the height where evidence in a decided block is about a header
	// that is not here, so that the node cannot continue. nil: nobody is told.
	HeaderMissing func(height int64)
}

// Instance is the CometBFT of a node. At the end of a state sync another one takes its place, over
// the same application.
//
//	Make ──► Start ──► (a state sync: its end ──► Stop, Make, Start) ──► Stop
//
// Make, Start and Stop are called by one goroutine at a time; the rest may be called at any time.
type Instance struct {
	o       Options
	metrics cometnode.MetricsProvider // registers once, however many CometBFTs are made
	rounds  Rounds

	mu struct {
		sync.Mutex
		syncing bool // comet state-syncs, and another one replaces it afterwards
		// making: a CometBFT is being made, and executes the blocks that the application does not
		// have.
		making bool
		comet  *cometnode.Node // nil: none was made yet
		// stopped: comet was stopped, or is being stopped: its databases must not be read.
		stopped bool
		// unfollow ends what rounds learns from comet; nil: nothing.
		unfollow func()
	}
}

// New prepares a CometBFT. Nothing is opened before Make. Stop may be called in any case.
func New(o Options) *Instance {
	i := &Instance{o: o, metrics: onceMetrics(cometnode.DefaultMetricsProvider(o.Config.Instrumentation))}
	o.Application.leave = i.leave
	return i
}

// Comet returns the current CometBFT; nil before Make. At the end of a state sync another one
// replaces it.
func (i *Instance) Comet() *cometnode.Node {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mu.comet
}

// Read calls f with the current CometBFT, and whether it state-syncs. Its databases stay open until
// f returns. f must not call the Instance. Read returns false, and does not call f, if there is no
// CometBFT or its databases are closed.
func (i *Instance) Read(f func(comet *cometnode.Node, syncing bool)) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.comet == nil || i.mu.stopped {
		return false
	}
	f(i.mu.comet, i.mu.syncing)
	return true
}

// Pending returns the block that consensus works on. It waits for no lock of consensus.
func (i *Instance) Pending() Pending { return i.rounds.Pending() }

// StateSync makes the next CometBFT join by its own state sync. Another one replaces it afterwards.
func (i *Instance) StateSync() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.syncing = true
}

// Make makes CometBFT over the databases, which must be open. It executes the blocks that the
// application does not have. Panics of CometBFT about inconsistent data become errors.
func (i *Instance) Make(ctx context.Context) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("CometBFT cannot start from the data in %q: %w", i.o.Config.DBDir(), Panicked(cause))
		}
	}()
	if err := CheckHalt(i.o.Application.halt, i.o.Height()); err != nil {
		return err
	}
	conf := i.o.Config
	var logger log.Logger = consensusLog{newPeerLog(i.o.Logger), i.o.Failed, i.o.ConsensusEnded, i.o.HeaderMissing}
	i.mu.Lock()
	i.mu.making = true
	if i.mu.syncing {
		conf, logger = withoutRPC(conf), joinLog{logger, i.o.Failed}
	}
	i.mu.Unlock()
	var opts []cometnode.Option
	if r := i.o.Reactor; r != nil {
		opts = append(opts, cometnode.CustomReactors(map[string]p2p.Reactor{"STARLING_ADDRESSES": r.attach()}))
	}
	var wrong error // of an option, which cannot return it
	if wrap := i.o.WrapConsensus; wrap != nil {
		opts = append(opts, func(n *cometnode.Node) {
			var r p2p.Reactor
			if r, wrong = wrap(n); wrong == nil {
				cometnode.CustomReactors(map[string]p2p.Reactor{"CONSENSUS": r})(n)
			}
		})
	}
	validator := i.o.Validator
	if i.o.Signer != nil {
		conf, validator = withoutSigner(conf), i.o.Signer.Validator()
	}
	if i.o.WrapValidator != nil {
		validator = i.o.WrapValidator(validator)
	}
	comet, err := cometnode.NewNodeWithContext(ctx, conf, validator, i.o.NodeKey, clientCreator{i.o.Application},
		func() (*cmttypes.GenesisDoc, error) { return i.o.Genesis, nil }, i.o.Databases.Provide, i.metrics, logger, opts...)
	i.mu.Lock()
	i.mu.making = false
	if err == nil {
		i.mu.comet, i.mu.stopped = comet, false
	}
	i.mu.Unlock()
	if cause := i.o.Application.cause(); cause != nil {
		return cause
	}
	if err = errors.Join(err, wrong); err != nil {
		return fmt.Errorf("CometBFT cannot start: %w", err)
	}
	states, err := i.o.Databases.States()
	if err != nil {
		return err
	}
	i.o.Serve(comet.BlockStore(), states, comet.EvidencePool().AddEvidence)
	return config.SameGenesis(i.o.Genesis, comet.GenesisDoc())
}

// Start starts the CometBFT that was made. If it state-syncs, a goroutine in wg waits for the end
// of that, or of ctx, and replaces it. The caller waits for wg before it calls Stop.
func (i *Instance) Start(ctx context.Context, wg *sync.WaitGroup) error {
	i.mu.Lock()
	comet, syncing := i.mu.comet, i.mu.syncing
	i.mu.Unlock()
	if err := i.start(comet); err != nil {
		if syncing {
			err = fmt.Errorf("%w: %s", err, joinAdvice)
		}
		return err
	}
	if !syncing {
		return nil
	}
	rpc, err := serveJoining(comet, i.o.Config.RPC, i.o.Logger.With("module", "rpc-server"))
	if err != nil {
		return err
	}
	wg.Go(func() { i.finishStateSync(ctx, comet, rpc) })
	return nil
}

// start starts a CometBFT, and follows its consensus from the first step on.
func (i *Instance) start(comet *cometnode.Node) error {
	unfollow, err := i.rounds.follow(comet.EventBus())
	if err != nil {
		return err
	}
	i.mu.Lock()
	i.mu.unfollow = unfollow
	i.mu.Unlock()
	return comet.Start()
}

// Stop stops CometBFT and its connections to the application, and closes its databases. It may be
// called more than once.
func (i *Instance) Stop() error {
	i.mu.Lock()
	comet, unfollow := i.mu.comet, i.mu.unfollow
	i.mu.stopped, i.mu.unfollow = true, nil
	i.mu.Unlock()
	if unfollow != nil {
		unfollow()
	}
	i.o.Serve(nil, nil, nil)
	return stopAll(comet, i.o.Databases)
}

// leave ends the goroutine of CometBFT that calls the application about a block after the last one.
// It returns if blocks are replayed while CometBFT is being made: the caller of Make then gets the
// error.
func (i *Instance) leave(cause error) {
	i.mu.Lock()
	comet, making := i.mu.comet, i.mu.making
	i.mu.Unlock()
	switch {
	case making || comet == nil:
	case comet.ConsensusReactor().WaitSync():
		runtime.Goexit() // block sync, whose end is all that is waited for
	default:
		panic(shut{cause})
	}
}

// withoutRPC returns the configuration of a CometBFT whose RPC joiningRPC serves.
func withoutRPC(c *cfg.Config) *cfg.Config {
	copied, rpc := *c, *c.RPC
	rpc.ListenAddress, rpc.GRPCListenAddress = "", ""
	copied.RPC = &rpc
	return &copied
}
