package serve

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"sync"

	"cosmossdk.io/log"
	abci "github.com/cometbft/cometbft/abci/types"
	cmted25519 "github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/p2p"
	dbm "github.com/cosmos/cosmos-db"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	"github.com/spf13/cast"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/serve"
	"github.com/starling-kv/starling/lightblocks"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// Options of the application that are read. Those of section [starling], of app.toml, are ours.
const (
	optionInterval = "state-sync.snapshot-interval"    // heights between two states; 0: none
	optionKeep     = "state-sync.snapshot-keep-recent" // states that are served; 0: 2
	optionCache    = "inter-block-cache"               // whether baseapp has one
	optionAddress  = "starling.laddr"                  // HOST:PORT for joiners; empty: in-band only
	optionRate     = "starling.rate"                   // bytes a second sent there; 0: no limit
	optionChain    = "chain-id"                        // where baseapp has none
	optionHome     = "home"                            // the SDK's: the node's folder
	optionKey      = "node_key_file"                   // CometBFT's
	optionGRPC     = "grpc.enable"                     // the SDK's; unset: it is enabled
	optionAPI      = "api.enable"                      // the SDK's
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
	headers  *lightblocks.Server // has nothing to serve until there is a node

	gate    *gate      // closed while a block is made
	reading sync.Mutex // held while a state is read to be offered in-band: one at a time

	joining *joining // what OfferSnapshot has accepted; nil: nothing; ABCI's calls use it

	wg      sync.WaitGroup // states that are being cut
	closing chan struct{}  // closed by Close

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
		cutting: map[*frozen]bool{}, closing: make(chan struct{}), gate: newGate(), interval: cast.ToInt64(options.Get(optionInterval)), keep: cast.ToInt(options.Get(optionKeep))}
	if a.keep < 1 {
		a.keep = defaultKeep
	}
	a.headers = lightblocks.NewServer(lightblocks.ServerOptions{ChainID: a.chain()})
	a.states.Failed = func(err error) {
		if !errors.Is(err, errReleased) { // the state is an old one, or the node stops
			a.logger.Error("a joiner's request failed", "err", err)
		}
	}
	return a
}

// FinalizeBlock implements servertypes.ABCI. Reads of the served states give way to it.
func (a *App) FinalizeBlock(r *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	defer a.gate.close()()
	return a.Application.FinalizeBlock(r)
}

// Commit implements servertypes.ABCI. Reads of the served states give way to it. At a snapshot
// height it takes the database's snapshot, which no pruning changes, before it returns: what it
// costs the chain is that alone. Failures to serve are none of the chain's.
func (a *App) Commit() (*abci.ResponseCommit, error) {
	defer a.gate.close()()
	r, err := a.Application.Commit()
	if err != nil || a.interval < 1 {
		return r, err
	}
	height := a.CommitMultiStore().LastCommitID().Version
	if height%a.interval != 0 {
		return r, nil
	}
	f, err := freeze(a.db, a.gate)
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
	files, err := a.extensionsOf(s)
	if err == nil {
		a.reading.Lock()
		// Where states take longer to read than they are apart, those that waited are given up:
		// else each would be dropped while it is read.
		if err = errNewer; a.isNewest(s) {
			err = s.prepare(files)
		}
		a.reading.Unlock()
	}
	if err != nil && !errors.Is(err, errReleased) {
		a.logger.Info("a state is not offered in-band", "height", height, "reason", err)
	}
	return nil
}

var errNewer = errors.New("a newer one is to be offered")

func (a *App) isNewest(s *state) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.served) > 0 && a.served[len(a.served)-1] == s
}

func (a *App) offer(f *frozen, height int64) (*state, error) {
	opened, err := nodedb.Open(f, height)
	if err != nil {
		return nil, err
	}
	opened.LimitProcessors(runtime.GOMAXPROCS(0) / 2) // the blocks that follow need the others
	s := &state{State: opened, frozen: f, cuts: map[iavlsync.Format]*cut{}}
	if err := a.states.Add(opened); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		a.states.Remove(height)
		return nil, errReleased
	}
	a.served = append(a.served, s)
	for len(a.served) > a.keep {
		old := a.served[0]
		a.served = a.served[1:]
		if err := a.drop(old); err != nil {
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

// drop ends the serving of a state. Reads of it that are under way fail soon.
func (a *App) drop(s *state) error {
	a.states.Remove(s.Height())
	s.Close()
	return s.frozen.release()
}

// listen serves joiners at an address of their own. It is called with mu.
func (a *App) listen() error {
	address := cast.ToString(a.options.Get(optionAddress))
	if address == "" || a.closed {
		return nil
	}
	chain := a.chain()
	if chain == "" {
		return fmt.Errorf("%s: the chain is not known: set %s", optionAddress, optionChain)
	}
	key, err := a.key()
	if err != nil {
		return err
	}
	mux := &transport.Mux{}
	a.states.Register(mux)
	a.headers.Register(mux)
	a.network, err = tcp.Listen(address, tcp.Options{Key: key, ChainID: chain, Handler: mux, Rate: cast.ToInt64(a.options.Get(optionRate))})
	if err != nil {
		return err
	}
	a.logger.Info("serving states to joiners", "address", a.network.Addr().String(), "id", tcp.IDOf(key.Public().(ed25519.PublicKey)))
	if !a.getsNode() {
		a.logger.Error("no headers are served, so joiners need --rpc: enable gRPC or the API in app.toml")
	}
	return nil
}

// getsNode reports whether the SDK gives the application a client of its node, sooner or later:
// while the node starts, it executes blocks without. See RegisterTendermintService.
func (a *App) getsNode() bool {
	grpc := a.options.Get(optionGRPC)
	return grpc == nil || cast.ToBool(grpc) || cast.ToBool(a.options.Get(optionAPI))
}

// chain returns the chain's id, which baseapp has of the genesis file.
func (a *App) chain() string {
	if app, is := a.Application.(interface{ ChainID() string }); is && app.ChainID() != "" {
		return app.ChainID()
	}
	return cast.ToString(a.options.Get(optionChain))
}

// key returns that of the node, which is made where there is none yet; a new one without a home.
func (a *App) key() (ed25519.PrivateKey, error) {
	home := cast.ToString(a.options.Get(optionHome))
	if home == "" {
		_, key, err := ed25519.GenerateKey(nil)
		return key, err
	}
	path := cast.ToString(a.options.Get(optionKey))
	if path == "" {
		path = filepath.Join("config", "node_key.json")
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(home, path)
	}
	key, err := p2p.LoadOrGenNodeKey(path)
	if err != nil {
		return nil, fmt.Errorf("key of the node: %w", err)
	}
	private, is := key.PrivKey.(cmted25519.PrivKey)
	if !is {
		return nil, fmt.Errorf("key of the node in %s: it is of type %s, not %s", path, key.PrivKey.Type(), cmted25519.KeyType)
	}
	return ed25519.PrivateKey(private), nil
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
// closed. States that are being cut, or sent, fail soon: a read of a whole state takes long.
func (a *App) Close() error {
	a.mu.Lock()
	if !a.closed {
		close(a.closing)
	}
	a.closed = true
	network := a.network
	a.network = nil
	var err error
	for f := range a.cutting {
		err = errors.Join(err, f.release())
	}
	for _, s := range a.served {
		err = errors.Join(err, a.drop(s))
	}
	a.served = nil
	a.mu.Unlock()
	a.wg.Wait()
	if network != nil {
		err = errors.Join(err, network.Close())
	}
	a.headers.SetStores(nil, nil, nil)
	return errors.Join(err, a.Application.Close())
}
