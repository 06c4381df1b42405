package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// Reset removes all data of a stopped node: blocks, state, snapshots, write-ahead log, indexes. It removes by name, so that keys, the
// validator's signing state and everything that it does not know stay, wherever they lie. It returns what it removed.
func Reset(c *cfg.Config) ([]string, error) {
	dir := c.DBDir()
	if err := checkUnused(dir); err != nil {
		return nil, err
	}
	var removed []string
	for _, path := range []string{
		filepath.Join(dir, "blockstore.db"), filepath.Join(dir, "state.db"), filepath.Join(dir, "evidence.db"), filepath.Join(dir, "tx_index.db"),
		BlocksDir(dir), filepath.Dir(c.Consensus.WalFile()), StateDir(dir), SnapshotsDir(dir),
	} {
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		if keeps, err := holds(path, c.PrivValidatorStateFile(), c.PrivValidatorKeyFile(), c.NodeKeyFile()); err != nil || keeps != "" {
			return removed, errors.Join(err, fmt.Errorf("%s is not removed: %s lies in it", path, keeps))
		}
		if err := os.RemoveAll(path); err != nil {
			return removed, err
		}
		removed = append(removed, path)
	}
	return removed, nil
}

// checkUnused makes sure that no node runs on the data, by the locks of both zones. Damaged ones are no obstacle. Whoever starts the
// node in this very moment has asked for two things at once.
func checkUnused(dataDir string) error {
	if _, err := os.Lstat(StateDir(dataDir)); err == nil {
		state, err := storage.Open(StateDir(dataDir), storage.Options{PinDir: SnapshotsDir(dataDir), ReadOnly: true})
		if errors.Is(err, storage.ErrLocked) {
			return fmt.Errorf("nothing is removed: %w", err)
		}
		if err == nil {
			_ = state.Close() // nothing was written
		}
	}
	if _, err := os.Lstat(BlocksDir(dataDir)); err == nil {
		zone, err := blocks.Open(BlocksDir(dataDir), blocks.Options{ReadOnly: true})
		if errors.Is(err, blocks.ErrLocked) {
			return fmt.Errorf("nothing is removed: %w", err)
		}
		if err == nil {
			_ = zone.Close() // nothing was written
		}
	}
	return nil
}

// holds returns the first of files that lies in dir.
func holds(dir string, files ...string) (string, error) {
	inside := ""
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		for _, file := range files {
			if other, err := os.Stat(file); err == nil && os.SameFile(info, other) {
				inside = file
				return filepath.SkipAll
			}
		}
		return nil
	})
	return inside, err
}
