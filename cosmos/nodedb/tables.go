package nodedb

import (
	"bytes"
	"errors"
	"fmt"
)

// Tables makes a new database from sorted runs of keys: nothing is sorted, logged or compacted a
// second time. All methods except Commit may be called concurrently.
type Tables interface {
	// Run begins a run of ascending keys. The ranges of two runs must not overlap.
	Run() (Run, error)
	// Commit makes a durable database of all finished runs, and then adds the last records with one
	// more durable write. It closes the database.
	Commit(last []Record) error
}

// Run is a part of a database. It is not safe for concurrent use.
type Run interface {
	// Set adds a key that is greater than all before. Key and value may be modified afterwards.
	Set(key, value []byte) error
	Finish() error
}

// Record is a key and its value.
type Record struct{ Key, Value []byte }

// ErrOverlap reports runs with overlapping ranges, such as those of stores named "a" and "a/f".
var ErrOverlap = errors.New("sorted runs overlap")

// Range is the first and the last key of a run.
type Range struct{ First, Last []byte }

// CheckRanges fails with ErrOverlap unless sorted ranges are disjoint.
func CheckRanges(sorted []Range) error {
	for i := 1; i < len(sorted); i++ {
		if a, b := sorted[i-1], sorted[i]; bytes.Compare(a.Last, b.First) >= 0 {
			return fmt.Errorf("%w: %q to %q, %q to %q", ErrOverlap, a.First, a.Last, b.First, b.Last)
		}
	}
	return nil
}

// InDB returns a Tables over an open, empty database of any kind, which it does not close. It is
// not faster than batches. After a crash, the database must be removed.
func InDB(db DB) Tables { return &inDB{db: db} }

type inDB struct{ db DB }

// runBatchBytes is the length of a batch of a run.
const runBatchBytes = 4 << 20

type batchRun struct {
	t     *inDB
	b     Batch
	bytes int
}

func (t *inDB) Run() (Run, error) { return &batchRun{t: t, b: t.db.NewBatch()}, nil }

func (r *batchRun) Set(key, value []byte) error {
	if r.bytes += len(key) + len(value); r.bytes > runBatchBytes {
		if err := r.Finish(); err != nil {
			return err
		}
		r.b, r.bytes = r.t.db.NewBatch(), 0
	}
	return r.b.Set(bytes.Clone(key), append([]byte{}, value...))
}

func (r *batchRun) Finish() error { return errors.Join(r.b.WriteSync(), r.b.Close()) }

func (t *inDB) Commit(last []Record) error {
	b := t.db.NewBatch()
	defer b.Close() //nolint:errcheck // written or discarded
	for _, r := range last {
		if err := b.Set(r.Key, r.Value); err != nil {
			return err
		}
	}
	return b.WriteSync()
}
