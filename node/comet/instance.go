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

// Options configures CometBFT.
type Options struct {
	Config    *cfg.Config
	Logger    log.Logger
	Genesis   *cmttypes.GenesisDoc
	NodeKey   *p2p.NodeKey
	Databases *Databases
	// Application is called by CometBFT, up to its last block.
	Application *Halter
	// Verify gets transactions from a peer before CheckTx does, and returns the valid ones. nil:
	// CheckTx sees each as soon as it comes.
	Verify func(txs [][]byte) (valid [][]byte)
	// Height returns the height of the application's last block, Restored the height of the
	// snapshot restored by this process; 0: none.
	Height, Restored func() int64
	// Validator has its key in the home. It is ignored if there is a Signer.
	Validator cmttypes.PrivValidator
	Signer    *RemoteSigner // nil: the validator's key is in the home
	// WrapValidator is called for each new CometBFT; nil: the validator is used unchanged.
	WrapValidator func(cmttypes.PrivValidator) cmttypes.PrivValidator
	// Reactor advertises this node's transport to peers; nil: not advertised.
	Reactor *AddressReactor
	// WrapConsensus returns the reactor that replaces CometBFT's consensus reactor; nil: it is not
	// replaced.
	WrapConsensus func(*cometnode.Node) (p2p.Reactor, error)
	// Serve is called with the stores of a new CometBFT, and with nil, nil, nil before they are
	// closed. It returns once the former stores are no longer read.
	Serve func(blocks *store.BlockStore, states sm.Store, evidence func(cmttypes.Evidence) error)
	// Failed is called with a failure after which the node must be stopped, ConsensusEnded with the
	// cause when consensus ends, which CometBFT only logs.
	Failed, ConsensusEnded func(error)
	// HeaderMissing is called with a height if evidence in a decided block refers to that height's
	// header and it is missing, so that the node cannot continue. nil: not called.
	HeaderMissing func(height int64)
}

// Instance is the CometBFT of a node. At the end of a state sync it is replaced by another one over
// the same application.
//
//	Make ──► Start ──► (a state sync: its end ──► Stop, Make, Start) ──► Stop
//
// Make, Start and Stop must not be called concurrently; all other methods may be called at any
// time.
type Instance struct {
	o       Options
	metrics cometnode.MetricsProvider // see onceMetrics
	rounds  Rounds

	mu struct {
		sync.Mutex
		syncing bool // comet is state-syncing; another one replaces it afterwards
		// making: a CometBFT is being made, and replays the blocks that the application is missing.
		making bool
		comet  *cometnode.Node // nil: none was made yet
		// stopped: comet was or is being stopped: its databases must not be read.
		stopped bool
		// unfollow ends rounds' subscription to comet; nil: none.
		unfollow func()
	}
}

// New prepares a CometBFT. Nothing is opened before Make. Stop may always be called.
func New(o Options) *Instance {
	i := &Instance{o: o, metrics: onceMetrics(o.Config.Instrumentation)}
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

// Read calls f with the current CometBFT, and whether it is state-syncing. Its databases stay open
// until f returns. f must not call the Instance. Read returns false, without calling f, if there is
// no CometBFT or its databases are closed.
func (i *Instance) Read(f func(comet *cometnode.Node, syncing bool)) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.comet == nil || i.mu.stopped {
		return false
	}
	f(i.mu.comet, i.mu.syncing)
	return true
}

// Pending returns the block that consensus is working on. It does not wait for a lock of consensus.
func (i *Instance) Pending() Pending { return i.rounds.Pending() }

// StateSync makes the next CometBFT join by its own state sync. Another one replaces it afterwards.
func (i *Instance) StateSync() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.syncing = true
}

// Make makes CometBFT over the databases, which must be open. It replays the blocks that the
// application is missing. CometBFT's panics about inconsistent data become errors.
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
	} else { // otherwise CometBFT begins a state sync whenever it has no state
		conf = withoutStateSync(conf)
	}
	i.mu.Unlock()
	opts := []cometnode.Option{batchTransactions(i.o.Verify)}
	if r := i.o.Reactor; r != nil {
		opts = append(opts, cometnode.CustomReactors(map[string]p2p.Reactor{"STARLING_ADDRESSES": r.attach()}))
	}
	var wrong error // of an option that cannot return it
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

// Start starts the CometBFT. If it state-syncs, a goroutine in wg waits for the end of the sync, or
// of ctx, and replaces it. The caller must wait for wg before Stop.
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

// start starts a CometBFT, and follows its consensus from the first step.
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

// leave ends the CometBFT goroutine that calls the application about a block after the last one. It
// returns if the call comes from the replay in Make: then Make returns the error.
func (i *Instance) leave(cause error) {
	i.mu.Lock()
	comet, making := i.mu.comet, i.mu.making
	i.mu.Unlock()
	switch {
	case making || comet == nil:
	case comet.ConsensusReactor().WaitSync():
		runtime.Goexit() // block sync: nothing waits for more than its end
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

// withoutStateSync returns the configuration of a CometBFT that begins with the first block if it
// has no state.
func withoutStateSync(c *cfg.Config) *cfg.Config {
	copied, stateSync := *c, *c.StateSync
	stateSync.Enable = false
	copied.StateSync = &stateSync
	return &copied
}
