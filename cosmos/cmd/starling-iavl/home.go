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
	"github.com/starling-kv/starling/internal/durable"
)

// Names of the databases in a home's data folder, without ".db".
const (
	applicationDB = "application"
	joiningDB     = "application-joining" // until it is complete
)

// chunksFolder is the folder of chunks in joiningDir.
const chunksFolder = "chunks"

// joiningDir returns the folder of an unfinished join, which has its lock and its chunks.
func joiningDir(home string) string { return filepath.Join(dataDir(home), "application-joining") }

func dataDir(home string) string { return filepath.Join(home, "data") }

func dbDir(home, name string) string { return filepath.Join(dataDir(home), name+dbm.DBFileSuffix) }

var errNoDatabase = errors.New("not a complete database of goleveldb or Pebble")

// backendOf returns the engine of a database. It fails with fs.ErrNotExist only if nothing can be
// lost: there is no folder, or no engine has written to it. It fails with errNoDatabase if the
// files are damaged or belong to another engine.
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
	// RocksDB's files have the same names. The numbers in the names of option files have six
	// digits, so the newest file is last.
	newest, err := os.ReadFile(options[len(options)-1])
	if err != nil {
		return "", noNotExist(err)
	}
	if bytes.Contains(newest, []byte("rocksdb_version=")) {
		return "", fmt.Errorf("RocksDB is not supported: %s belongs to it: %w", dir, errNoDatabase)
	}
	return dbm.PebbleDBBackend, nil
}

// sameEngine fails unless the engine of a database is the configured one.
func sameEngine(dir string, want dbm.BackendType) error {
	is, err := backendOf(dir)
	if err == nil && is != want {
		err = fmt.Errorf("%s is of %s, but %s is configured\nSet the engine back or, to start over, remove the database", dir, is, want)
	}
	return err
}

// bare reports whether a folder has only the locks and logs of an engine.
func bare(files []fs.DirEntry) bool {
	return !slices.ContainsFunc(files, func(f fs.DirEntry) bool {
		return f.IsDir() || f.Name() != "LOCK" && f.Name() != "LOG" && f.Name() != "LOG.old"
	})
}

// noNotExist hides fs.ErrNotExist, because a database with a missing file is still a database.
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
		return nil, fmt.Errorf("%w: %s is not the home of a node with a state (--home is the folder with data and config)", err, home)
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

// reads returns a database that is read without cosmos-db's copies.
func reads(db dbm.DB) nodedb.DB {
	switch db := db.(type) {
	case *dbm.GoLevelDB:
		return tables.ReadGoLevelDB(db.DB())
	case *dbm.PebbleDB:
		return tables.ReadPebble(db.DB())
	}
	return nodedb.Of(db)
}

// chain has CometBFT's databases, from which headers are served.
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

// openCometDB opens one of CometBFT's databases, with the engine of its files.
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

// cometDB adapts a database of cosmos-db to CometBFT's interface. Stock cometbft-db supports Pebble
// only with a build tag; the file formats are the same.
type cometDB struct{ dbm.DB }

func (d cometDB) Iterator(start, end []byte) (cmtdb.Iterator, error) {
	return d.DB.Iterator(start, end)
}

func (d cometDB) ReverseIterator(start, end []byte) (cmtdb.Iterator, error) {
	return d.DB.ReverseIterator(start, end)
}

func (d cometDB) NewBatch() cmtdb.Batch { return d.DB.NewBatch() }

func (cometDB) Compact(_, _ []byte) error { return nil }

// openChain opens CometBFT's databases. It returns nil if there are none, or if their engine is
// unknown.
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

// serverKey returns the key in a file, which it creates if it does not exist; "": a new key. It is
// not the node's key, because copies of a home would be one peer: if one of them is banned, so
// would be all others.
func serverKey(file string) (ed25519.PrivateKey, error) {
	if file == "" {
		_, fresh, err := ed25519.GenerateKey(nil)
		return fresh, err
	}
	key, err := p2p.LoadOrGenNodeKey(file)
	if err != nil {
		return nil, fmt.Errorf("--key: %w", err)
	}
	return key.PrivKey.Bytes(), nil
}

// trust is the trusted header that proved a state.
type trust struct {
	ChainID string `json:"chain_id"`
	Height  int64  `json:"trust_height"`
	Hash    string `json:"trust_hash"`
	State   int64  `json:"state_height"` // height of the state; 0 if it comes from a command line
}

func (t trust) path(home string) string { return filepath.Join(dataDir(home), joiningDB+".json") }

// write stores t durably in the data folder, for a join that is killed before rename.
func (t trust) write(home string) error {
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return durable.Write(t.path(home), b, 0o600)
}

// readTrust reads what write has written.
func readTrust(home string) (was trust, err error) {
	b, err := os.ReadFile(was.path(home))
	if err == nil {
		err = json.Unmarshal(b, &was)
	}
	return was, err
}

// same fails unless the complete join in a home was proved with t, at any height.
func (t trust) same(home string) error {
	was, err := readTrust(home)
	t.State = was.State
	switch {
	case err != nil:
		err = fmt.Errorf("the trusted header of the complete join is unknown: %w", err)
	case was != t:
		err = fmt.Errorf("the complete join was proved with another header: chain %q, height %d, hash %s", was.ChainID, was.Height, was.Hash)
	}
	if err != nil {
		return fmt.Errorf("%w\nTo start over, remove %s", err, dbDir(home, joiningDB))
	}
	return nil
}

// rename renames a complete database into place, durably.
func rename(home string) error {
	if err := durable.Rename(dbDir(home, joiningDB), dbDir(home, applicationDB)); err != nil {
		return err
	}
	return tidy(home)
}

// tidy removes the files of a join whose database is complete.
func tidy(home string) error {
	return errors.Join(os.RemoveAll(joiningDir(home)), os.Remove(trust{}.path(home)))
}
