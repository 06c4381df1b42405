package storagebench

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/syndtr/goleveldb/leveldb"
	"github.com/syndtr/goleveldb/leveldb/filter"
	"github.com/syndtr/goleveldb/leveldb/opt"

	"github.com/starling-kv/starling/bench/harness"
)

// engine is a key-value database with a write-ahead log.
type engine interface {
	write(b batch, prefix []byte) error
	// get calls use with the value of a key, or with nil if the key is absent. The value is valid
	// only during the call.
	get(key []byte, use func(value []byte) error) error
	counts() counts
	// busy reports whether flushes or compactions are running.
	busy() bool
	close() error
}

// counts are the bytes that an engine has written since it was opened.
type counts struct {
	Log       int64 `json:"log_bytes"`
	Flushed   int64 `json:"flushed_bytes"`
	Compacted int64 `json:"compacted_bytes"`
}

// zoneCounts are the counts of each of Starling's two stores. Segments are those of the block
// store, and are not included in its other counts.
type zoneCounts struct {
	Blocks   counts `json:"blocks"`
	State    counts `json:"state"`
	Segments int64  `json:"segment_bytes"`
}

func (z zoneCounts) minus(y zoneCounts) zoneCounts {
	return zoneCounts{z.Blocks.minus(y.Blocks), z.State.minus(y.State), z.Segments - y.Segments}
}

func (c counts) plus(d counts) counts {
	return counts{c.Log + d.Log, c.Flushed + d.Flushed, c.Compacted + d.Compacted}
}

func (c counts) minus(d counts) counts {
	return c.plus(counts{-d.Log, -d.Flushed, -d.Compacted})
}

const bloomBits = 10

// pebbleEngine is Pebble with its defaults, except for its memory and a Bloom filter. Most keys
// that are read are in deep levels.
type pebbleEngine struct{ db *pebble.DB }

// openPebble opens a database that shares its block cache with others.
func openPebble(dir string, memtables int64, cache *pebble.Cache) (*pebbleEngine, error) {
	o := &pebble.Options{
		Cache:                       cache,
		MemTableSize:                uint64(memtables / 2),
		MemTableStopWritesThreshold: 2,
		Logger:                      harness.Quiet{},
	}
	o.EnsureDefaults()
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(bloomBits)
	}
	db, err := pebble.Open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("opening the database in %s: %w", dir, err)
	}
	return &pebbleEngine{db}, nil
}

func (e *pebbleEngine) write(b batch, prefix []byte) error {
	out := e.db.NewBatchWithSize(b.bytes() + len(b.ops)*(len(prefix)+8))
	defer out.Close()
	var key []byte
	for _, o := range b.ops {
		var err error
		switch key = append(append(key[:0], prefix...), o.key...); o.kind {
		case opDelete:
			err = out.Delete(key, nil)
		default:
			err = out.Set(key, o.value, nil)
		}
		if err != nil {
			return err
		}
	}
	if b.sync {
		return out.Commit(pebble.Sync)
	}
	return out.Commit(pebble.NoSync)
}

func (e *pebbleEngine) get(key []byte, use func([]byte) error) error {
	value, closer, err := e.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return use(nil)
	}
	if err != nil {
		return err
	}
	defer closer.Close()
	return use(value)
}

func (e *pebbleEngine) counts() counts { return pebbleCounts(e.db.Metrics()) }

func pebbleCounts(m *pebble.Metrics) (c counts) {
	c.Log = int64(m.WAL.BytesWritten)
	for _, l := range m.Levels {
		c.Flushed += int64(l.TableBytesFlushed + l.BlobBytesFlushed)
		c.Compacted += int64(l.TableBytesCompacted + l.BlobBytesCompacted)
	}
	return c
}

func (e *pebbleEngine) busy() bool {
	m := e.db.Metrics()
	return m.Compact.NumInProgress > 0 || m.Flush.NumInProgress > 0
}

func (e *pebbleEngine) close() error { return e.db.Close() }

// leveldbEngine is goleveldb with the SDK's Bloom filter (cosmos-db, goleveldb.go).
type leveldbEngine struct{ db *leveldb.DB }

func openLevelDB(dir string, memtables, blockCache int64) (*leveldbEngine, error) {
	db, err := leveldb.OpenFile(dir, &opt.Options{
		BlockCacheCapacity: int(max(blockCache, 1)), // 0 stands for the default
		WriteBuffer:        int(memtables / 2),
		Filter:             filter.NewBloomFilter(bloomBits),
	})
	if err != nil {
		return nil, fmt.Errorf("opening the database in %s: %w", dir, err)
	}
	return &leveldbEngine{db}, nil
}

func (e *leveldbEngine) write(b batch, prefix []byte) error {
	out := leveldb.MakeBatch(b.bytes() + len(b.ops)*(len(prefix)+12))
	var key []byte
	for _, o := range b.ops {
		switch key = append(append(key[:0], prefix...), o.key...); o.kind {
		case opDelete:
			out.Delete(key)
		default:
			out.Put(key, o.value)
		}
	}
	return e.db.Write(out, &opt.WriteOptions{Sync: b.sync})
}

func (e *leveldbEngine) get(key []byte, use func([]byte) error) error {
	value, err := e.db.Get(key, nil)
	if errors.Is(err, leveldb.ErrNotFound) {
		return use(nil)
	}
	if err != nil {
		return err
	}
	return use(value)
}

// counts returns the counts of goleveldb's levels. goleveldb may flush a memtable to a level below
// 0, if no table overlaps it, and counts that as a compaction.
func (e *leveldbEngine) counts() (c counts) {
	var s leveldb.DBStats
	if e.db.Stats(&s) != nil { // the database is closed
		return c
	}
	for level, n := range s.LevelWrite {
		if level == 0 {
			c.Flushed += n
		} else {
			c.Compacted += n
		}
	}
	c.Log = int64(s.IOWrite) - c.Flushed - c.Compacted
	return c
}

// busy is unknown for goleveldb: settle relies on writes alone.
func (e *leveldbEngine) busy() bool { return false }

func (e *leveldbEngine) close() error { return e.db.Close() }
