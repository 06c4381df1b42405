package node

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"syscall"

	dbm "github.com/cometbft/cometbft-db"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"
)

// databases opens CometBFT's databases and closes them: CometBFT itself leaves open what it had opened when NewNode fails, and
// the transaction index always.
type databases struct {
	config *cfg.Config
	mu     struct {
		sync.Mutex
		open map[string]*database
	}
}

// database can be closed twice: by CometBFT, and by databases.
type database struct {
	dbm.DB
	close func() error
}

func (d *database) Close() error { return d.close() }

func newDatabases(config *cfg.Config) *databases {
	d := &databases{config: config}
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
	db, err := cfg.DefaultDBProvider(ctx)
	if errors.Is(err, syscall.EAGAIN) {
		return nil, fmt.Errorf("database %s in %s: %w (is another node running on this home?)", ctx.ID, ctx.Config.DBDir(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("database %s in %s: %w", ctx.ID, ctx.Config.DBDir(), err)
	}
	d.mu.open[ctx.ID] = &database{DB: db, close: sync.OnceValue(db.Close)}
	return d.mu.open[ctx.ID], nil
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
	return errors.Join(errs...)
}

// progress is how far CometBFT's own databases are.
type progress struct {
	block, state int64 // heights of the last block it has, and of the last state it computed
	unbased      bool  // a state, but neither a block nor the commit that it stands on
}

// none: there is nothing that a state of the application could go on from.
func (p progress) none() bool { return p.block == 0 && (p.state == 0 || p.unbased) }

// prepare reads how far CometBFT is, and looks after the end of a state sync: CometBFT has the state after block H but no block.
// If the commit of H is there, CometBFT only has to be told that H was reached without blocks; if a crash came before it was
// saved, CometBFT can never go on: see forgetState.
func (d *databases) prepare(logger log.Logger) (progress, error) {
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
	p := progress{block: blocks.Height(), state: state.LastBlockHeight}
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
