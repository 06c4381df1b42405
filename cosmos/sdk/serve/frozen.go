package serve

import (
	"errors"
	"sync"

	"github.com/cockroachdb/pebble"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/syndtr/goleveldb/leveldb"
	"github.com/syndtr/goleveldb/leveldb/iterator"
	"github.com/syndtr/goleveldb/leveldb/util"

	"github.com/starling-kv/starling/cosmos/nodedb"
)

// errUnsupported reports a database that has no snapshots that we know.
var errUnsupported = errors.New("only goleveldb and Pebble have snapshots that can be served")

var (
	errReleased = errors.New("the state is no longer served")
	errReadOnly = errors.New("a snapshot is not written to")
)

// frozen is a database as it was at a moment, whatever is pruned since. It is a nodedb.DB that
// cannot be written to.
type frozen struct {
	get     func(key []byte) ([]byte, error)
	iterate func(start, end []byte) (nodedb.Iterator, error)
	free    func() error

	mu       sync.Mutex
	users    int  // reads under way and open iterators; guarded by mu
	released bool // guarded by mu
}

// freeze takes the snapshot of a database, in less than a millisecond.
func freeze(db dbm.DB) (*frozen, error) {
	switch db := db.(type) {
	case *dbm.GoLevelDB:
		s, err := db.DB().GetSnapshot()
		if err != nil {
			return nil, err
		}
		return &frozen{get: func(key []byte) ([]byte, error) {
			v, err := s.Get(key, nil)
			if errors.Is(err, leveldb.ErrNotFound) {
				return nil, nil
			}
			return v, err
		}, iterate: func(start, end []byte) (nodedb.Iterator, error) {
			it := &levelIterator{Iterator: s.NewIterator(&util.Range{Start: start, Limit: end}, nil)}
			it.Next()
			return it, nil
		}, free: func() error { s.Release(); return nil }}, nil
	case *dbm.PebbleDB:
		s := db.DB().NewSnapshot()
		return &frozen{get: func(key []byte) ([]byte, error) {
			v, done, err := s.Get(key)
			if errors.Is(err, pebble.ErrNotFound) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			return append([]byte{}, v...), done.Close()
		}, iterate: func(start, end []byte) (nodedb.Iterator, error) {
			it, err := s.NewIter(&pebble.IterOptions{LowerBound: start, UpperBound: end})
			if err != nil {
				return nil, err
			}
			it.First()
			return pebbleIterator{it}, nil
		}, free: s.Close}, nil
	}
	return nil, errUnsupported
}

type levelIterator struct {
	iterator.Iterator
	valid bool
}

func (i *levelIterator) Valid() bool  { return i.valid }
func (i *levelIterator) Next()        { i.valid = i.Iterator.Next() }
func (i *levelIterator) Close() error { i.Release(); return nil }

type pebbleIterator struct{ *pebble.Iterator }

func (i pebbleIterator) Next() { i.Iterator.Next() }

func (f *frozen) enter() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.released {
		return errReleased
	}
	f.users++
	return nil
}

func (f *frozen) leave() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users--
	return f.freeUnused()
}

func (f *frozen) freeUnused() error {
	if !f.released || f.users > 0 {
		return nil
	}
	return f.free()
}

// release gives the snapshot back, once nothing reads it.
func (f *frozen) release() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.released {
		return nil
	}
	f.released = true
	return f.freeUnused()
}

// Get implements nodedb.DB.
func (f *frozen) Get(key []byte) ([]byte, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	v, err := f.get(key)
	return v, errors.Join(err, f.leave())
}

// Iterator implements nodedb.DB.
func (f *frozen) Iterator(start, end []byte) (nodedb.Iterator, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	it, err := f.iterate(start, end)
	if err != nil {
		return nil, errors.Join(err, f.leave())
	}
	return held{it, f}, nil
}

// held is an iterator that the snapshot waits for.
type held struct {
	nodedb.Iterator
	f *frozen
}

func (h held) Close() error { return errors.Join(h.Iterator.Close(), h.f.leave()) }

// NewBatch implements nodedb.DB, in form only.
func (f *frozen) NewBatch() nodedb.Batch { return noBatch{} }

type noBatch struct{}

func (noBatch) Set(_, _ []byte) error { return errReadOnly }
func (noBatch) Delete([]byte) error   { return errReadOnly }
func (noBatch) Write() error          { return errReadOnly }
func (noBatch) WriteSync() error      { return errReadOnly }
func (noBatch) Close() error          { return nil }
