package serve

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"

	abci "github.com/cometbft/cometbft/abci/types"
	cmted25519 "github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/p2p"
	dbm "github.com/cosmos/cosmos-db"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	"github.com/spf13/cast"

	"github.com/starling-kv/starling/cosmos/codefiles"
	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
	"github.com/starling-kv/starling/cosmos/serve"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// Application options that this package reads. Those in section [starling] of app.toml are ours.
const (
	optionInterval = "state-sync.snapshot-interval"    // blocks between served states; 0: none
	optionKeep     = "state-sync.snapshot-keep-recent" // number of states served; 0: 2
	optionCache    = "inter-block-cache"               // whether baseapp has an inter-block cache
	optionAddress  = "starling.laddr"                  // HOST:PORT for joiners; empty: in-band only
	optionRate     = "starling.rate"                   // its send limit, bytes per second; 0: none
	optionChain    = "chain-id"                        // used if baseapp has no chain id
	optionHome     = "home"                            // the SDK's: home directory of the node
	optionKey      = "node_key_file"                   // CometBFT's: path of the node key
	optionGRPC     = "grpc.enable"                     // the SDK's; unset: enabled
	optionAPI      = "api.enable"                      // the SDK's
)

const defaultKeep = 2

// Creator wraps an application creator. The applications that it creates serve their states in
// verified chunks, and can join from such chunks.
func Creator(newApp servertypes.AppCreator) servertypes.AppCreator {
	return generation.Wrap(newApp, func(app servertypes.Application, logger generation.Logger, db dbm.DB, options servertypes.AppOptions) servertypes.Application {
		return New(app, logger, db, options)
	})
}

// App wraps an application and serves its states. Methods that it does not override are the
// application's own.
type App struct {
	servertypes.Application
	logger   generation.Logger
	db       dbm.DB
	options  servertypes.AppOptions
	interval int64
	keep     int
	states   *serve.Server
	headers  *lightblocks.Server // serves nothing until RegisterTendermintService

	gate    *gate      // closed during FinalizeBlock and Commit
	reading sync.Mutex // held while prepare reads a state, so that one is read at a time

	// Used by ABCI calls only.
	joining   *joining       // the join that OfferSnapshot accepted, or nil
	restoring *abci.Snapshot // the SDK's snapshot that was offered last, or nil

	wg      sync.WaitGroup // goroutines that prepare states
	closing chan struct{}  // closed by Close

	mu      sync.Mutex
	cutting map[*frozen]bool // snapshots that wg's goroutines use; guarded by mu
	served  []*state         // in ascending order of height; guarded by mu
	network *tcp.Server      // nil if not started or not configured; guarded by mu
	started bool             // listen was called; guarded by mu
	closed  bool             // guarded by mu
}

// New wraps an application whose database is db.
func New(app servertypes.Application, logger generation.Logger, db dbm.DB, options servertypes.AppOptions) *App {
	a := &App{Application: app, logger: logger.With("module", "starling"), db: db, options: options, states: serve.New(),
		cutting: map[*frozen]bool{}, closing: make(chan struct{}), gate: newGate(), interval: cast.ToInt64(options.Get(optionInterval)), keep: cast.ToInt(options.Get(optionKeep))}
	if a.keep < 1 {
		a.keep = defaultKeep
	}
	a.headers = lightblocks.NewServer(lightblocks.ServerOptions{ChainID: a.chain()})
	a.states.Failed = func(err error) {
		if !errors.Is(err, errReleased) { // the state was dropped, or the node is stopping
			a.logger.Error("failed to answer a joiner", "err", err)
		}
	}
	return a
}

// FinalizeBlock implements servertypes.ABCI. Reads of served states yield to it.
func (a *App) FinalizeBlock(r *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	defer a.gate.close()()
	return a.Application.FinalizeBlock(r)
}

// Commit implements servertypes.ABCI. Reads of served states yield to it. At a snapshot height it
// takes a snapshot of the database, which later pruning does not change. Only this step delays the
// chain: the state is prepared in the background. A failure to serve is logged and does not fail
// the block.
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
		if err != nil && !errors.Is(err, errReleased) { // released by Close
			a.logger.Error("the state is not served", "height", height, "err", errors.Join(err, f.release()))
		}
	})
	return r, nil
}

