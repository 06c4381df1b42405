package home

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// Reset removes all data of a stopped node: blocks, state, snapshots, write-ahead log, indexes. It
// removes known names only, so that keys, the validator's signing state and all other files stay,
// wherever they are. It refuses the home of a storage node, whose ranges may be the last replicas.
// It returns the removed folders, also with an error.
func Reset(c *cfg.Config) ([]string, error) {
	dir := c.DBDir()
	ranges := config.RangesDir(dir)
	if _, err := os.Lstat(ranges); !errors.Is(err, fs.ErrNotExist) { // also if it cannot be read
		return nil, config.Invalid(fmt.Errorf("nothing is removed: this is the home of a storage node, and its ranges are in %q: check with `starlingd storage ranges` that other nodes have them, stop this node, and remove that folder",
			ranges))
	}
	if err := checkUnused(dir); err != nil {
		return nil, err
	}
	var removed []string
	// The mode file is removed last: until then, a sharded node can repair the home by itself.
	for _, path := range append(config.CometPaths(c), config.StateDir(dir), config.SnapshotsDir(dir), config.EventsDir(dir), config.ModeFile(dir)) {
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
