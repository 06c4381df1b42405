package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/storage"
)

// Reset removes all data of a stopped node: blocks, state, write-ahead log, indexes. It removes by name, so that keys, the
// validator's signing state and everything that it does not know stay, wherever they lie. It returns what it removed.
func Reset(c *cfg.Config) ([]string, error) {
	dir := c.DBDir()
	state, err := openForReset(StateDir(dir))
	if err != nil {
		return nil, err
	}
	// Closing lets go of the lock; whoever starts the node in this very moment has asked for two things at once.
	if state != nil {
		if err := state.Close(); err != nil {
			return nil, err
		}
	}
	var removed []string
	for _, path := range []string{
		filepath.Join(dir, "blockstore.db"), filepath.Join(dir, "state.db"), filepath.Join(dir, "evidence.db"), filepath.Join(dir, "tx_index.db"),
		filepath.Dir(c.Consensus.WalFile()), StateDir(dir),
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

// openForReset makes sure that no node runs on the data. A damaged state is no obstacle.
func openForReset(dir string) (*storage.State, error) {
	if _, err := os.Lstat(dir); err != nil {
		return nil, nil //nolint:nilerr // no state, no lock
	}
	state, err := storage.Open(dir, storage.Options{})
	if err != nil && errors.Is(err, storage.ErrLocked) {
		return nil, fmt.Errorf("nothing is removed: %w", err)
	}
	return state, nil
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
