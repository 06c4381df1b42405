package comet

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	dbm "github.com/cometbft/cometbft-db"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// Databases opens and closes CometBFT's databases. CometBFT itself leaves them open if NewNode
// fails, and never closes the transaction index. Databases is safe for concurrent use.
//
//	blockstore, state, evidence, tx_index ──db_backend = "starling"──► data/blocks: one zone
//	                                      └─any other────────────────► data/blockstore.db, …: one database each
type Databases struct {
	config *cfg.Config
	log    log.Logger
	zone   blocks.Options // options of the block zone

	mu struct {
		sync.Mutex
		open   map[string]*database // by ID
		blocks *blocks.Zone         // nil: not opened, or another backend is configured
		closed bool                 // Provide opens no database until Open
	}
	gap struct {
		sync.Mutex      // held while a gap is recorded
		wanted     bool // a block that stops the node needs the missing header
	}
}

// errClosed: a database was requested after Close.
var errClosed = errors.New("CometBFT's databases are closed")

// database may be closed twice: by CometBFT and by Databases.
//
// When CometBFT stops, it does not wait for its reactors' goroutines, and its block store panics if
// its database is closed. A goroutine that reads too late is therefore ended (runtime.Goexit, which
// runs its deferred calls): a panic would end the process, which may be about to start the next
// CometBFT.
type database struct {
	dbm.DB
	closed atomic.Bool
	close  func() error
}

func (d *database) Close() error {
	d.closed.Store(true)
	return d.close()
}

func (d *database) Get(key []byte) ([]byte, error) {
	value, err := d.DB.Get(key)
	d.endLate(err)
	return value, err
}

func (d *database) Has(key []byte) (bool, error) {
	has, err := d.DB.Has(key)
	d.endLate(err)
	return has, err
}

// endLate ends the calling goroutine if err means that it read a closed database.
func (d *database) endLate(err error) {
	if err != nil && (d.closed.Load() || errors.Is(err, blocks.ErrClosed)) {
		runtime.Goexit()
	}
}

// NewDatabases returns Databases with none open yet. zone holds the options of the block zone,
// which is used if config.toml selects it.
func NewDatabases(conf *cfg.Config, logger log.Logger, zone blocks.Options) *Databases {
	d := &Databases{config: conf, log: logger, zone: zone}
	d.mu.open = map[string]*database{}
	return d
}

// Provide is a cfg.DBProvider: it returns the same database for an ID until Close.
func (d *Databases) Provide(ctx *cfg.DBContext) (dbm.DB, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed {
		return nil, errClosed
	}
	if db, ok := d.mu.open[ctx.ID]; ok {
		return db, nil
	}
	db, err := d.openDB(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.open[ctx.ID] = &database{DB: db, close: sync.OnceValue(db.Close)}
	return d.mu.open[ctx.ID], nil
}

// openDB opens one database. The caller holds d.mu.
func (d *Databases) openDB(ctx *cfg.DBContext) (dbm.DB, error) {
	if ctx.Config.DBBackend == config.BlockZoneBackend {
		if d.mu.blocks == nil {
			zone, err := blocks.Open(config.BlocksDir(ctx.Config.DBDir()), d.zone)
			if errors.Is(err, storage.ErrCorrupt) {
				// The record of signed and received blocks is damaged: only the network can restore
				// it.
				err = fmt.Errorf("%w (`starlingd unsafe-reset-all` removes the data and keeps keys and signing state)", err)
			}
			if err != nil {
				return nil, err
			}
			d.mu.blocks = zone
		}
		return d.mu.blocks.DB(ctx.ID), nil
	}
	db, err := cfg.DefaultDBProvider(ctx)
	if errors.Is(err, syscall.EAGAIN) {
		return nil, fmt.Errorf("database %s in %q: %w (is another node running on this home?)", ctx.ID, ctx.Config.DBDir(), err)
	}
	if err != nil && strings.Contains(err.Error(), "unknown db_backend") { // cometbft-db's db.go
		return nil, config.Invalid(fmt.Errorf("%w; or %q, which is Starling's own and the default", err, config.BlockZoneBackend))
	}
	if err != nil {
		return nil, fmt.Errorf("database %s in %q: %w", ctx.ID, ctx.Config.DBDir(), err)
	}
	return db, nil
}

// BlockZone returns the open block zone; nil: none is open, or CometBFT uses another db_backend.
func (d *Databases) BlockZone() *blocks.Zone {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.blocks
}

// Close closes the open databases. It may be called more than once; Open opens them again.
func (d *Databases) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for id, db := range d.mu.open {
		if err := db.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close database %s: %w", id, err))
		}
	}
	if d.mu.blocks != nil {
		errs = append(errs, d.mu.blocks.Close())
	}
	clear(d.mu.open)
	d.mu.blocks, d.mu.closed = nil, true
	return errors.Join(errs...)
}

// DB returns the database with an ID.
func (d *Databases) DB(id string) (dbm.DB, error) {
	return d.Provide(&cfg.DBContext{ID: id, Config: d.config})
}

// Blocks is CometBFT's block store over its database.
func (d *Databases) Blocks() (*store.BlockStore, error) {
	db, err := d.DB("blockstore")
	if err != nil {
		return nil, err
	}
	return store.NewBlockStore(db), nil
}

// States is CometBFT's state store over its database.
func (d *Databases) States() (sm.Store, error) {
	db, err := d.DB("state")
	if err != nil {
		return nil, err
	}
	return d.states(db), nil
}

