package home

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// HasRanges reports whether a home is that of a storage node which has been started.
func HasRanges(c *cfg.Config) bool { return exists(config.RangesDir(c.DBDir())) }

// Reset removes all data of a stopped node: blocks, state, snapshots, write-ahead log, indexes. It
// removes known names only, so that keys, the validator's signing state and all other files stay,
// wherever they are. It refuses the home of a storage node, for which there is ResetStorage. It
// returns the removed folders, also with an error.
func Reset(c *cfg.Config) ([]string, error) {
	dir := c.DBDir()
	if HasRanges(c) {
		return nil, config.Invalid(fmt.Errorf("nothing is removed: this is the home of a storage node, and its ranges are in %q", config.RangesDir(dir)))
	}
	if err := checkUnused(dir); err != nil {
		return nil, err
	}
	// The mode file is removed last: until then, a sharded node can repair the home by itself.
	return removeData(c, append(config.CometPaths(c), config.StateDir(dir), config.SnapshotsDir(dir), config.EventsDir(dir), config.ModeFile(dir))...)
}

// ResetStorage removes all data of a stopped storage node: its ranges, with those that were put
// aside, their log, and the header that it trusts. Keys, the configuration, the map of the ranges
// and evidence of two chains stay. It does not check that other nodes have the ranges. It returns
// the removed paths, also with an error.
func ResetStorage(c *cfg.Config) (removed []string, err error) {
	ranges := config.RangesDir(c.DBDir())
	lock, err := vfs.Default.Lock(filepath.Join(ranges, config.RangesLock))
	if err != nil {
		return nil, fmt.Errorf("nothing is removed: %q cannot be locked: %w: is a storage node running in this home?", ranges, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	// The header goes first: if a kill leaves ranges, the next reset still finds them.
	return removeData(c, config.TrustedHeaderFile(c.DBDir()), ranges)
}

// removeData removes those of some paths that exist and do not contain keys. It returns the removed
// ones, also with an error.
func removeData(c *cfg.Config, paths ...string) (removed []string, err error) {
	for _, path := range paths {
		if !exists(path) {
			continue
		}
		if keeps, err := config.Holds(path, c.PrivValidatorStateFile(), c.PrivValidatorKeyFile(), c.NodeKeyFile()); err != nil || keeps != "" {
			return removed, errors.Join(err, fmt.Errorf("not removing %q: it contains %q", path, keeps))
		}
		if err := os.RemoveAll(path); err != nil {
			return removed, err
		}
		removed = append(removed, path)
	}
	return removed, nil
}

// checkUnused uses the locks of both zones to check that no node uses the data. It accepts damaged
// zones. It does not detect a node that is started between this check and the removal.
func checkUnused(dataDir string) error {
	if exists(config.StateDir(dataDir)) {
		state, err := storage.Open(config.StateDir(dataDir), storage.Options{PinDir: config.SnapshotsDir(dataDir), ReadOnly: true})
		if errors.Is(err, storage.ErrLocked) {
			return fmt.Errorf("nothing is removed: %w", err)
		}
		if err == nil {
			_ = state.Close() // nothing was written
		}
	}
	if exists(config.BlocksDir(dataDir)) {
		zone, err := blocks.Open(config.BlocksDir(dataDir), blocks.Options{ReadOnly: true})
		if errors.Is(err, blocks.ErrLocked) {
			return fmt.Errorf("nothing is removed: %w", err)
		}
		if err == nil {
			_ = zone.Close() // nothing was written
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
