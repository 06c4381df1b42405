package serve

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"sync"

	"cosmossdk.io/log"
	abci "github.com/cometbft/cometbft/abci/types"
	dbm "github.com/cosmos/cosmos-db"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	"github.com/spf13/cast"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/serve"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// Options of the application that are read. The first two are the SDK's own; the others belong into
// a section [starling] of app.toml.
const (
	optionInterval = "state-sync.snapshot-interval"    // heights between two states; 0: none
	optionKeep     = "state-sync.snapshot-keep-recent" // states that are served; 0: 2
	optionAddress  = "starling.laddr"                  // HOST:PORT for joiners; empty: in-band only
	optionRate     = "starling.rate"                   // bytes a second sent there; 0: no limit
	optionChain    = "chain-id"                        // the SDK's; needed with an address
)

const defaultKeep = 2

// Creator wraps an application's creator: the application serves its states, and joins by them.
func Creator(newApp servertypes.AppCreator) servertypes.AppCreator {
	return func(logger log.Logger, db dbm.DB, trace io.Writer, options servertypes.AppOptions) servertypes.Application {
		return New(newApp(logger, db, trace, options), logger, db, options)
	}
}

// App is an application that serves its states. What it does not override is the application's own.
type App struct {
	servertypes.Application
	logger   log.Logger
	db       dbm.DB
	options  servertypes.AppOptions
	interval int64
	keep     int
	states   *serve.Server

	joining *joining // what OfferSnapshot has accepted; nil: nothing; ABCI's calls use it

	wg sync.WaitGroup // states that are being cut

	mu      sync.Mutex
	cutting map[*frozen]bool // by wg's goroutines; guarded by mu
	served  []*state         // heights ascend; guarded by mu
	network *tcp.Server      // nil: it is not started, or not wanted; guarded by mu
	started bool             // guarded by mu
	closed  bool             // guarded by mu
}

// New wraps an application, which has the database.
func New(app servertypes.Application, logger log.Logger, db dbm.DB, options servertypes.AppOptions) *App {
	a := &App{Application: app, logger: logger.With("module", "starling"), db: db, options: options, states: serve.New(),
		cutting: map[*frozen]bool{}, interval: cast.ToInt64(options.Get(optionInterval)), keep: cast.ToInt(options.Get(optionKeep))}
	if a.keep < 1 {
		a.keep = defaultKeep
	}
	a.states.Failed = func(err error) { a.logger.Error("a joiner's request failed", "err", err) }
	return a
}

// Commit implements servertypes.ABCI. At a snapshot height it takes the database's snapshot, which
// no pruning changes, before it returns: what it costs the chain is that alone. Failures to serve
// are none of the chain's.
func (a *App) Commit() (*abci.ResponseCommit, error) {
	r, err := a.Application.Commit()
	if err != nil || a.interval < 1 {
		return r, err
	}
	height := a.CommitMultiStore().LastCommitID().Version
	if height%a.interval != 0 {
		return r, nil
	}
	f, err := freeze(a.db)
	if err != nil {
		a.logger.Error("the state is not served", "height", height, "err", err)
		return r, nil //nolint:nilerr // the block is committed
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return r, f.release()
	}
	a.cutting[f] = true
	a.wg.Go(func() {
		err := a.add(f, height)
		a.mu.Lock()
		delete(a.cutting, f)
		a.mu.Unlock()
		if err != nil && !errors.Is(err, errReleased) { // by Close
			a.logger.Error("the state is not served", "height", height, "err", errors.Join(err, f.release()))
		}
	})
	return r, nil
}

// add serves a state, beside the blocks that follow it.
func (a *App) add(f *frozen, height int64) error {
	s, err := a.offer(f, height)
	if err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		a.logger.Info("a state is not offered in-band", "height", height, "reason", err)
	}
	return nil
}

func (a *App) offer(f *frozen, height int64) (*state, error) {
	opened, err := nodedb.Open(f, height)
	if err != nil {
		return nil, err
	}
	s := &state{State: opened, frozen: f, cuts: map[iavlsync.Format]*cut{}}
	if err := a.states.Add(opened); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.served = append(a.served, s)
	for len(a.served) > a.keep {
		old := a.served[0]
		a.served = a.served[1:]
		a.states.Remove(old.Height())
		if err := old.frozen.release(); err != nil {
			a.logger.Error("a snapshot of the database", "height", old.Height(), "err", err)
		}
	}
	if !a.started {
		a.started = true
		if err := a.listen(); err != nil {
			a.logger.Error("joiners are served in-band only", "err", err)
		}
	}
	return s, nil
}

// listen serves joiners at an address of their own. It is called with mu.
func (a *App) listen() error {
	address := cast.ToString(a.options.Get(optionAddress))
	if address == "" || a.closed {
		return nil
	}
	chain := cast.ToString(a.options.Get(optionChain))
	if chain == "" {
		return fmt.Errorf("%s: the chain is not known: set %s", optionAddress, optionChain)
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	mux := &transport.Mux{}
	a.states.Register(mux)
	a.network, err = tcp.Listen(address, tcp.Options{Key: key, ChainID: chain, Handler: mux, Rate: cast.ToInt64(a.options.Get(optionRate))})
	if err != nil {
		return err
	}
	a.logger.Info("serving states to joiners", "address", a.network.Addr().String())
	return nil
}

// Address is where joiners are served; empty: nowhere yet.
func (a *App) Address() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.network == nil {
		return ""
	}
	return a.network.Addr().String()
}

// Close implements servertypes.Application. It gives back all snapshots before the database is
// closed. States that are being cut fail at their next read: that of a whole state takes long.
func (a *App) Close() error {
	a.mu.Lock()
	a.closed = true
	network := a.network
	a.network = nil
	var err error
	for f := range a.cutting {
		err = errors.Join(err, f.release())
	}
	a.mu.Unlock()
	a.wg.Wait()
	if network != nil {
		err = errors.Join(err, network.Close())
	}
	a.mu.Lock()
	for _, s := range a.served {
		a.states.Remove(s.Height())
		err = errors.Join(err, s.frozen.release())
	}
	a.served = nil
	a.mu.Unlock()
	return errors.Join(err, a.Application.Close())
}
