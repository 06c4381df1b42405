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
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/archive"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/storage/treestore"
)

// A snapshot file becomes the state of a home without one. The source of trust, and what the node
// needs to continue, depend on the content of the home:
//
//	home has                 app hash of the file's height from       what is stored                    the next start
//	nothing                  a light client (RPC servers, a trusted   state, then CometBFT's commit     block sync from the height on
//	                         header)                                  and state of that height
//	blocks, but no state     the header of the next block, in the home       state                             executes the blocks since then
//	nothing, StateOnly       the user, or a light client              state                             is done by a separate CometBFT
//
// An app hash named by the user is compared in every case. After a kill at any point the home is
// unchanged or complete:
//
//	restore ──► state zone: commit ──► commit of the height ──► CometBFT's state ──► mark of an offline state sync (bootstrap.go)
//	   │              │                        │                       │
//	   empty          └── no block belongs ────┘                       └── Databases.Open sets the mark
//	                      to the state: the next
//	                      start or import replaces it
//
// The validator's signing state is never changed.

var (
	// ErrOtherState: the snapshot file's state is not the trusted one.
	ErrOtherState = archive.ErrOtherState
	// ErrFileExists: an export does not overwrite a file.
	ErrFileExists = archive.ErrExists
	// ErrNotEmpty: the home has a state, which an import does not replace.
	ErrNotEmpty = errors.New("a state already exists")
	// ErrNoTrust: there is no source of a trusted app hash, or no header after the snapshot.
	ErrNoTrust = errors.New("the snapshot cannot be trusted")
)

// Headers provides the chain data that a node needs to continue from a height. All of it is
// verified.
type Headers = cometsync.StateProvider

// ImportOptions configures an import.
type ImportOptions struct {
	File string
	// AppHash is the user's trusted app hash of the file's height; nil: none.
	AppHash []byte
	// Headers connects to a source of headers; nil: RPC servers or peers, according to the
	// [statesync] and [join] sections.
	Headers func(ctx context.Context, genesis *cmttypes.GenesisDoc) (Headers, error)
	// StateOnly: CometBFT is a separate process (`starlingd abci`), so only the state is installed.
	StateOnly bool
	Logger    log.Logger // of the light client; nil: silent
	// Progress is called with the progress of a stage, never concurrently: bytes verified and
	// written, or keys read back. May be nil.
	Progress func(stage ImportStage, done, total uint64)

	reached func(step string) // called between two steps, for tests that copy the home; may be nil
}

// ImportStage is a long-running stage of an import.
type ImportStage string

// The stages, in order.
const (
	ImportWriting  ImportStage = "verifying and writing" // bytes
	ImportChecking ImportStage = "building tables"       // keys
)

// Imported is the result of an import.
type Imported struct {
	SnapshotFile
	// Trust describes the source of the app hash.
	Trust string `json:"trust"`
	// Executes is the number of the home's blocks that the next start executes.
	Executes int64 `json:"executes"`
}

// ImportSnapshot makes a snapshot file the state of a stopped node without state. If ctx ends, or
// on an error, the home is unchanged.
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
	info := i.header
	stats := archive.Stats{Chunks: info.Commitment.Chunks, Bytes: info.Commitment.Root.Bytes, FileBytes: file.Size()}
	result.SnapshotFile = snapshotFile(o.File, info.ChainID, info.Height, info.AppHash(), stats, started)
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

func (e damagedFile) Error() string   { return e.error.Error() + ": get another copy of the file" }
func (e damagedFile) Unwrap() []error { return []error{e.error, ErrDamaged} }

// importer is an import in progress.
type importer struct {
	config   *config.Config
	o        ImportOptions
	file     *archive.File
	header   archive.Header
	progress *importProgress

	genesis  *cmttypes.GenesisDoc // nil: unknown
	close    func()               // releases the source of headers
	trust    string
	executes int64
	contents *archive.Contents
	// The data passed to CometBFT; nil: none.
	state  *sm.State
	commit *cmttypes.Commit
	// before comes from transports only, because RPC servers send one header per request.
	before []lightblocks.Ancestor
	gap    comet.Gap
}

// prepare checks that the file can be imported, and determines the trusted app hash. It changes
// nothing.
func (i *importer) prepare(ctx context.Context) error {
	path := i.config.CometBFT.GenesisFile()
	if !i.o.StateOnly || config.Exists(path) {
		var err error
		if i.genesis, err = config.LoadGenesis(path); err != nil {
			return err
		}
		if want := i.genesis.ChainID; i.header.ChainID != want {
			return fmt.Errorf("%w: the snapshot file has chain %q, the genesis file has chain %q", app.ErrOtherChain, i.header.ChainID, want)
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
		return fmt.Errorf("%w: the given app hash of height %d is %X, but %s has %X", ErrOtherState, i.header.Height, given, i.trust, trusted)
	}
	if len(trusted) != len(avlstar.Hash{}) {
		return fmt.Errorf("%w: the trusted app hash has %d bytes, not %d: this is not a Starling chain", ErrOtherState, len(trusted), len(avlstar.Hash{}))
	}
	i.contents, err = i.file.Verify(avlstar.Hash(trusted))
	return err
}

// own checks the home. It returns the app hash in the home's headers; nil: the home has no blocks.
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
		return nil, fmt.Errorf("%w: it has height %d, which does not fit the home's blocks %d to %d: export one of those heights, or remove the blocks with `starlingd unsafe-reset-all`",
			ErrNoTrust, height, first, last)
	}
	hash, header, err := d.appHashAfter(height)
	if err == nil && hash == nil {
		err = fmt.Errorf("%w: the home's headers do not have the app hash of height %d", ErrNoTrust, height)
	}
	i.trust, i.executes = fmt.Sprintf("header %d in this home", header), last-height
	return hash, err
}

