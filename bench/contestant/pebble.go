package contestant

import (
	"errors"
	"fmt"
	"path/filepath"

	"cosmossdk.io/core/store"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"github.com/starling-kv/starling/bench/harness"
)

// pebbleDB is the database below IAVL (iavl/db.DB). It has ample memory (256 MiB of block cache, 64
// MiB of memtable) and a Bloom filter, as the SDK's databases have.
type pebbleDB struct{ db *pebble.DB }

// bloomBits is the number of Bloom filter bits per key in the SDK's databases (cosmos-db,
// goleveldb.go).
const bloomBits = 10

func openPebble(dir string) (*pebbleDB, error) {
	cache := pebble.NewCache(256 << 20)
	defer cache.Unref()
	o := &pebble.Options{Cache: cache, MemTableSize: 64 << 20, Logger: harness.Quiet{}}
	o.EnsureDefaults()
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(bloomBits)
	}
	db, err := pebble.Open(filepath.Join(dir, "pebble"), o)
	if err != nil {
		return nil, fmt.Errorf("opening IAVL's database in %s: %w", dir, err)
	}
	return &pebbleDB{db}, nil
}

func (p *pebbleDB) Get(key []byte) ([]byte, error) {
	value, closer, err := p.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	return append(make([]byte, 0, len(value)), value...), nil
}

func (p *pebbleDB) Has(key []byte) (bool, error) {
	value, err := p.Get(key)
	return value != nil, err
}

func (p *pebbleDB) Iterator(start, end []byte) (store.Iterator, error) {
	return p.iterate(start, end, false)
}

func (p *pebbleDB) ReverseIterator(start, end []byte) (store.Iterator, error) {
	return p.iterate(start, end, true)
}

func (p *pebbleDB) iterate(start, end []byte, reverse bool) (store.Iterator, error) {
	iter, err := p.db.NewIter(&pebble.IterOptions{LowerBound: start, UpperBound: end})
	if err != nil {
		return nil, err
	}
	if reverse {
		iter.Last()
	} else {
		iter.First()
	}
	return &pebbleIterator{Iterator: iter, start: start, end: end, reverse: reverse}, nil
}

func (p *pebbleDB) Close() error { return p.db.Close() }

func (p *pebbleDB) NewBatch() store.Batch { return &pebbleBatch{p.db.NewBatch()} }

func (p *pebbleDB) NewBatchWithSize(n int) store.Batch { return &pebbleBatch{p.db.NewBatchWithSize(n)} }

type pebbleIterator struct {
	*pebble.Iterator
	start, end []byte
	reverse    bool
}

func (i *pebbleIterator) Domain() (start, end []byte) { return i.start, i.end }

func (i *pebbleIterator) Next() {
	if i.reverse {
		i.Prev()
	} else {
		i.Iterator.Next()
	}
}

func (i *pebbleIterator) Key() []byte   { return append([]byte{}, i.Iterator.Key()...) }
func (i *pebbleIterator) Value() []byte { return append([]byte{}, i.Iterator.Value()...) }

var errBatchDone = errors.New("the batch was written or closed")

type pebbleBatch struct{ batch *pebble.Batch } // nil once written or closed

func (b *pebbleBatch) Set(key, value []byte) error {
	if b.batch == nil {
		return errBatchDone
	}
	return b.batch.Set(key, value, nil)
}

func (b *pebbleBatch) Delete(key []byte) error {
	if b.batch == nil {
		return errBatchDone
	}
	return b.batch.Delete(key, nil)
}

func (b *pebbleBatch) Write() error { return b.write(pebble.NoSync) }

func (b *pebbleBatch) WriteSync() error { return b.write(pebble.Sync) }

func (b *pebbleBatch) write(options *pebble.WriteOptions) error {
	if b.batch == nil {
		return errBatchDone
	}
	return errors.Join(b.batch.Commit(options), b.Close())
}

func (b *pebbleBatch) Close() error {
	if b.batch == nil {
		return nil
	}
	batch := b.batch
	b.batch = nil
	return batch.Close()
}

func (b *pebbleBatch) GetByteSize() (int, error) {
	if b.batch == nil {
		return 0, errBatchDone
	}
	return b.batch.Len(), nil
}
