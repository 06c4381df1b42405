package home

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/light"
	sm "github.com/cometbft/cometbft/state"
	cometsync "github.com/cometbft/cometbft/statesync"
	cmttypes "github.com/cometbft/cometbft/types"
	"golang.org/x/sync/errgroup"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/lightblocks"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/archive"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/treestore"
)

// A snapshot file becomes the state of a home that has none. What is needed to trust it, and to
// continue from it, depends on what the home has:
//
//	home has                 app hash of the file's height from       what is stored                    the next start
//	nothing                  a light client (RPC servers, a trusted   state, then CometBFT's commit     block sync from the height on
//	                         header)                                  and state of that height
//	blocks, but no state     the header of the next block, here       state                             executes the blocks since then
//	nothing, StateOnly       the user, or a light client              state                             is the business of another CometBFT
//
// An app hash that the user names is compared in every case. After a kill at any point the home is
// as before, or complete:
//
//	restore ──► state zone: commit ──► commit of the height ──► CometBFT's state ──► mark of an offline state sync (bootstrap.go)
//	   │              │                        │                       │
//	   empty          └── no block belongs ────┘                       └── Databases.Open sets the mark
//	                      to the state: the next
//	                      start or import replaces it
//
// The validator's signing state is not touched.

var (
	// ErrOtherState: the snapshot file contains another state than the one that is trusted.
	ErrOtherState = archive.ErrOtherState
	// ErrFileExists: an export will not overwrite a file.
	ErrFileExists = archive.ErrExists
	// ErrNotEmpty: the home has a state, which an import does not replace.
	ErrNotEmpty = errors.New("there is a state already")
	// ErrNoTrust: no source of the right app hash is known, or no header follows the snapshot.
	ErrNoTrust = errors.New("the snapshot cannot be trusted")
)

// Headers provide what a node needs of the chain to continue from a height. All of it is verified.
type Headers = cometsync.StateProvider

// ImportOptions say what to import.
type ImportOptions struct {
	File string
	// AppHash is the app hash of the file's height that the user trusts; nil: none.
	AppHash []byte
	// Headers connects to a source of headers; nil: RPC servers or peers, as the [statesync] and
	// [join] sections say.
	Headers func(ctx context.Context, genesis *cmttypes.GenesisDoc) (Headers, error)
	// StateOnly: CometBFT runs apart (`starlingd abci`), only the state is installed.
	StateOnly bool
	Logger    log.Logger // of the light client; nil: silent
	// Progress is called, one call at a time, with the progress of a stage: bytes verified and
	// written, or keys read back. nil: nobody.
	Progress func(stage ImportStage, done, total uint64)

	reached func(step string) // called between two steps, for tests that copy the home; nil: nobody
}

// ImportStage is a part of an import that takes long.
type ImportStage string

// Stages in their order.
const (
	ImportWriting  ImportStage = "verifying and writing" // bytes
	ImportChecking ImportStage = "putting it together"   // keys
)

// Imported is a snapshot that was imported.
type Imported struct {
	SnapshotFile
	// Trust names the source of the app hash.
	Trust string `json:"trust"`
	// Executes is the number of blocks of the home that the next start executes.
	Executes int64 `json:"executes"`
}