// progress returns the height of CometBFT; known is false if it has neither blocks nor a state to
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

// refuseState returns ErrNotEmpty for a home with a state. If mayBeLeft, the state of an
// interrupted join or import does not count.
func (i *importer) refuseState(zone *storage.Zone, mayBeLeft bool) error {
	if zone == nil {
		return nil
	}
	meta, ok := zone.Meta()
	if !ok || meta.Restored && mayBeLeft {
		return nil
	}
	return fmt.Errorf("%w, at height %d, and an import does not replace it: `starlingd unsafe-reset-all` removes it, with all data except keys and signing state",
		ErrNotEmpty, meta.Height)
}

// fromOutside returns the app hash from a light client or from the user.
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
		i.trust = "the given app hash"
		return i.o.AppHash, nil
	case i.o.StateOnly:
		return nil, fmt.Errorf("%w: pass its app hash (--app-hash)", ErrNoTrust)
	case i.o.AppHash != nil:
		return nil, fmt.Errorf("%w enough to start from it: the app hash proves the state, but consensus also needs the header, the validators and the commit of height %d from the network: add --statesync.trust_height and --statesync.trust_hash, and peers (--join.peers) or RPC servers (--statesync.rpc_servers); or use --state-only for a separate cometbft with `starlingd abci`",
			ErrNoTrust, i.header.Height)
	}
	return nil, fmt.Errorf("%w: add --statesync.trust_height and --statesync.trust_hash, and peers (--join.peers, or p2p.persistent_peers in config.toml) or RPC servers (--statesync.rpc_servers), from which a light client fetches the app hash of height %d and the data for consensus",
		ErrNoTrust, i.header.Height)
}

func (i *importer) fromHeaders(ctx context.Context, connect func(context.Context, *cmttypes.GenesisDoc) (Headers, error)) ([]byte, error) {
	height := uint64(i.header.Height)
	failed := func(err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w: %w (statesync.rpc_servers, or without them the peers' transports, must answer and have the headers %d to %d, and those from statesync.trust_height on)",
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
		return nil, fmt.Errorf("%w: the light client's state has height %d, app hash %X", ErrNoTrust, state.LastBlockHeight, state.AppHash)
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

// checkTrust checks the [statesync] section, which CometBFT does only if state sync is enabled.
func checkTrust(c *cfg.StateSyncConfig) error {
	hash, err := hex.DecodeString(c.TrustHash)
	switch {
	case c.TrustHeight <= 0:
		return errors.New("statesync.trust_height is missing: the height of a trusted header")
	case err != nil || len(hash) != len(avlstar.Hash{}):
		return fmt.Errorf("statesync.trust_hash is %q, it must be the hash of header %d, 64 hex digits", c.TrustHash, c.TrustHeight)
	case c.TrustPeriod <= 0:
		return fmt.Errorf("statesync.trust_period is %s, it must be above 0", c.TrustPeriod)
	case len(c.RPCServers) == 1:
		return fmt.Errorf("statesync.rpc_servers names %d, but a light client needs two or more to compare", len(c.RPCServers))
	}
	return nil
}

// lightClient returns CometBFT's light client over the RPC servers of the [statesync] section.
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

// overTransport fetches headers from the transports of peers, like a join.
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
	watch := disk.NewWatch(conf.App.Disk.MinFreeBytes, config.DataFolders(conf.CometBFT)...)
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
			return fmt.Errorf("%w: blocks were added meanwhile", ErrNotEmpty)
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

// settle ingests the restored state. If ctx ends, the zone is empty again.
func settle(ctx context.Context, zone *storage.Zone) error {
	err := zone.Settle(ctx)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return errors.Join(err, zone.Reset())
	}
	return fmt.Errorf("the state is written, but could not be ingested: %w", err)
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

// restore reads, verifies and writes the chunks, several at a time. When it returns, the state is
// complete and durable.
func (i *importer) restore(ctx context.Context, zone *storage.Zone) (err error) {
	store := treestore.New(treestore.Options{Zone: zone, ChainID: i.header.ChainID, Cache: sgc.New(i.config.App.Disk.SharedCache())})
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

// check checks the parameters of the restored state before it is made durable. The header's chain
// was compared with the genesis file's.
func (i *importer) check(params app.Params) error {
	if params.ChainId != i.header.ChainID {
		return fmt.Errorf("%w: the snapshot has chain %q, its file header has %q", app.ErrOtherChain, params.ChainId, i.header.ChainID)
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

// importProgress sums up the progress of several workers.
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
