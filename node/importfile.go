package node

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	dbm "github.com/cometbft/cometbft-db"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/light"
	sm "github.com/cometbft/cometbft/state"
	cometsync "github.com/cometbft/cometbft/statesync"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/spf13/pflag"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/lightblocks"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/archive"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// A snapshot file becomes the state of a home that has none. What it needs to be trusted, and to go on, depends on what is there:
//
//	home has                 app hash of the file's height from       what is stored                    the next start
//	nothing                  a light client (RPC servers, a trusted   state, then CometBFT's commit     block sync from the height on
//	                         header)                                  and state of that height
//	blocks, but no state     the header of the next block, here       state                             executes the blocks since then
//	nothing, StateOnly       the user, or a light client              state                             is the business of another CometBFT
//
// An app hash that the user names is compared in every case. Killed at any time, a home is as before or complete:
//
//	restore ──► state zone: commit ──► commit of the height ──► CometBFT's state ──► mark of an offline state sync (bootstrap.go)
//	   │              │                        │                       │
//	   empty          └── no block belongs ────┘                       └── prepare sets the mark (databases.go)
//	                      to the state: the next
//	                      start or import replaces it
//
// A validator's signing state is not touched.

var (
	// ErrOtherState: the snapshot file is of another state than the one that is trusted.
	ErrOtherState = archive.ErrOtherState
	// ErrFileExists: an export will not overwrite a file.
	ErrFileExists = archive.ErrExists
	// ErrNotEmpty: there is a state that an import would replace.
	ErrNotEmpty = errors.New("there is a state already")
	// ErrNoTrust: nothing says which app hash is right, or no header leads on from the snapshot.
	ErrNoTrust = errors.New("the snapshot cannot be trusted")
)

// Headers are what a node needs to know of the chain to go on from a height; all of it is verified.
type Headers = cometsync.StateProvider

// ImportOptions say what to import.
type ImportOptions struct {
	File string
	// AppHash is the one of the file's height that the user trusts; nil: none.
	AppHash []byte
	// Headers of the chain; nil: a light client as the [statesync] section of config.toml says, if it names RPC servers.
	Headers func(ctx context.Context, genesis *cmttypes.GenesisDoc) (Headers, error)
	// StateOnly: CometBFT runs apart (`starlingd abci`), only the state is installed.
	StateOnly bool
	Logger    log.Logger // of the light client; nil: silent
	// Progress is told, in one goroutine at a time, how far a stage is: bytes verified and written, or keys read back. nil: nobody.
	Progress func(stage ImportStage, done, total uint64)

	reached func(step string) // lets tests copy the home between two steps
}

// ImportStage is a part of an import that takes long.
type ImportStage string

// Stages in their order.
const (
	ImportWriting  ImportStage = "verifying and writing" // bytes
	ImportChecking ImportStage = "putting it together"   // keys
)

// Imported is a snapshot that is in the home now.
type Imported struct {
	SnapshotFile
	// Trust says where the app hash came from.
	Trust string `json:"trust"`
	// Executes is how many blocks that are there the next start executes.
	Executes int64 `json:"executes"`
}