// ImportSnapshot makes a snapshot file the state of a stopped node that has none. If ctx ends, or
// on an error, the home is as before.
func ImportSnapshot(ctx context.Context, config *config.Config, o ImportOptions) (result Imported, err error) {
	started := time.Now()
	file, err := archive.OpenFile(o.File)
	if err != nil {
		return result, fileError(err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	i := &importer{config: config, o: o, file: file, header: file.Header(), progress: &importProgress{tell: o.Progress}, close: func() {}}
	defer func() { i.close() }()
	if err := i.prepare(ctx); err != nil {
		return result, fileError(err)
	}
	if err := i.install(ctx); err != nil {
		return result, fileError(err)
	}
	info, hash := i.header, i.header.AppHash()
	result.SnapshotFile = SnapshotFile{
		File: o.File, ChainID: info.ChainID, Height: info.Height, AppHash: fmt.Sprintf("%X", hash[:]),
		Chunks: info.Commitment.Chunks, Bytes: info.Commitment.Root.Bytes, FileBytes: file.Size(), Seconds: seconds(started),
	}
	result.Trust, result.Executes = i.trust, i.executes
	return result, nil
}

// fileError makes errors about a damaged file wrap ErrDamaged, so that commands need not import
// package archive.
func fileError(err error) error {
	for _, damage := range []error{archive.ErrDamaged, archive.ErrTruncated, archive.ErrTrailing} {
		if errors.Is(err, damage) {
			return damagedFile{err}
		}
	}
	return err
}

type damagedFile struct{ error }

func (e damagedFile) Error() string   { return e.error.Error() + ": get the file again" }
func (e damagedFile) Unwrap() []error { return []error{e.error, ErrDamaged} }

// importer is an import that runs.
type importer struct {
	config   *config.Config
	o        ImportOptions
	file     *archive.File
	header   archive.Header
	progress *importProgress

	genesis  *cmttypes.GenesisDoc // nil: not known
	close    func()               // releases the source of headers
	trust    string
	executes int64
	contents *archive.Contents
	// What CometBFT is told; nil: nothing.
	state  *sm.State
	commit *cmttypes.Commit
	// before comes from transports only, since RPC servers send one header per request.
	before []lightblocks.Ancestor
	gap    comet.Gap
}

// prepare finds out whether the file can be imported, and its right app hash. It changes nothing.
func (i *importer) prepare(ctx context.Context) error {
	path := i.config.CometBFT.GenesisFile()
	if !i.o.StateOnly || config.Exists(path) {
		var err error
		if i.genesis, err = config.LoadGenesis(path); err != nil {
			return err
		}
		if want := i.genesis.ChainID; i.header.ChainID != want {
			return fmt.Errorf("%w: the snapshot file is of chain %q, the genesis file of %q", app.ErrOtherChain, i.header.ChainID, want)
		}
	}
	trusted, err := i.own()
	if err != nil {
		return err
	}
	if trusted == nil {
		if trusted, err = i.fromOutside(ctx); err != nil {
			return err
		}
	}
	if given := i.o.AppHash; given != nil && !bytes.Equal(given, trusted) {
		return fmt.Errorf("%w: the app hash of height %d that was given is %X, %s has %X", ErrOtherState, i.header.Height, given, i.trust, trusted)
	}
	if len(trusted) != len(avlstar.Hash{}) {
		return fmt.Errorf("%w: the app hash that is trusted has %d bytes, not %d: it is not a Starling chain", ErrOtherState, len(trusted), len(avlstar.Hash{}))
	}
	i.contents, err = i.file.Verify(avlstar.Hash(trusted))
	return err
}

// own checks the home. It returns the app hash that the blocks of the home name; nil: there are no
// blocks.
func (i *importer) own() (hash []byte, err error) {
	d, err := openOffline(i.config, true)
	if err != nil {
		return nil, stopTheNode(err, "import into another home")
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if d.sharded || i.config.App.State.Sharded() {
		return nil, config.Invalid(fmt.Errorf("%w: import into the home of a node with [state] mode = %q, from which storage nodes can fetch their ranges; this one follows the network with `starlingd start`",
			ErrSharded, config.ModeLocal))
	}
	if i.o.StateOnly {
		return nil, i.refuseState(d.state, false)
	}
	last, known, err := d.progress()
	if err != nil {
		return nil, err
	}
	if err := i.refuseState(d.state, !known); err != nil || !known {
		return nil, err
	}
	height := i.header.Height
	first := d.blocks.Base()
	// below the first block there may be headers
	executes := height == last || first > 0 && height >= first-1 && height < last
	if !executes || !d.canExecuteAfter(height) {
		return nil, fmt.Errorf("%w: it is of height %d, and the home has blocks %d to %d, on which no state of that height fits: export one of those heights, or remove the blocks with `starlingd unsafe-reset-all`",
			ErrNoTrust, height, first, last)
	}
	hash, header, err := d.appHashAfter(height)
	if err == nil && hash == nil {
		err = fmt.Errorf("%w: the blocks of the home do not name the app hash of height %d", ErrNoTrust, height)
	}
	i.trust, i.executes = fmt.Sprintf("header %d in this home", header), last-height
	return hash, err
}

// progress returns the height of CometBFT; known is false if it has nothing that a state could
// continue from (comet.Heights.None).
func (d *offline) progress() (last int64, known bool, err error) {
	if d.blocks == nil {
		return 0, false, nil
	}
	state, err := d.comet.Load()
	if err != nil {
		return 0, false, fmt.Errorf("CometBFT's state database: %w", err)
	}
	last = max(d.blocks.Height(), state.LastBlockHeight)
	return last, d.blocks.Height() > 0 || last > 0 && d.blocks.LoadSeenCommit(last) != nil, nil
}

// refuseState returns ErrNotEmpty for a home with a state. If mayBeLeft, a state that an
// interrupted join or import left does not count.
func (i *importer) refuseState(zone *storage.Zone, mayBeLeft bool) error {
	if zone == nil {
		return nil
	}
	meta, ok := zone.Meta()
	if !ok || meta.Restored && mayBeLeft {
		return nil
	}
	return fmt.Errorf("%w, of height %d, and no snapshot is imported over it: `starlingd unsafe-reset-all` removes it, with all data but keys and signing state",
		ErrNotEmpty, meta.Height)
}

// fromOutside returns the app hash from a light client, or from the user.
func (i *importer) fromOutside(ctx context.Context) ([]byte, error) {
	connect := i.o.Headers
	if trust := i.config.CometBFT.StateSync; connect == nil && i.genesis != nil {
		addresses, err := config.JoinAddresses(i.config)
		if err != nil {
			return nil, err
		}
		switch {
		case len(trust.RPCServers) > 0:
			connect = i.lightClient
		case len(addresses) > 0 && (trust.TrustHeight > 0 || trust.TrustHash != ""):
			connect = i.overTransport
		}
		if connect != nil {
			if err := checkTrust(trust); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrNoTrust, err)
			}
		}
	}
	switch {
	case connect != nil && i.genesis != nil:
		return i.fromHeaders(ctx, connect)
	case i.o.StateOnly && i.o.AppHash != nil:
		i.trust = "the app hash that was given"
		return i.o.AppHash, nil
	case i.o.StateOnly:
		return nil, fmt.Errorf("%w: name its app hash (--app-hash)", ErrNoTrust)
	case i.o.AppHash != nil:
		return nil, fmt.Errorf("%w enough to start from it: the app hash proves the state, but the consensus also needs the header, the validators and the commit of height %d, which only the network has: give --statesync.trust_height and --statesync.trust_hash, and peers (--join.peers) or RPC servers (--statesync.rpc_servers), too (or --state-only, if a cometbft of its own runs beside `starlingd abci`)",
			ErrNoTrust, i.header.Height)
	}
	return nil, fmt.Errorf("%w: give --statesync.trust_height and --statesync.trust_hash, and peers (--join.peers, or p2p.persistent_peers in config.toml) or RPC servers (--statesync.rpc_servers), so that a light client can fetch the app hash of height %d and what the consensus needs",
		ErrNoTrust, i.header.Height)
}

func (i *importer) fromHeaders(ctx context.Context, connect func(context.Context, *cmttypes.GenesisDoc) (Headers, error)) ([]byte, error) {
	height := uint64(i.header.Height)
	failed := func(err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w: %w (statesync.rpc_servers, or where none are given the peers' transports, must answer and have the headers %d to %d, and those from statesync.trust_height on)",
			ErrNoTrust, err, height, height+2)
	}
	headers, err := connect(ctx, i.genesis)
	if err != nil {
		return nil, failed(err)
	}
	hash, err := headers.AppHash(ctx, height)
	if err != nil || i.o.StateOnly {
		i.trust = "the light client"
		if err != nil {
			err = failed(err)
		}
		return hash, err
	}
	state, err := headers.State(ctx, height)
	if err != nil {
		return nil, failed(err)
	}
	if i.commit, err = headers.Commit(ctx, height); err != nil {
		return nil, failed(err)
	}
	if state.LastBlockHeight != i.header.Height || !bytes.Equal(state.AppHash, hash) {
		return nil, fmt.Errorf("%w: the light client's state is of height %d, app hash %X", ErrNoTrust, state.LastBlockHeight, state.AppHash)
	}
	if over, is := headers.(lightblocks.StateProvider); is {
		i.before, i.gap = comet.Ancestors(ctx, over.Verifier, state, i.config.App.Join.EvidenceHeaders, i.logger())
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	i.state, i.trust = &state, "the light client"
	return hash, nil
}

// checkTrust checks the [statesync] section, as CometBFT does only if state sync is enabled.
func checkTrust(c *cfg.StateSyncConfig) error {
	hash, err := hex.DecodeString(c.TrustHash)
	switch {
	case c.TrustHeight <= 0:
		return errors.New("statesync.trust_height is missing: the height of a header that you trust")
	case err != nil || len(hash) != len(avlstar.Hash{}):
		return fmt.Errorf("statesync.trust_hash is %q, it must be the hash of header %d, 64 hex digits", c.TrustHash, c.TrustHeight)
	case c.TrustPeriod <= 0:
		return fmt.Errorf("statesync.trust_period is %s, it must be above 0", c.TrustPeriod)
	case len(c.RPCServers) == 1:
		return fmt.Errorf("statesync.rpc_servers names %d, a light client needs two or more, to compare them", len(c.RPCServers))
	}
	return nil
}

// lightClient is CometBFT's light client, over RPC servers, as the [statesync] section says.
func (i *importer) lightClient(ctx context.Context, genesis *cmttypes.GenesisDoc) (Headers, error) {
	c := i.config.CometBFT.StateSync
	first, err := sm.MakeGenesisState(genesis)
	if err != nil {
		return nil, err
	}
	logger := i.logger()
	return cometsync.NewLightClientStateProvider(ctx, genesis.ChainID, first.Version, first.InitialHeight, c.RPCServers,
		light.TrustOptions{Period: c.TrustPeriod, Height: c.TrustHeight, Hash: c.TrustHashBytes()}, logger)
}

// overTransport gets headers from the transports of peers, as a join does.
func (i *importer) overTransport(ctx context.Context, genesis *cmttypes.GenesisDoc) (Headers, error) {
	logger := i.logger()
	key, err := config.LoadNodeKey(i.config.CometBFT)
	if err != nil {
		return nil, err
	}
	addresses, err := config.JoinAddresses(i.config)
	if err != nil {
		return nil, err
	}
	network, err := join.Connect(join.NetworkOptions{Config: i.config, Logger: logger, Genesis: genesis, NodeKey: key, Addresses: addresses})
	if err != nil {
		return nil, err
	}
	i.close = network.Close
	if err := network.Reach(ctx, i.config.App.Join.ReachTimeout); err != nil {
		return nil, err
	}
	return lightblocks.StateProvider{Verifier: network.Verifier(), Genesis: genesis, Timeout: join.BootstrapTimeout}, nil
}

// install changes the home.
func (i *importer) install(ctx context.Context) (err error) {
	conf := i.config
	watch := disk.NewWatch(conf.App.Storage.MinFreeBytes, config.DataFolders(conf.CometBFT)...)
	if err := watch.Check(); err != nil {
		return err
	}
	options := stateOptions(conf.CometBFT.DBDir(), false)
	zone, err := storage.Open(config.StateDir(conf.CometBFT.DBDir()), options)
	if err != nil {
		return stopTheNode(err, "import into another home")
	}
	defer func() { err = errors.Join(err, zone.Close()) }()
	var databases *comet.Databases
	if i.state != nil { // before the restore, so that nothing can fail between it and the bootstrap
		databases = comet.NewDatabases(conf.CometBFT, log.NewNopLogger(), blocks.Options{Fatal: disk.EndProcess})
		defer func() { err = errors.Join(err, databases.Close()) }()
		have, err := databases.Open()
		switch {
		case err != nil:
			return stopTheNode(err, "import into another home")
		case !have.None():
			return fmt.Errorf("%w: blocks have come meanwhile", ErrNotEmpty)
		case have.Unbased:
			if err := databases.ForgetState(); err != nil {
				return err
			}
		}
	}
	if err := i.refuseState(zone, i.state != nil); err != nil {
		return err
	}
	if err := i.restore(ctx, zone); err != nil {
		return err
	}
	if err := settle(ctx, zone); err != nil {
		return err
	}
	i.reach("restored")
	if i.state == nil {
		return nil
	}
	return databases.Bootstrap(*i.state, i.commit, i.before, i.gap)
}

// settle makes the tables of the state that was restored. If ctx ends, the zone is empty again.
func settle(ctx context.Context, zone *storage.Zone) error {
	err := zone.Settle(ctx)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return errors.Join(err, zone.Reset())
	}
	return fmt.Errorf("the state is written, but not yet in the form in which a node keeps it: %w", err)
}

func (i *importer) logger() log.Logger {
	if i.o.Logger == nil {
		return log.NewNopLogger()
	}
	return i.o.Logger
}

func (i *importer) reach(step string) {
	if i.o.reached != nil {
		i.o.reached(step)
	}
}

// restore reads, verifies and writes the chunks, several at a time. The state is then complete and
// durable.
func (i *importer) restore(ctx context.Context, zone *storage.Zone) (err error) {
	store := treestore.New(treestore.Options{Zone: zone, ChainID: i.header.ChainID, Cache: sgc.New(i.config.App.Storage.CacheBytes())})
	target := store.FileTarget(ctx, i.check, i.progress.checked)
	restorer, err := statesync.BeginRestore(target, i.header.Height, i.contents.Manifest)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, restorer.Abort())
		}
	}()
	workers, working := errgroup.WithContext(ctx)
	workers.SetLimit(runtime.GOMAXPROCS(0))
	var unread error
	for chunk, err := range i.contents.Chunks() {
		if unread = err; err != nil || working.Err() != nil {
			break
		}
		workers.Go(func() error { return i.accept(restorer, chunk) })
	}
	if err := workers.Wait(); err != nil {
		return err
	}
	if err := cmp.Or(ctx.Err(), unread); err != nil {
		return err
	}
	v, err := restorer.Commit()
	if err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	v.Release()
	return nil
}

