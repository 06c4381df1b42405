package home

import (
	"errors"
	"fmt"
	"os"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// Reset removes all data of a stopped node: blocks, state, snapshots, write-ahead log, indexes. It
// removes by name, so that keys, the validator's signing state and everything else stay, wherever
// they lie. It returns the folders that it removed, also with an error.
func Reset(c *cfg.Config) ([]string, error) {
	dir := c.DBDir()
	if err := checkUnused(dir); err != nil {
		return nil, err
	}
	var removed []string
	// The mark goes last: until then the home is one that a sharded node mends by itself.
	for _, path := range append(config.CometPaths(c), config.StateDir(dir), config.SnapshotsDir(dir), config.EventsDir(dir), config.UndoDir(dir), config.ModeFile(dir)) {
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		if keeps, err := config.Holds(path, c.PrivValidatorStateFile(), c.PrivValidatorKeyFile(), c.NodeKeyFile()); err != nil || keeps != "" {
			return removed, errors.Join(err, fmt.Errorf("%q is not removed: %q lies in it", path, keeps))
		}
		if err := os.RemoveAll(path); err != nil {
			return removed, err
		}
		removed = append(removed, path)
	}
	return removed, nil
}

// checkUnused makes sure, by the locks of both zones, that no node uses the data. Damaged zones are
// no obstacle. A node that is started between this check and the removal is not noticed.
func checkUnused(dataDir string) error {
	if _, err := os.Lstat(config.StateDir(dataDir)); err == nil {
		state, err := storage.Open(config.StateDir(dataDir), storage.Options{PinDir: config.SnapshotsDir(dataDir), ReadOnly: true})
		if errors.Is(err, storage.ErrLocked) {
			return fmt.Errorf("nothing is removed: %w", err)
		}
		if err == nil {
			_ = state.Close() // nothing was written
		}
	}
	if _, err := os.Lstat(config.BlocksDir(dataDir)); err == nil {
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
