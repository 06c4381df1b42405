package home

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"

	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

var (
	// ErrDamaged is wrapped by errors about data on disk, or in a file, that are damaged.
	ErrDamaged = storage.ErrCorrupt
	// ErrNoData: the home has no data to work on.
	ErrNoData = errors.New("no data")
	// ErrSharded: storage nodes keep the state of the home, so there is no state to work on.
	ErrSharded = errors.New("storage nodes keep the state of this home")
)

// cometDatabases are the IDs of CometBFT's databases.
var cometDatabases = []string{"blockstore", "state", "evidence", "tx_index"}

// offline is the data of a stopped node. It is used by one goroutine.
type offline struct {
	config    *config.Config
	sharded   bool              // storage nodes keep the state
	state     *storage.Zone     // nil: none
	databases *comet.Databases  // nil: none
	blocks    *store.BlockStore // nil: none
	comet     sm.Store          // CometBFT's state store; set if blocks is
}

func (d *offline) dataDir() string { return d.config.CometBFT.DBDir() }

// openOffline opens the data of the home. Errors: storage.ErrLocked and blocks.ErrLocked while a
// node runs; ErrDamaged.
func openOffline(conf *config.Config, readOnly bool) (_ *offline, err error) {
	d := &offline{config: conf}
	defer func() {
		if cause := recover(); cause != nil { // CometBFT panics when it cannot read
			err = fmt.Errorf("CometBFT's databases in %q: %w", d.dataDir(), comet.Panicked(cause))
		}
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	mode, _, err := config.ModeOf(d.dataDir())
	if err != nil {
		return d, err
	}
	d.sharded = mode == config.ModeSharded
	if !d.sharded {
		if d.state, err = openStateOffline(d.dataDir(), readOnly); err != nil {
			return d, err
		}
	}
	if !config.Exists(blocksPath(conf.CometBFT)) {
		return d, nil
	}
	d.databases = comet.NewDatabases(conf.CometBFT, log.NewNopLogger(), blocks.Options{ReadOnly: readOnly, Fatal: disk.EndProcess})
	if d.blocks, err = d.databases.Blocks(); err != nil {
		return d, err
	}
	if d.comet, err = d.databases.States(); err != nil {
		return d, err
	}
	return d, nil
}

// openStateOffline opens the state zone; nil: none.
func openStateOffline(dataDir string, readOnly bool) (*storage.Zone, error) {
	if !config.Exists(config.StateDir(dataDir)) {
		return nil, nil
	}
	return storage.Open(config.StateDir(dataDir), stateOptions(dataDir, readOnly))
}

func stateOptions(dataDir string, readOnly bool) storage.Options {
	return storage.Options{PinDir: config.SnapshotsDir(dataDir), ReadOnly: readOnly, CacheBytes: 32 << 20, Fatal: disk.EndProcess}
}

// blocksPath is the folder of CometBFT's databases, or of the first of them.
func blocksPath(c *cfg.Config) string {
	if c.DBBackend == config.BlockZoneBackend {
		return config.BlocksDir(c.DBDir())
	}
	return filepath.Join(c.DBDir(), "blockstore.db")
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
	return databases.Close()
}

// height returns the height of the state; 0: none.
func (d *offline) height() int64 {
	if d.state == nil {
		return 0
	}
	return d.state.Safe()
}

// folderBytes returns the size of all files in a folder; 0 if it does not exist.
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

// CompactedZone is the result of the compaction of a zone: its sizes in bytes.
type CompactedZone struct {
	Zone   string `json:"zone"`
	Folder string `json:"folder"`
	Before uint64 `json:"bytes_before"`
	After  uint64 `json:"bytes_after"`
}

// Compact rewrites state and blocks without overwritten, deleted or pruned records. Ending ctx
// interrupts it at any time and keeps the progress so far. progress is called with the bytes of a
// zone.
func Compact(ctx context.Context, conf *config.Config, progress func(zone string, done, total uint64)) ([]CompactedZone, error) {
	d, err := openOffline(conf, false)
	if err != nil {
		return nil, err
	}
	if d.state == nil && d.databases == nil {
		return nil, fmt.Errorf("%w in %q: nothing to compact", ErrNoData, d.dataDir())
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
		if err := end(); err != nil { // removes the old files
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
		err = compact("state", config.StateDir(d.dataDir()), func() error { return state.Compact(ctx, report("state")) }, d.closeState)
	}
	if err == nil && d.databases != nil {
		if zone := d.databases.BlockZone(); zone != nil {
			err = compact("blocks", config.BlocksDir(d.dataDir()), func() error { return zone.Compact(ctx, report("blocks")) }, d.closeBlocks)
		} else {
			err = d.compactOthers(compact, report)
		}
	}
	return zones, errors.Join(err, d.close())
}

// compactOthers compacts the databases of CometBFT's own db_backend one by one.
func (d *offline) compactOthers(compact func(zone, folder string, work, end func() error) error, report func(string) func(done, total uint64)) error {
	databases := d.databases
	for i, id := range cometDatabases {
		folder, last := filepath.Join(d.dataDir(), id+".db"), i == len(cometDatabases)-1
		if !config.Exists(folder) {
			continue
		}
		work := func() error {
			db, err := databases.DB(id)
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
