package config

import (
	"os"
	"path/filepath"

	cfg "github.com/cometbft/cometbft/config"
)

// StateDir is the folder of the state zone, in CometBFT's data folder.
func StateDir(dataDir string) string { return filepath.Join(dataDir, "state") }

// SnapshotsDir is the folder of stored snapshots, which survive a restart, in CometBFT's data
// folder.
func SnapshotsDir(dataDir string) string { return filepath.Join(dataDir, "snapshots") }

// EventsDir contains the changes of recent blocks, for watchers.
func EventsDir(dataDir string) string { return filepath.Join(dataDir, "events") }

// RangesDir contains the ranges of a storage node.
func RangesDir(dataDir string) string { return filepath.Join(dataDir, "ranges") }

// RangesLock is the file in RangesDir that a running storage node locks.
const RangesLock = "LOCK"

// TrustedHeaderFile is the file with the newest header that a storage node has proved.
func TrustedHeaderFile(dataDir string) string { return filepath.Join(dataDir, "trusted_header.json") }

// BlockZoneBackend is the db_backend of config.toml that puts CometBFT's databases into the block
// zone (storage/blocks). All others are CometBFT's own.
const BlockZoneBackend = "starling"

// BlocksDir is the folder of the block zone in CometBFT's data folder.
func BlocksDir(dataDir string) string { return filepath.Join(dataDir, "blocks") }

// DataFolders returns the folders of a node that may be on different disks, for example through
// links.
func DataFolders(c *cfg.Config) []string {
	dir := c.DBDir()
	return []string{
		dir, StateDir(dir), SnapshotsDir(dir), EventsDir(dir), BlocksDir(dir), filepath.Dir(c.Consensus.WalFile()), filepath.Dir(c.PrivValidatorStateFile()),
	}
}

// Holds returns the first of files that is inside dir, whatever path leads there; "": none is. Call
// it before removing dir: the configuration may put keys anywhere.
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

// Exists reports whether a path exists and can be accessed.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// CometPaths returns the folders of CometBFT's data for every db_backend: write-ahead log, block
// zone, and one per database. The state database comes last: a killed removal
// then never leaves a home that has blocks but no state.
func CometPaths(c *cfg.Config) []string {
	dir := c.DBDir()
	return []string{
		filepath.Dir(c.Consensus.WalFile()), BlocksDir(dir), filepath.Join(dir, "blockstore.db"), filepath.Join(dir, "evidence.db"),
		filepath.Join(dir, "tx_index.db"), filepath.Join(dir, "state.db"),
	}
}
