package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cosmos/iavl"
	"github.com/cosmos/iavl/db"

	"github.com/starling-kv/starling/bench/workload"
)

// genesis is the app_state of a genesis file.
type genesis struct {
	Keys       int    `json:"keys"` // put before the first block; 0: none
	Seed       uint64 `json:"seed"`
	Interval   int64  `json:"snapshot_interval"` // blocks between two snapshots; 0: none
	ChunkBytes int    `json:"chunk_bytes"`
	// Background: a snapshot is made while blocks go on, as the Cosmos SDK does; if the last one is
	// not complete, the next is left out. Otherwise Commit returns after it, as in the paper.
	Background bool `json:"background"`
}

// fillBatch is the number of keys that the fill makes at a time.
const fillBatch = 10_000

// cacheNodes is the Cosmos SDK's default for iavl-cache-size.
const cacheNodes = 781_250

// versions returns the number of the tree's versions before the first block.
func (g genesis) versions() int64 { return int64(min(g.Keys, 1)) }

// app is the application. CometBFT calls it on several connections at the same time: mu guards what
// connections share. The tree belongs to the connection for snapshots during a state sync, and then
// to that for consensus.
type app struct {
	abci.BaseApplication
	genesis genesis
	dir     string
	lies    bool // snapshots have a false value
	db      db.DB
	tree    *iavl.MutableTree

	mu        sync.Mutex // guards the fields up to making
	height    int64
	hash      []byte
	snapshots []*snapshot // oldest first
	making    bool        // a snapshot in the background

	underway   sync.WaitGroup // snapshots in the background
	restoring  *restoring     // nil: none
	lastHeight int64          // of FinalizeBlock
}

// open opens the tree in a folder.
func open(g genesis, dir string) (*app, error) {
	a := &app{genesis: g, dir: dir}
	version, err := a.load()
	if err != nil {
		return nil, err
	}
	if version > g.versions() {
		a.publish(version - g.versions())
	}
	return a, nil
}

// database is the name of the tree's database.
const database = "iavl"

// load opens the tree, and returns its version. Fast storage, which only reads would use, is off.
// Writes are not synced, and no version is pruned: the SDK's default and its fastest setting.
func (a *app) load() (version int64, err error) {
	if a.db, err = db.NewGoLevelDB(database, a.dir); err != nil {
		return 0, fmt.Errorf("database of the tree: %w", err)
	}
	a.tree = iavl.NewMutableTree(a.db, cacheNodes, true, iavl.NewNopLogger())
	return a.tree.Load()
}

// clear replaces the tree by an empty one.
func (a *app) clear() error {
	err := errors.Join(a.tree.Close(), a.db.Close(), os.RemoveAll(filepath.Join(a.dir, database+".db")))
	if err == nil {
		_, err = a.load()
	}
	return err
}

func (a *app) close() error {
	a.underway.Wait()
	return errors.Join(a.tree.Close(), a.db.Close())
}

// publish makes the tree's newest version that of a height.
func (a *app) publish(height int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.height, a.hash = height, a.tree.Hash()
}

// Info implements abci.Application.
func (a *app) Info(context.Context, *abci.RequestInfo) (*abci.ResponseInfo, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &abci.ResponseInfo{LastBlockHeight: a.height, LastBlockAppHash: a.hash}, nil
}

// InitChain fills the tree.
func (a *app) InitChain(context.Context, *abci.RequestInitChain) (*abci.ResponseInitChain, error) {
	if a.genesis.Keys == 0 {
		return &abci.ResponseInitChain{}, nil
	}
	w, err := workload.New(workload.Spec{Seed: a.genesis.Seed, Keys: a.genesis.Keys, Batch: fillBatch}, 0)
	if err != nil {
		return nil, err
	}
	for !w.Loaded() {
		for _, c := range w.Next() {
			if _, err := a.tree.Set(c.Key, c.Value); err != nil {
				return nil, err
			}
		}
	}
	hash, _, err := a.tree.SaveVersion()
	return &abci.ResponseInitChain{AppHash: hash}, err
}

// split returns the key and the value of a transaction.
func split(tx []byte) (key, value []byte, ok bool) {
	key, value, ok = bytes.Cut(tx, []byte("="))
	return key, value, ok && len(key) > 0
}

const codeInvalid = 1

// CheckTx implements abci.Application.
func (a *app) CheckTx(_ context.Context, r *abci.RequestCheckTx) (*abci.ResponseCheckTx, error) {
	if _, _, ok := split(r.Tx); !ok {
		return &abci.ResponseCheckTx{Code: codeInvalid, Log: "not of the form key=value"}, nil
	}
	return &abci.ResponseCheckTx{GasWanted: 1}, nil
}

// FinalizeBlock implements abci.Application.
func (a *app) FinalizeBlock(_ context.Context, r *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	results := make([]*abci.ExecTxResult, len(r.Txs))
	for i, tx := range r.Txs {
		results[i] = &abci.ExecTxResult{}
		key, value, ok := split(tx)
		if !ok {
			results[i].Code = codeInvalid
			continue
		}
		if _, err := a.tree.Set(key, value); err != nil {
			return nil, err
		}
	}
	a.lastHeight = r.Height
	return &abci.ResponseFinalizeBlock{TxResults: results, AppHash: a.tree.WorkingHash()}, nil
}

// Commit saves the version, and makes a snapshot if it is time for one.
func (a *app) Commit(context.Context, *abci.RequestCommit) (*abci.ResponseCommit, error) {
	if _, _, err := a.tree.SaveVersion(); err != nil {
		return nil, err
	}
	a.publish(a.lastHeight)
	if a.genesis.Interval == 0 || a.lastHeight%a.genesis.Interval != 0 {
		return &abci.ResponseCommit{}, nil
	}
	return &abci.ResponseCommit{}, a.snapshot(a.lastHeight)
}