func (d *Databases) states(db dbm.DB) sm.Store {
	return storedStates{sm.NewStore(db, sm.StoreOptions{DiscardABCIResponses: d.config.Storage.DiscardABCIResponses}), db}
}

// OtherBackend returns a hint for an error about missing blocks if the folder of another db_backend
// has blocks; "": none has.
func OtherBackend(c *cfg.Config) string {
	dir, has := c.DBDir(), func(path string) bool { _, err := os.Lstat(path); return err == nil }
	switch old, zone := filepath.Join(dir, "blockstore.db"), config.BlocksDir(dir); {
	case c.DBBackend == config.BlockZoneBackend && has(old):
		return fmt.Sprintf(" (%q exists, from another db_backend than the %q in config.toml: restore the old setting)", old, c.DBBackend)
	case c.DBBackend != config.BlockZoneBackend && has(zone):
		return fmt.Sprintf(" (%q exists, from db_backend = %q, but config.toml has %q: restore the old setting)", zone, config.BlockZoneBackend, c.DBBackend)
	}
	return ""
}

// Heights are the heights that CometBFT's own databases have reached.
type Heights struct {
	Block, State int64 // height of the last block, and of the last state
	Base         int64 // first block; 0: none
	Unbased      bool  // there is a state, but neither a block nor the commit of the state's height
}

// None reports whether CometBFT has neither blocks nor a state to continue from.
func (p Heights) None() bool { return p.Block == 0 && (p.State == 0 || p.Unbased) }

// Open opens the databases, also after Close, and returns CometBFT's heights. After a state sync
// CometBFT has the state after block H but no block. If the commit of H is stored, Open records
// that H was reached without blocks. If a crash came before the commit was saved, CometBFT can
// never continue (Heights.Unbased): see ForgetState.
func (d *Databases) Open() (_ Heights, err error) {
	defer func() { // CometBFT panics when it cannot read
		if cause := recover(); cause != nil {
			err = fmt.Errorf("CometBFT's databases in %q: %w", d.config.DBDir(), Panicked(cause))
		}
	}()
	d.mu.Lock()
	d.mu.closed = false
	d.mu.Unlock()
	blocks, err := d.Blocks()
	if err != nil {
		return Heights{}, err
	}
	stateStore, err := d.States()
	if err != nil {
		return Heights{}, err
	}
	state, err := stateStore.Load()
	if err != nil {
		return Heights{}, fmt.Errorf("CometBFT's state database: %w", err)
	}
	p := Heights{Block: blocks.Height(), Base: blocks.Base(), State: state.LastBlockHeight}
	switch {
	case p.Block > 0 || p.State == 0:
	case blocks.LoadSeenCommit(p.State) == nil:
		p.Unbased = true
	default:
		d.log.Info("Continuing from the end of a state sync", "height", p.State)
		if err := stateStore.SetOfflineStateSyncHeight(p.State); err != nil {
			return Heights{}, fmt.Errorf("CometBFT's state database: %w", err)
		}
	}
	return p, nil
}

// Panicked converts the value of a panic to an error.
func Panicked(cause any) error {
	if err, is := cause.(error); is {
		return err
	}
	return fmt.Errorf("%v", cause)
}

// ForgetState empties CometBFT's state database, so that a join starts over.
func (d *Databases) ForgetState() error {
	stateDB, err := d.DB("state")
	if err != nil {
		return err
	}
	d.log.Info("A state sync was interrupted at its end: starting it again")
	if err := clearDatabase(stateDB); err != nil {
		return fmt.Errorf("CometBFT's state database: %w", err)
	}
	return nil
}

func clearDatabase(db dbm.DB) error {
	batch := db.NewBatch()
	defer func() { _ = batch.Close() }() // only an error of Write mattersSync
	it, err := db.Iterator(nil, nil)
	if err != nil {
		return err
	}
	for ; it.Valid() && err == nil; it.Next() {
		err = batch.Delete(bytes.Clone(it.Key()))
	}
	if err := errors.Join(err, it.Error(), it.Close()); err != nil {
		return err
	}
	return batch.WriteSync()
}

// PutAside empties CometBFT's databases and write-ahead log, which belong to a state that no longer
// exists, and opens them again. The validator's signing state stays, so that nothing is signed
// twice. A kill half-way leaves the home as after a join. With any false, only the remains of an
// earlier, killed PutAside are removed.
func (d *Databases) PutAside(any bool) error {
	if any {
		if err := d.Close(); err != nil {
			return err
		}
	}
	c := d.config
	dir := c.DBDir()
	keep := []string{c.PrivValidatorStateFile(), c.PrivValidatorKeyFile(), c.NodeKeyFile(), c.GenesisFile(), config.StateDir(dir), config.SnapshotsDir(dir)}
	for _, path := range config.CometPaths(c) {
		aside := path + ".old"
		if err := os.RemoveAll(aside); err != nil {
			return err
		}
		if !any {
			continue
		}
		if keeps, err := config.Holds(path, keep...); err == nil && keeps != "" {
			return fmt.Errorf("not removing %q: it contains %q", path, keeps)
		}
		if err := os.Rename(path, aside); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.RemoveAll(aside); err != nil {
			return err
		}
	}
	if !any {
		return nil
	}
	d.log.Info("Removed the old blocks: continuing from the new state")
	_, err := d.Open()
	return err
}
