package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	cfg "github.com/cometbft/cometbft/config"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"

	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// What commands do with the data of a stopped node. The locks of both zones keep a running one out.
//
//	Verify ────► reads the state, recomputes its root ──── compares it with what is stored and with the blocks' headers
//	Inspect ───► reads both zones
//	Compact ───► rewrites both zones
//	Rollback ──► the state zone first, then CometBFT's state (see there)

var (
	// ErrDamaged is wrapped where data on disk is not what was written.
	ErrDamaged = storage.ErrCorrupt
	// ErrNoData: there is nothing to work on.
	ErrNoData = errors.New("there is no data")
)

// cometDatabases are CometBFT's, by their IDs.
var cometDatabases = []string{"blockstore", "state", "evidence", "tx_index"}

// offline is the data of a stopped node.
type offline struct {
	config    *Config
	state     *storage.State    // nil: there is none
	databases *databases        // nil: there are none
	blocks    *store.BlockStore // nil: there are none
	comet     sm.Store          // CometBFT's state, where blocks are
}

func (d *offline) dataDir() string { return d.config.CometBFT.DBDir() }

// openOffline opens what is there.
func openOffline(config *Config, readOnly bool) (_ *offline, err error) {
	d := &offline{config: config}
	defer func() {
		if cause := recover(); cause != nil { // so does CometBFT meet what it cannot read
			err = fmt.Errorf("CometBFT's databases in %s: %w", d.dataDir(), panicked(cause))
		}
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.state, err = openStateOffline(d.dataDir(), readOnly); err != nil {
		return d, err
	}
	if !isThere(blocksPath(config.CometBFT)) {
		return d, nil
	}
	d.databases = newDatabases(config.CometBFT, blocks.Options{ReadOnly: readOnly})
	blockDB, err := d.databases.provide(&cfg.DBContext{ID: "blockstore", Config: config.CometBFT})
	if err != nil {
		return d, err
	}
	stateDB, err := d.databases.provide(&cfg.DBContext{ID: "state", Config: config.CometBFT})
	if err != nil {
		return d, err
	}
	d.blocks = store.NewBlockStore(blockDB)
	d.comet = sm.NewStore(stateDB, sm.StoreOptions{DiscardABCIResponses: config.CometBFT.Storage.DiscardABCIResponses})
	return d, nil
}

// openStateOffline returns nil where there is no state zone.
func openStateOffline(dataDir string, readOnly bool) (*storage.State, error) {
	if !isThere(StateDir(dataDir)) {
		return nil, nil
	}
	return storage.Open(StateDir(dataDir), stateOptions(dataDir, readOnly))
}

func stateOptions(dataDir string, readOnly bool) storage.Options {
	return storage.Options{PinDir: SnapshotsDir(dataDir), ReadOnly: readOnly, CacheBytes: 32 << 20, Fatal: endProcess}
}

// blocksPath is where CometBFT's databases lie, or the first of them.
func blocksPath(c *cfg.Config) string {
	if c.DBBackend == BlockZoneBackend {
		return BlocksDir(c.DBDir())
	}
	return filepath.Join(c.DBDir(), "blockstore.db")
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (d *offline) close() error { return errors.Join(d.closeState(), d.closeBlocks()) }

func (d *offline) closeState() error {
	state := d.state
	d.state = nil
	if state == nil {
		return nil
	}
	return state.Close()
}

func (d *offline) closeBlocks() error {
	databases := d.databases
	d.databases, d.blocks, d.comet = nil, nil, nil
	if databases == nil {
		return nil
	}
	return databases.closeAll()
}

// height is that of the state, 0: none.
func (d *offline) height() int64 {
	if d.state == nil {
		return 0
	}
	return d.state.Safe()
}

// folderBytes is the size of all files in a folder; 0 if it does not exist.
func folderBytes(dir string) (bytes uint64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			bytes += uint64(info.Size())
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return bytes, nil
	}
	return bytes, err
}

// CompactedZone is what a compaction has done to a zone.
type CompactedZone struct {
	Zone   string `json:"zone"`
	Folder string `json:"folder"`
	Before uint64 `json:"bytes_before"`
	After  uint64 `json:"bytes_after"`
}

// Compact rewrites state and blocks, so that what was overwritten, deleted or pruned takes no room. It may be broken off by ctx at any
// time. progress is told the bytes of a zone.
func Compact(ctx context.Context, config *Config, progress func(zone string, done, total uint64)) ([]CompactedZone, error) {
	d, err := openOffline(config, false)
	if err != nil {
		return nil, err
	}
	if d.state == nil && d.databases == nil {
		return nil, fmt.Errorf("%w in %s: nothing to compact", ErrNoData, d.dataDir())
	}
	var zones []CompactedZone
	compact := func(zone, folder string, work func() error, end func() error) error {
		z, err := CompactedZone{Zone: zone, Folder: folder}, ctx.Err()
		if err != nil {
			return err
		}
		if z.Before, err = folderBytes(folder); err != nil {
			return err
		}
		if err := work(); err != nil {
			return err
		}
		if err := end(); err != nil { // only then the old files are gone
			return err
		}
		z.After, err = folderBytes(folder)
		zones = append(zones, z)
		return err
	}
	report := func(zone string) func(done, total uint64) {
		return func(done, total uint64) { progress(zone, done, total) }
	}
	if d.state != nil {
		state := d.state
		err = compact("state", StateDir(d.dataDir()), func() error { return state.Compact(ctx, report("state")) }, d.closeState)
	}
	if err == nil && d.databases != nil {
		if zone := d.databases.blockZone(); zone != nil {
			err = compact("blocks", BlocksDir(d.dataDir()), func() error { return zone.Compact(ctx, report("blocks")) }, d.closeBlocks)
		} else {
			err = d.compactOthers(compact, report)
		}
	}
	return zones, errors.Join(err, d.close())
}

// compactOthers compacts the databases of a db_backend of CometBFT's own, each as a whole.
func (d *offline) compactOthers(compact func(zone, folder string, work, end func() error) error, report func(string) func(done, total uint64)) error {
	databases := d.databases
	for i, id := range cometDatabases {
		folder, last := filepath.Join(d.dataDir(), id+".db"), i == len(cometDatabases)-1
		if !isThere(folder) {
			continue
		}
		work := func() error {
			db, err := databases.provide(&cfg.DBContext{ID: id, Config: d.config.CometBFT})
			if err != nil {
				return err
			}
			report(id)(0, 1)
			defer report(id)(1, 1)
			return db.Compact(nil, nil)
		}
		end := func() error {
			if last {
				return d.closeBlocks()
			}
			return nil
		}
		if err := compact(id, folder, work, end); err != nil {
			return err
		}
	}
	return nil
}
