package nodedb

import (
	"bytes"
	"errors"
	"fmt"
)

// Tables makes a new database of runs of keys that are sorted already: nothing is sorted, logged or
// compacted a second time. All methods may be called at the same time, but for Commit.
type Tables interface {
	// Run begins a run of ascending keys. The ranges of no two runs overlap.
	Run() (Run, error)
	// Commit makes a durable database of all runs that were finished, and then, with one more
	// durable write, adds the last records. It closes the database.
	Commit(last []Record) error
}

// Run is a part of a database. It is used by one goroutine.
type Run interface {
	// Set adds a key that is greater than those before. Key and value may be modified afterwards.
	Set(key, value []byte) error
	Finish() error
}

// Record is a key with its value.
type Record struct{ Key, Value []byte }

// ErrOverlap reports runs whose ranges overlap, such as those of stores named "a" and "a/f".
var ErrOverlap = errors.New("sorted runs overlap")

// Range is the first and the last key of a run.
type Range struct{ First, Last []byte }

// CheckRanges fails with ErrOverlap unless sorted ranges follow each other.
func CheckRanges(sorted []Range) error {
	for i := 1; i < len(sorted); i++ {
		if a, b := sorted[i-1], sorted[i]; bytes.Compare(a.Last, b.First) >= 0 {
			return fmt.Errorf("%w: %q to %q, %q to %q", ErrOverlap, a.First, a.Last, b.First, b.Last)
		}
	}
	return nil
}

// InDB is a Tables over an open, empty database of any kind, which it does not close. It gains
// nothing but the interface. After a crash the database has to be removed.
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
	defer b.Close() //nolint:errcheck // it was written, or is thrown away
	for _, r := range last {
		if err := b.Set(r.Key, r.Value); err != nil {
			return err
		}
	}
	return b.WriteSync()
}