// ImportSnapshot makes a snapshot file the state of a stopped node that has none. Ending ctx, or an error, leaves the home as it was.
func ImportSnapshot(ctx context.Context, config *Config, o ImportOptions) (result Imported, err error) {
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

// fileError makes a file that is not what was written ErrDamaged, so that commands need not know package archive.
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

// importer is an import under way.
type importer struct {
	config   *Config
	o        ImportOptions
	file     *archive.File
	header   archive.Header
	progress *importProgress

	genesis  *cmttypes.GenesisDoc // nil: not known
	close    func()               // of what headers come from
	trust    string
	executes int64
	contents *archive.Contents
	// What CometBFT is told; nil: nothing.
	state  *sm.State
	commit *cmttypes.Commit
	before []lightblocks.Ancestor // over the transport only: RPC servers are asked for a header at a time
}

// prepare finds out whether the file can be imported, and whom to trust, and changes nothing.
func (i *importer) prepare(ctx context.Context) error {
	path := i.config.CometBFT.GenesisFile()
	if !i.o.StateOnly || isThere(path) {
		var err error
		if i.genesis, err = LoadGenesis(path); err != nil {
			return err
		}
		if want := i.genesis.ChainID; i.header.ChainID != want {
			return fmt.Errorf("%w: the snapshot file is of chain %q, the genesis file of %q", ErrOtherChain, i.header.ChainID, want)
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

// own looks at the home. It returns the app hash where the blocks of the home know it; nil: there are no blocks.
func (i *importer) own() (hash []byte, err error) {
	d, err := openOffline(i.config, true)
	if err != nil {
		return nil, stopTheNode(err, "import into another home")
	}
	defer func() { err = errors.Join(err, d.close()) }()
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
	executes := height == last || first > 0 && height >= first-1 && height < last // below that there may be headers, but no blocks
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

// progress is the height that CometBFT is at; known is false where it has nothing that a state could go on from (progress.none).
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

// refuseState refuses a home with a state. One that a join or an import left that was interrupted at its end is none.
func (i *importer) refuseState(zone *storage.State, mayBeLeft bool) error {
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

// fromOutside returns the app hash that a light client, or only the user, vouches for.
func (i *importer) fromOutside(ctx context.Context) ([]byte, error) {
	connect := i.o.Headers
	if trust := i.config.CometBFT.StateSync; connect == nil && i.genesis != nil {
		addresses, err := joinAddresses(i.config)
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
		i.before = ancestors(ctx, over.Verifier, state, i.config.App.Join.EvidenceHeaders, i.logger())
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	i.state, i.trust = &state, "the light client"
	return hash, nil
}

// checkTrust checks what CometBFT does only where state sync is enabled.
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

// lightClient is CometBFT's, as the [statesync] section says, which was checked.
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

// overTransport has headers from the transports of peers, as a join has.
func (i *importer) overTransport(ctx context.Context, genesis *cmttypes.GenesisDoc) (Headers, error) {
	logger := i.logger()
	key, err := loadNodeKey(i.config.CometBFT)
	if err != nil {
		return nil, err
	}
	addresses, err := joinAddresses(i.config)
	if err != nil {
		return nil, err
	}
	j := &fastJoin{n: &Node{config: i.config, log: logger, genesis: genesis, nodeKey: key, way: joinNew}, log: logger}
	if err := j.connect(addresses); err != nil {
		return nil, err
	}
	i.close = j.close
	if err := j.reach(ctx, i.config.App.Join.ReachTimeout); err != nil {
		return nil, err
	}
	return lightblocks.StateProvider{Verifier: j.verifier, Genesis: genesis, Timeout: bootstrapTimeout}, nil
}

// install changes the home.
func (i *importer) install(ctx context.Context) (err error) {
	config := i.config
	disk := newDiskWatch(config.App.Storage.MinFreeBytes, dataFolders(config.CometBFT)...)
	if err := disk.check(); err != nil {
		return err
	}
	options := stateOptions(config.CometBFT.DBDir(), false)
	zone, err := storage.Open(StateDir(config.CometBFT.DBDir()), options)
	if err != nil {
		return stopTheNode(err, "import into another home")
	}
	defer func() { err = errors.Join(err, zone.Close()) }()
	var databases *databases
	if i.state != nil { // before the restore, so that nothing else can be in the way after it
		databases = newDatabases(config.CometBFT, blocks.Options{Fatal: endProcess})
		defer func() { err = errors.Join(err, databases.closeAll()) }()
		have, err := databases.prepare(log.NewNopLogger())
		switch {
		case err != nil:
			return stopTheNode(err, "import into another home")
		case !have.none():
			return fmt.Errorf("%w: blocks have come meanwhile", ErrNotEmpty)
		case have.unbased:
			if err := databases.forgetState(log.NewNopLogger()); err != nil {
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
	i.reach("restored")
	if i.state == nil {
		return nil
	}
	return bootstrapped(databases, *i.state, i.commit, i.before)
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

// bootstrapped tells CometBFT. Where that fails it is as after a kill: whether CometBFT has got its state decides what the next start
// makes of it.
func bootstrapped(d *databases, state sm.State, commit *cmttypes.Commit, before []lightblocks.Ancestor) (err error) {
	defer func() { // so does CometBFT meet what it cannot write
		if cause := recover(); cause != nil {
			err = fmt.Errorf("CometBFT's databases in %s: %w", d.config.DBDir(), panicked(cause))
		}
	}()
	return d.bootstrap(state, commit, before)
}

// synced is a database whose writes are durable when they return.
type synced struct{ dbm.DB }

func (d synced) Set(key, value []byte) error { return d.SetSync(key, value) }

// restore reads the chunks, verifies them and writes them, some at a time; then the state is whole and durable.
func (i *importer) restore(ctx context.Context, zone *storage.State) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	target := &fileTarget{ctx: ctx, config: i.config, zone: zone, chainID: i.header.ChainID, progress: i.progress}
	restorer, err := statesync.BeginRestore(target, i.header.Height, i.contents.Manifest)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, restorer.Abort())
		}
	}()
	chunks := make(chan *archive.Chunk)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for chunk := range chunks {
				if ctx.Err() != nil {
					continue
				}
				if err := i.accept(restorer, chunk); err != nil {
					cancel(err)
				}
			}
		})
	}
	for chunk, err := range i.contents.Chunks() {
		if err != nil {
			cancel(err)
		}
		if ctx.Err() != nil {
			break
		}
		chunks <- chunk
	}
	close(chunks)
	workers.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	v, err := restorer.Commit()
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	v.Release()
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

// importProgress counts what several workers do.
type importProgress struct {
	tell func(stage ImportStage, done, total uint64)
	mu   sync.Mutex
	done uint64
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

// fileTarget is where the state of a file goes. Unlike a joining node's it takes any height, since no liar can make a node wait for one
// that nobody else has.
type fileTarget struct {
	ctx      context.Context // ends the reading back
	config   *Config
	zone     *storage.State
	chainID  string // the file's, which equals the genesis file's
	progress *importProgress
	manifest *avlstar.Manifest
	writing  *storage.Restore
	keys     atomic.Uint64 // written
}

var _ statesync.Builder = (*fileTarget)(nil)

func (t *fileTarget) Begin(_ int64, m *avlstar.Manifest) (err error) {
	t.manifest = m
	t.writing, err = t.zone.BeginRestore(nil) // without label: nobody resumes it, the file is there
	return err
}

func (t *fileTarget) Write(k uint32, c *avlstar.Chunk) error {
	t.keys.Add(c.Len())
	return t.writing.Add(storage.RunID(strconv.FormatUint(uint64(k), 10)), storageLeaves(statesync.Leaves(t.manifest, k, c)))
}

// Build reads back what was written, so that a state larger than memory can be imported, and what is on the disk is what was proved.
func (t *fileTarget) Build() (*avlstar.Version, error) {
	if err := t.writing.Readable(); err != nil {
		return nil, err
	}
	pages := &pages{zone: t.zone, cache: t.config.App.Storage.newCache(), log: log.NewNopLogger()}
	return readState(t.ctx, t.zone, t.manifest.ChunkBytes, pages, func(done uint64) { t.progress.checked(done, t.keys.Load()) })
}

func (t *fileTarget) Commit(height int64, v *avlstar.Version) error {
	params, err := app.ReadParams(v)
	if err != nil {
		return err
	}
	if params.ChainId != t.chainID {
		return fmt.Errorf("%w: the snapshot is of chain %q, its file says %q", ErrOtherChain, params.ChainId, t.chainID)
	}
	newest, err := newestAppVersion()
	if err != nil {
		return err
	}
	if params.AppVersion > newest {
		return &app.UpgradeError{Version: params.AppVersion, Newest: newest}
	}
	meta, err := metaOf(height, v)
	if err != nil {
		return err
	}
	return t.writing.Commit(meta)
}

func (t *fileTarget) Abort() error {
	if t.writing == nil {
		return nil
	}
	return t.writing.Abort()
}

// AddTrustFlags gives the settings that say whom a light client trusts a flag of the same name.
func AddTrustFlags(flags *pflag.FlagSet) {
	var fields []field
	for _, f := range fieldsOf(DefaultCometBFTConfig()) {
		if f.name == "statesync.rpc_servers" || strings.HasPrefix(f.name, "statesync.trust_") {
			fields = append(fields, f)
		}
	}
	for _, f := range fieldsOf(DefaultAppConfig()) {
		if f.name == "join.peers" {
			fields = append(fields, f)
		}
	}
	addFlags(flags, fields)
	period := flags.Lookup("statesync.trust_period")
	period.Hidden, period.Usage = false, "how old the trusted header may be"
}
