package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	cmtdb "github.com/cometbft/cometbft-db"
	"github.com/cometbft/cometbft/p2p"
	sm "github.com/cometbft/cometbft/state"
	cmtstore "github.com/cometbft/cometbft/store"
	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/tables"
)

// Names of databases in a home's data folder, without ".db".
const (
	applicationDB = "application"
	joiningDB     = "application-joining" // until it has its name
)

// chunksFolder is in joiningDir.
const chunksFolder = "chunks"

// joiningDir returns the folder of a join that is not complete: its lock, and the chunks so far.
func joiningDir(home string) string { return filepath.Join(dataDir(home), "application-joining") }

func dataDir(home string) string { return filepath.Join(home, "data") }

func dbDir(home, name string) string { return filepath.Join(dataDir(home), name+dbm.DBFileSuffix) }

var errNoDatabase = errors.New("no whole database of goleveldb or Pebble")

// backendOf returns the engine of a database. It fails with fs.ErrNotExist only if there is nothing
// that could be lost: no folder, or one in which an engine had not begun to write. What has files
// that it does not know is damaged, or another engine's: errNoDatabase.
func backendOf(dir string) (dbm.BackendType, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if bare(files) {
		return "", fmt.Errorf("%s has no database: %w", dir, fs.ErrNotExist)
	}
	if _, err := os.Stat(filepath.Join(dir, "CURRENT")); err != nil {
		return "", fmt.Errorf("%s: %w: %w", dir, errNoDatabase, noNotExist(err))
	}
	options, err := filepath.Glob(filepath.Join(dir, "OPTIONS-*")) // goleveldb has none
	if err != nil {
		return "", err
	}
	if len(options) == 0 {
		return dbm.GoLevelDBBackend, nil
	}
	// RocksDB's files have the same names. The numbers of options have six digits, the newest comes
	// last.
	newest, err := os.ReadFile(options[len(options)-1])
	if err != nil {
		return "", noNotExist(err)
	}
	if bytes.Contains(newest, []byte("rocksdb_version=")) {
		return "", fmt.Errorf("%s is of RocksDB: %w", dir, errNoDatabase)
	}
	return dbm.PebbleDBBackend, nil
}

// sameEngine fails unless a database that is there is of the engine that the home's settings want.
func sameEngine(dir string, want dbm.BackendType) error {
	is, err := backendOf(dir)
	if err == nil && is != want {
		err = fmt.Errorf("%s is of %s, and %s is wanted now\nSet the engine back; or, to begin anew, remove it", dir, is, want)
	}
	return err
}

// bare reports whether a folder has nothing but locks and logs of what an engine does.
func bare(files []fs.DirEntry) bool {
	return !slices.ContainsFunc(files, func(f fs.DirEntry) bool {
		return f.IsDir() || f.Name() != "LOCK" && f.Name() != "LOG" && f.Name() != "LOG.old"
	})
}

// noNotExist hides that an error is fs.ErrNotExist: that a file of a database is missing does not
// mean that there is no database.
func noNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New(err.Error())
	}
	return err
}

// openApplication opens the application's database of a stopped node.
func openApplication(home string) (dbm.DB, error) {
	backend, err := backendOf(dbDir(home, applicationDB))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is no home of a node with a state (--home is the folder that has data and config)", err, home)
	}
	if err != nil {
		return nil, err
	}
	db, err := dbm.NewDB(applicationDB, backend, dataDir(home))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w (is its node stopped?)", dbDir(home, applicationDB), err)
	}
	return db, nil
}

// reads returns a database without the copies that cosmos-db makes of all that is read.
func reads(db dbm.DB) nodedb.DB {
	switch db := db.(type) {
	case *dbm.GoLevelDB:
		return tables.ReadGoLevelDB(db.DB())
	case *dbm.PebbleDB:
		return tables.ReadPebble(db.DB())
	}
	return nodedb.Of(db)
}

// chain is what CometBFT keeps of the chain, from which headers are served.
type chain struct {
	id     string
	blocks *cmtstore.BlockStore
	states sm.Store
	closes []func() error
}

func (c *chain) Close() (err error) {
	for _, fn := range c.closes {
		err = errors.Join(err, fn())
	}
	return err
}

