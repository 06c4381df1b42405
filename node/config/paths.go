package config

import (
	"os"
	"path/filepath"

	cfg "github.com/cometbft/cometbft/config"
)

// StateDir is the folder of the state zone in CometBFT's data folder.
func StateDir(dataDir string) string { return filepath.Join(dataDir, "state") }

// SnapshotsDir is the folder of the snapshots that survive a restart, in CometBFT's data folder.
func SnapshotsDir(dataDir string) string { return filepath.Join(dataDir, "snapshots") }

// EventsDir contains what the last blocks have changed, for watchers.
func EventsDir(dataDir string) string { return filepath.Join(dataDir, "events") }

// UndoDir contains what the last blocks have replaced, to make the states before them again.
func UndoDir(dataDir string) string { return filepath.Join(dataDir, "undo") }

// BlockZoneBackend is the db_backend of config.toml that puts CometBFT's databases into the block
// zone (storage/blocks). All others are CometBFT's own.
const BlockZoneBackend = "starling"

// BlocksDir is the folder of the block zone in CometBFT's data folder.
func BlocksDir(dataDir string) string { return filepath.Join(dataDir, "blocks") }

// DataFolders returns the folders of a node that may lie on different disks, by links for example.
func DataFolders(c *cfg.Config) []string {
	dir := c.DBDir()
	return []string{
		dir, StateDir(dir), SnapshotsDir(dir), EventsDir(dir), UndoDir(dir), BlocksDir(dir), filepath.Dir(c.Consensus.WalFile()), filepath.Dir(c.PrivValidatorStateFile()),
	}
}

// Holds returns the first of files that lies in dir, by whatever path; "": none does. Whoever
// removes dir asks first, since configuration may put keys anywhere.
func Holds(dir string, files ...string) (string, error) {
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

// Exists reports whether there is anything at a path that can be looked at.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// CometPaths returns the folders of CometBFT's data for every db_backend: write-ahead log, block
// zone, and one per database. The state database comes last, so that a removal that is killed
// leaves a home whose other data are gone, not one without a state.
func CometPaths(c *cfg.Config) []string {
	dir := c.DBDir()
	return []string{
		filepath.Dir(c.Consensus.WalFile()), BlocksDir(dir), filepath.Join(dir, "blockstore.db"), filepath.Join(dir, "evidence.db"),
		filepath.Join(dir, "tx_index.db"), filepath.Join(dir, "state.db"),
	}
}