// check checks the parameters of the state that was read, before it is made durable. The header's
// chain was compared with the genesis file's.
func (i *importer) check(params app.Params) error {
	if params.ChainId != i.header.ChainID {
		return fmt.Errorf("%w: the snapshot is of chain %q, its file says %q", app.ErrOtherChain, params.ChainId, i.header.ChainID)
	}
	newest, err := buildinfo.NewestAppVersion()
	if err != nil {
		return err
	}
	if params.AppVersion > newest {
		return &app.UpgradeError{Version: params.AppVersion, Newest: newest}
	}
	return nil
}

func (i *importer) accept(restorer *statesync.Restorer, chunk *archive.Chunk) error {
	data, err := chunk.Data()
	if err != nil {
		return err
	}
	_, err = restorer.Accept(chunk.Index, data)
	switch {
	case errors.Is(err, avlstar.ErrInvalidChunk):
		return chunk.Damaged(err)
	case err != nil:
		return err
	}
	i.progress.wrote(uint64(len(data)), i.header.Commitment.Root.Bytes)
	return nil
}

// importProgress adds up what several workers do.
type importProgress struct {
	tell func(stage ImportStage, done, total uint64)
	mu   sync.Mutex
	done uint64 // bytes; guarded by mu
}

func (p *importProgress) wrote(bytes, total uint64) {
	if p.tell == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += bytes
	p.tell(ImportWriting, p.done, total)
}

func (p *importProgress) checked(keys, total uint64) {
	if p.tell != nil {
		p.tell(ImportChecking, keys, total)
	}
}