// add serves a state and prepares its in-band snapshot. It runs while later blocks execute.
func (a *App) add(f *frozen, height int64) error {
	s, err := a.offer(f, height)
	if err != nil {
		return err
	}
	files, err := a.extensionsOf(s)
	if err == nil {
		a.reading.Lock()
		// Reading a state may take longer than the interval between states. Then only the newest of
		// the waiting states is read. If all were read in turn, each would be dropped while it is
		// read.
		if err = errNewer; a.isNewest(s) {
			err = s.prepare(files)
		}
		a.reading.Unlock()
	}
	if err != nil && !errors.Is(err, errReleased) {
		a.logger.Info("state not offered in-band", "height", height, "reason", err)
	}
	return nil
}

var errNewer = errors.New("a newer state is waiting to be offered")

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
	opened.LimitProcessors(runtime.GOMAXPROCS(0) / 2) // leave the rest to block execution
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
			a.logger.Error("failed to release a database snapshot", "height", old.Height(), "err", err)
		}
	}
	if !a.started {
		a.started = true
		if err := a.listen(); err != nil {
			a.logger.Error("failed to listen for joiners: they are served in-band only", "err", err)
		}
	}
	return s, nil
}

// drop stops serving a state. Reads in progress fail soon afterwards.
func (a *App) drop(s *state) error {
	a.states.Remove(s.Height())
	s.Close()
	return s.frozen.release()
}

// listen serves joiners at the address in starling.laddr. The caller holds mu.
func (a *App) listen() error {
	address := cast.ToString(a.options.Get(optionAddress))
	if address == "" || a.closed {
		return nil
	}
	chain := a.chain()
	if chain == "" {
		return fmt.Errorf("%s: unknown chain id: set %s", optionAddress, optionChain)
	}
	key, err := a.key()
	if err != nil {
		return err
	}
	mux := &transport.Mux{}
	a.states.Register(mux)
	a.headers.Register(mux)
	if home := cast.ToString(a.options.Get(optionHome)); home != "" {
		codefiles.NewServer(home).Register(mux)
	}
	a.network, err = tcp.Listen(address, tcp.Options{
		Key: key, ChainID: chain, Handler: mux, Rate: cast.ToInt64(a.options.Get(optionRate)), Lanes: serve.Lanes(),
	})
	if err != nil {
		return err
	}
	a.logger.Info("serving states to joiners", "address", a.network.Addr().String(), "id", tcp.IDOf(key.Public().(ed25519.PublicKey)))
	if !a.getsNode() {
		a.logger.Error("no headers are served, so joiners need --rpc: to serve headers, enable gRPC or the API in app.toml")
	}
	return nil
}

// getsNode reports whether the SDK will pass the application an RPC client of its own node. The
// answer comes from the settings, since the node may execute blocks before it passes the client.
// See RegisterTendermintService.
func (a *App) getsNode() bool {
	grpc := a.options.Get(optionGRPC)
	return grpc == nil || cast.ToBool(grpc) || cast.ToBool(a.options.Get(optionAPI))
}

// chain returns the chain id: baseapp's, which is from the genesis file, or else the option's.
func (a *App) chain() string {
	if app, is := a.Application.(interface{ ChainID() string }); is && app.ChainID() != "" {
		return app.ChainID()
	}
	return cast.ToString(a.options.Get(optionChain))
}

// key returns the node key, and creates the file if it does not exist. Without a home directory, it
// returns a new key on each call.
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
		return nil, fmt.Errorf("node key: %w", err)
	}
	private, is := key.PrivKey.(cmted25519.PrivKey)
	if !is {
		return nil, fmt.Errorf("node key in %s: type is %s, not %s", path, key.PrivKey.Type(), cmted25519.KeyType)
	}
	return ed25519.PrivateKey(private), nil
}

// Address returns the address at which joiners are served. It is empty until the first state is
// served.
func (a *App) Address() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.network == nil {
		return ""
	}
	return a.network.Addr().String()
}

// Close implements servertypes.Application. It releases all database snapshots before it closes the
// database. Reads of states in progress fail soon, since a read of a whole state takes long.
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
