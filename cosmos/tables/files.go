package tables

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/starling-kv/starling/cosmos/nodedb"
)

// writer writes one table of an engine.
type writer interface {
	set(key, value []byte) error
	size() int64 // bytes so far
	// close returns the table's length. The caller syncs and closes the file.
	close() (int64, error)
}

// file is a table that has been written.
type file struct {
	nodedb.Range
	number int64
	size   int64
}

// maxSyncs is the number of concurrent syncs of files, while further files are written.
const maxSyncs = 8

// files numbers the tables of all runs, and collects the durable ones.
type files struct {
	create func(number int64) (*os.File, writer, error)
	limit  int64 // maximum length of a table
	syncs  chan struct{}
	wg     sync.WaitGroup

	mu     sync.Mutex
	next   int64  // guarded by mu
	tables []file // guarded by mu
	err    error  // first error of a sync; guarded by mu
}

func newFiles(first, limit int64, create func(number int64) (*os.File, writer, error)) *files {
	return &files{create: create, limit: limit, syncs: make(chan struct{}, maxSyncs), next: first}
}

// run implements nodedb.Run.
type run struct {
	f     *files
	out   *os.File
	w     writer // nil: no table is open
	table file
	last  []byte
}

func (f *files) run() nodedb.Run { return &run{f: f} }

func (r *run) Set(key, value []byte) error {
	if r.w != nil && r.w.size() >= r.f.limit {
		if err := r.Finish(); err != nil {
			return err
		}
	}
	if r.w == nil {
		r.f.mu.Lock()
		r.table = file{number: r.f.next}
		r.f.next++
		r.f.mu.Unlock()
		var err error
		if r.out, r.w, err = r.f.create(r.table.number); err != nil {
			return err
		}
		r.table.First = bytes.Clone(key)
	}
	r.last = append(r.last[:0], key...)
	return r.w.set(key, value)
}

func (r *run) Finish() (err error) {
	if r.w == nil {
		return nil
	}
	t, out := r.table, r.out
	t.Last = bytes.Clone(r.last)
	t.size, err = r.w.close()
	r.w, r.out = nil, nil
	if err != nil {
		return errors.Join(err, out.Close())
	}
	f := r.f
	f.syncs <- struct{}{}
	f.wg.Go(func() {
		defer func() { <-f.syncs }()
		err := errors.Join(out.Sync(), out.Close())
		f.mu.Lock()
		defer f.mu.Unlock()
		f.tables, f.err = append(f.tables, t), errors.Join(f.err, err)
	})
	return nil
}

// finished returns all tables in key order, once they are durable.
func (f *files) finished() ([]file, error) {
	f.wg.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	slices.SortFunc(f.tables, func(a, b file) int { return bytes.Compare(a.First, b.First) })
	ranges := make([]nodedb.Range, len(f.tables))
	for i, t := range f.tables {
		ranges[i] = t.Range
	}
	return f.tables, nodedb.CheckRanges(ranges)
}

// empty creates an empty folder, removing an old one.
func empty(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o755) //nolint:gosec // with the engines' permissions
}
