package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	dbm "github.com/cometbft/cometbft-db"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"

	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// BlockZoneBackend is the db_backend of config.toml that puts CometBFT's databases into the block zone (storage/blocks). Every other
// is CometBFT's own.
const BlockZoneBackend = "starling"

// BlocksDir is where the block zone of a home folder lies, given CometBFT's data folder.
func BlocksDir(dataDir string) string { return filepath.Join(dataDir, "blocks") }

// databases opens CometBFT's databases and closes them: CometBFT itself leaves open what it had opened when NewNode fails, and
// the transaction index always.
//
//	blockstore, state, evidence, tx_index ──db_backend = "starling"──► data/blocks: one zone
//	                                      └─any other────────────────► data/blockstore.db, …: one database each
type databases struct {
	config *cfg.Config
	zone   blocks.Options // of the block zone
	mu     struct {
		sync.Mutex
		open   map[string]*database
		blocks *blocks.Zone // nil: not opened, or another backend
	}
}

// database can be closed twice: by CometBFT, and by databases.
type database struct {
	dbm.DB
	close func() error
}

func (d *database) Close() error { return d.close() }

func newDatabases(config *cfg.Config, zone blocks.Options) *databases {
	d := &databases{config: config, zone: zone}
	d.mu.open = map[string]*database{}
	return d
}

// provide is a cfg.DBProvider: an ID gives the same database each time.
func (d *databases) provide(ctx *cfg.DBContext) (dbm.DB, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
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
func (d *databases) openDB(ctx *cfg.DBContext) (dbm.DB, error) {
	if ctx.Config.DBBackend == BlockZoneBackend {
		if d.mu.blocks == nil {
			zone, err := blocks.Open(BlocksDir(ctx.Config.DBDir()), d.zone)
			if errors.Is(err, storage.ErrCorrupt) {
				// What is damaged is the record of what was signed and seen: only the network can bring it back.
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
		return nil, fmt.Errorf("database %s in %s: %w (is another node running on this home?)", ctx.ID, ctx.Config.DBDir(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("database %s in %s: %w", ctx.ID, ctx.Config.DBDir(), err)
	}
	return db, nil
}

// blockZone returns the block zone, nil where there is none.
func (d *databases) blockZone() *blocks.Zone {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.blocks
}

func (d *databases) closeAll() error {
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
	return errors.Join(errs...)
}

// otherBackend says whether blocks lie where another db_backend keeps them, as a hint to whoever misses them.
func otherBackend(c *cfg.Config) string {
	dir, has := c.DBDir(), func(path string) bool { _, err := os.Lstat(path); return err == nil }
	switch old, zone := filepath.Join(dir, "blockstore.db"), BlocksDir(dir); {
	case c.DBBackend == BlockZoneBackend && has(old):
		return fmt.Sprintf(" (there is %s, of another db_backend than the %q in config.toml: put the old one back)", old, c.DBBackend)
	case c.DBBackend != BlockZoneBackend && has(zone):
		return fmt.Sprintf(" (there is %s, of db_backend = %q, and config.toml says %q: put the old one back)", zone, BlockZoneBackend, c.DBBackend)
	}
	return ""
}

// progress is how far CometBFT's own databases are.
type progress struct {
	block, state int64 // heights of the last block it has, and of the last state it computed
	base         int64 // height of the first block it has; 0: none
	unbased      bool  // a state, but neither a block nor the commit that it stands on
}

// none: there is nothing that a state of the application could go on from.
func (p progress) none() bool { return p.block == 0 && (p.state == 0 || p.unbased) }

// prepare reads how far CometBFT is, and looks after the end of a state sync: CometBFT has the state after block H but no block.
// If the commit of H is there, CometBFT only has to be told that H was reached without blocks; if a crash came before it was
// saved, CometBFT can never go on: see forgetState.
func (d *databases) prepare(logger log.Logger) (_ progress, err error) {
	defer func() { // so does CometBFT meet what it cannot read
		if cause := recover(); cause != nil {
			err = fmt.Errorf("CometBFT's databases in %s: %w", d.config.DBDir(), panicked(cause))
		}
	}()
	blockDB, err := d.provide(&cfg.DBContext{ID: "blockstore", Config: d.config})
	if err != nil {
		return progress{}, err
	}
	stateDB, err := d.provide(&cfg.DBContext{ID: "state", Config: d.config})
	if err != nil {
		return progress{}, err
	}
	stateStore := sm.NewStore(stateDB, sm.StoreOptions{})
	state, err := stateStore.Load()
	if err != nil {
		return progress{}, fmt.Errorf("CometBFT's state database: %w", err)
	}
	blocks := store.NewBlockStore(blockDB)
	p := progress{block: blocks.Height(), base: blocks.Base(), state: state.LastBlockHeight}
	switch {
	case p.block > 0 || p.state == 0:
	case blocks.LoadSeenCommit(p.state) == nil:
		p.unbased = true
	default:
		logger.Info("Going on from the end of a state sync", "height", p.state)
		if err := stateStore.SetOfflineStateSyncHeight(p.state); err != nil {
			return progress{}, fmt.Errorf("CometBFT's state database: %w", err)
		}
	}
	return p, nil
}

// panicked is the error that a panic was about.
func panicked(cause any) error {
	if err, is := cause.(error); is {
		return err
	}
	return fmt.Errorf("%v", cause)
}

// forgetState empties CometBFT's state database, so that a join begins anew.
func (d *databases) forgetState(logger log.Logger) error {
	stateDB, err := d.provide(&cfg.DBContext{ID: "state", Config: d.config})
	if err != nil {
		return err
	}
	logger.Info("A state sync was interrupted at its end: beginning anew")
	if err := clearDatabase(stateDB); err != nil {
		return fmt.Errorf("CometBFT's state database: %w", err)
	}
	return nil
}

func clearDatabase(db dbm.DB) error {
	batch := db.NewBatch()
	defer func() { _ = batch.Close() }() // WriteSync says what matters
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
