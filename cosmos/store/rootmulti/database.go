package rootmulti

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"

	dbm "github.com/cosmos/cosmos-db"

	"github.com/cosmos/cosmos-sdk/store/v2/types"
)

// The keys of the SDK's multi-store that make a version durable.
const (
	latestKey     = "s/latest"
	infoKeyPrefix = "s/" // ‖ version, in decimal
)

// errBatch reports that the SDK does not write a version in the way that this package requires.
var errBatch = errors.New("the SDK's multi-store does not make a version durable in one synced batch")

// database wraps the multi-store's database for the SDK's multi-store. The SDK writes the commit
// info of a version and the number of the last version in one batch, with one sync. database adds
// the Starling stores to that commit info, and their record to that batch, so stores of all types
// become durable together.
//
//	SDK's Commit, Restore or RollbackToVersion ──► batch.Set("s/<version>", info) ──► merge ──► info of all stores
//	                                                                                   └─────► record of the Starling stores
//	                                               batch.Set("s/latest", version)
//	                                               batch.WriteSync()
type database struct {
	dbm.DB
	merge func(*types.CommitInfo, dbm.Batch) error // nil: no version is being written
	// whole is set while a commit writes. iavl, which looks at the sizes of its batches, then
	// writes the version of a store in one batch. Pruning reads whole on goroutines of its own.
	whole atomic.Bool
}

// merging calls write, which must make the SDK write exactly one version; otherwise merging panics.
// When the SDK writes the version's commit info, merge is called with it and with the batch, and
// adds the Starling stores to both. merging returns the error of write, which must not have written
// a version in that case.
func (d *database) merging(merge func(*types.CommitInfo, dbm.Batch) error, write func() error) error {
	versions := 0
	d.merge = func(info *types.CommitInfo, b dbm.Batch) error {
		versions++
		return merge(info, b)
	}
	defer func() { d.merge = nil }()
	if err := write(); err != nil {
		return err
	}
	if versions != 1 {
		panic(fmt.Errorf("%w: %d versions were written", errBatch, versions))
	}
	return nil
}

// NewBatch implements dbm.DB.
func (d *database) NewBatch() dbm.Batch { return &batch{Batch: d.DB.NewBatch(), db: d} }

// NewBatchWithSize implements dbm.DB.
func (d *database) NewBatchWithSize(size int) dbm.Batch {
	return &batch{Batch: d.DB.NewBatchWithSize(size), db: d}
}

type batch struct {
	dbm.Batch
	db           *database
	info, latest bool // whether the batch sets a commit info and the number of the last version
}

// Set implements dbm.Batch.
func (b *batch) Set(key, value []byte) error {
	switch {
	case string(key) == latestKey:
		b.latest = true
	case isInfoKey(key):
		if b.db.merge == nil {
			return fmt.Errorf("%w: unexpected write of %s", errBatch, key)
		}
		var info types.CommitInfo
		if err := info.Unmarshal(value); err != nil {
			return err
		}
		if err := b.db.merge(&info, b.Batch); err != nil {
			return err
		}
		var err error
		if value, err = info.Marshal(); err != nil {
			return err
		}
		b.info = true
	}
	return b.Batch.Set(key, value)
}

// GetByteSize implements dbm.Batch. A batch of a commit never seems to be full: iavl writes a batch
// before an entry with which it would exceed 100 KB, and begins another, so that a killed process
// leaves a part of a version. After a restart, iavl takes that part for the version, and iterators
// see its values (pull request 1107 of cosmos/iavl). A batch thus takes as much memory as a version
// changes in a store.
func (b *batch) GetByteSize() (int, error) {
	if b.db.whole.Load() {
		return math.MinInt32, nil
	}
	return b.Batch.GetByteSize()
}

// Write implements dbm.Batch.
func (b *batch) Write() error {
	if b.info {
		return fmt.Errorf("%w: the batch was written without a sync", errBatch)
	}
	return b.Batch.Write()
}

// WriteSync implements dbm.Batch.
func (b *batch) WriteSync() error {
	if b.info && !b.latest {
		return fmt.Errorf("%w: the batch does not set %s", errBatch, latestKey)
	}
	return b.Batch.WriteSync()
}

// isInfoKey reports whether key is the key of a version's commit info.
func isInfoKey(key []byte) bool {
	version, ok := strings.CutPrefix(string(key), infoKeyPrefix)
	return ok && version != "" && strings.Trim(version, "0123456789") == ""
}
