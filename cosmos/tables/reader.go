package tables

import (
	"errors"

	"github.com/cockroachdb/pebble"
	"github.com/syndtr/goleveldb/leveldb"
	"github.com/syndtr/goleveldb/leveldb/iterator"
	"github.com/syndtr/goleveldb/leveldb/opt"
	"github.com/syndtr/goleveldb/leveldb/util"

	"github.com/starling-kv/starling/cosmos/nodedb"
)

// ErrReadOnly reports a write to a database from ReadGoLevelDB or ReadPebble.
var ErrReadOnly = errors.New("this database is read-only")

// LevelReader is a goleveldb database, or a snapshot of one.
type LevelReader interface {
	Get(key []byte, o *opt.ReadOptions) ([]byte, error)
	NewIterator(r *util.Range, o *opt.ReadOptions) iterator.Iterator
}

// ReadGoLevelDB returns a read-only nodedb.DB over a goleveldb database or a snapshot of one.
// Unlike cosmos-db's, its iterators do not copy each key and value. Scanned blocks do not enter the
// engine's cache.
func ReadGoLevelDB(db LevelReader) nodedb.DB { return levelReads{db: db} }

type levelReads struct {
	unwritten
	db LevelReader
}

func (r levelReads) Get(key []byte) ([]byte, error) {
	v, err := r.db.Get(key, nil)
	if errors.Is(err, leveldb.ErrNotFound) {
		return nil, nil
	}
	return v, err
}

func (r levelReads) Iterator(start, end []byte) (nodedb.Iterator, error) {
	it := &levelIterator{Iterator: r.db.NewIterator(&util.Range{Start: start, Limit: end}, &opt.ReadOptions{DontFillCache: true})}
	it.Next()
	return it, nil
}

type levelIterator struct {
	iterator.Iterator
	valid bool
}

func (i *levelIterator) Valid() bool  { return i.valid }
func (i *levelIterator) Next()        { i.valid = i.Iterator.Next() }
func (i *levelIterator) Close() error { i.Release(); return nil }

// ReadPebble is ReadGoLevelDB for a Pebble database, or a snapshot of one.
func ReadPebble(db pebble.Reader) nodedb.DB { return pebbleReads{db: db} }

type pebbleReads struct {
	unwritten
	db pebble.Reader
}

func (r pebbleReads) Get(key []byte) ([]byte, error) {
	v, done, err := r.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return append([]byte{}, v...), done.Close()
}

func (r pebbleReads) Iterator(start, end []byte) (nodedb.Iterator, error) {
	it, err := r.db.NewIter(&pebble.IterOptions{LowerBound: start, UpperBound: end})
	if err != nil {
		return nil, err
	}
	return &pebbleIterator{it, it.First()}, nil
}

type pebbleIterator struct {
	*pebble.Iterator
	valid bool
}

func (i *pebbleIterator) Valid() bool { return i.valid }
func (i *pebbleIterator) Next()       { i.valid = i.Iterator.Next() }

// unwritten provides the write methods of a nodedb.DB, which all fail.
type unwritten struct{}

func (unwritten) NewBatch() nodedb.Batch { return unwritten{} }
func (unwritten) Set(_, _ []byte) error  { return ErrReadOnly }
func (unwritten) Delete([]byte) error    { return ErrReadOnly }
func (unwritten) Write() error           { return ErrReadOnly }
func (unwritten) WriteSync() error       { return ErrReadOnly }
func (unwritten) Close() error           { return nil }