// openCometDB opens one of CometBFT's databases, with the engine that it has.
func openCometDB(home, name string) (cmtdb.DB, error) {
	backend, err := backendOf(dbDir(home, name))
	if err != nil {
		return nil, err
	}
	db, err := dbm.NewDB(name, backend, dataDir(home))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dbDir(home, name), noNotExist(err))
	}
	return cometDB{db}, nil
}

// cometDB is a database of cosmos-db as CometBFT wants one. Stock cometbft-db has Pebble behind a
// build tag only; the formats are equal.
type cometDB struct{ dbm.DB }

func (d cometDB) Iterator(start, end []byte) (cmtdb.Iterator, error) {
	return d.DB.Iterator(start, end)
}

func (d cometDB) ReverseIterator(start, end []byte) (cmtdb.Iterator, error) {
	return d.DB.ReverseIterator(start, end)
}

func (d cometDB) NewBatch() cmtdb.Batch { return d.DB.NewBatch() }

func (cometDB) Compact(_, _ []byte) error { return nil }

// openChain opens CometBFT's databases; nil: there are none of an engine that is known.
func openChain(home string) (*chain, error) {
	c := &chain{}
	var opened []cmtdb.DB
	for _, name := range []string{"blockstore", "state"} {
		db, err := openCometDB(home, name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoDatabase) {
			return nil, c.Close()
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w (is its node stopped?)", err), c.Close())
		}
		opened = append(opened, db)
		c.closes = append(c.closes, db.Close)
	}
	c.blocks = cmtstore.NewBlockStore(opened[0])
	c.states = sm.NewStore(opened[1], sm.StoreOptions{})
	meta := c.blocks.LoadBlockMeta(c.blocks.Height())
	if meta == nil {
		return nil, c.Close()
	}
	c.id = meta.Header.ChainID
	return c, nil
}

// nodeKey returns the key of the home's node; a new one if it has none.
func nodeKey(home string) (ed25519.PrivateKey, error) {
	key, err := p2p.LoadNodeKey(filepath.Join(home, "config", "node_key.json"))
	if errors.Is(err, fs.ErrNotExist) {
		_, fresh, err := ed25519.GenerateKey(nil)
		return fresh, err
	}
	if err != nil {
		return nil, fmt.Errorf("key of the node: %w", err)
	}
	return key.PrivKey.Bytes(), nil
}

// trust is what a state was proved with.
type trust struct {
	ChainID string `json:"chain_id"`
	Height  int64  `json:"trust_height"`
	Hash    string `json:"trust_hash"`
	State   int64  `json:"state_height"` // height of the state; 0 in what a command line has
}

func (t trust) path(home string) string { return filepath.Join(dataDir(home), joiningDB+".json") }

// write keeps t beside the joining database, durably, for a join that is killed before rename.
func (t trust) write(home string) error {
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(t.path(home), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close(), syncData(home))
}

// readTrust returns what write has kept.
func readTrust(home string) (was trust, err error) {
	b, err := os.ReadFile(was.path(home))
	if err == nil {
		err = json.Unmarshal(b, &was)
	}
	return was, err
}

// same fails unless the complete join of a home, at whatever height, was proved with t.
func (t trust) same(home string) error {
	was, err := readTrust(home)
	t.State = was.State
	switch {
	case err != nil:
		err = fmt.Errorf("it is not known what the complete join was proved with: %w", err)
	case was != t:
		err = fmt.Errorf("the complete join was proved with another trust: chain %q, height %d, hash %s", was.ChainID, was.Height, was.Hash)
	}
	if err != nil {
		return fmt.Errorf("%w\nTo begin anew, remove %s", err, dbDir(home, joiningDB))
	}
	return nil
}

// rename gives a complete database its name, durably.
func rename(home string) error {
	if err := os.Rename(dbDir(home, joiningDB), dbDir(home, applicationDB)); err != nil {
		return err
	}
	if err := syncData(home); err != nil {
		return err
	}
	return tidy(home)
}

// tidy removes what a join has left beside the complete database.
func tidy(home string) error {
	return errors.Join(os.RemoveAll(joiningDir(home)), os.Remove(trust{}.path(home)))
}

func syncData(home string) error {
	dir, err := os.Open(dataDir(home))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
