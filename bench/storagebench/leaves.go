package storagebench

import (
	"bytes"
	"errors"
	"iter"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/storage/sgc"
)

// Kinds of records in package storage: the value of a leaf, and the height of the inner node with a
// key.
const (
	kindLeaf   = 'k'
	kindHeight = 'h'
)

// leavesLayout is the step between zones and package storage. It has the same two databases with
// their logs, but stores the state as leaves in key order and heights, and reads it by pages. Pages
// and block records share a cache.
type leavesLayout struct {
	Spec
	blocks, state *pebbleEngine
	cache         *sgc.Cache
	pages         *pages // nil unless open for reading
	leaf, height  *pebble.Iterator
	buf           []byte
	memory        memoryPlan
}

// planPages divides the budget of a contestant with pages. The block cache holds little more than
// indexes and filters, because everything read through it is cached above it.
//
// The tree above the pages is always in memory. If the limit of the caches is smaller, they have
// nothing.
func planPages(budget, upper int64, r *reading) memoryPlan {
	caches := r.caches(budget)
	p := memoryPlan{Memtables: budget * memtableShare / 16, Upper: upper}
	p.BlockCache = min(budget*blockCacheShare/16, caches/3, max(0, caches-upper))
	p.Cache = max(0, caches-upper-p.BlockCache)
	return p
}

// blockCacheShare is the share of the budget for the block cache, in sixteenths.
const blockCacheShare = 4

func openLeaves(dir string, spec Spec, budget int64, r *reading) (l *leavesLayout, err error) {
	l = &leavesLayout{Spec: spec, memory: planPages(budget, 0, r)}
	cache := pebble.NewCache(l.memory.BlockCache)
	defer cache.Unref()
	if l.blocks, l.state, err = openZones(dir, l.memory.Memtables, cache); err != nil || r == nil {
		return l, err
	}
	l.pages = &r.pages
	l.pages.Zone = l
	if err := l.pages.load(r.model, l.leaves()); err != nil {
		return nil, errors.Join(err, l.close())
	}
	l.memory = planPages(budget, l.pages.upper(), r)
	l.cache = r.mode.open(l.memory)
	l.pages.Cache = l.cache
	return l, nil
}

// leaves yields all leaves of the state.
func (l *leavesLayout) leaves() iter.Seq2[record.Leaf, error] {
	return func(yield func(record.Leaf, error) bool) {
		stopped := false
		err := l.scan(nil, nil, func(key, value []byte, height uint8) bool {
			stopped = !yield(record.Leaf{Key: key, Value: value, Height: height}, nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield(record.Leaf{}, err)
		}
	}
}

func (l *leavesLayout) replay(_ int64, blocks []batch, state batch) error {
	for _, b := range blocks {
		if err := l.blocks.write(b, []byte{b.db}); err != nil {
			return err
		}
	}
	return l.writeState(state)
}

func (l *leavesLayout) writeState(state batch) error {
	out := l.state.db.NewBatchWithSize(state.bytes() + 12*len(state.ops))
	defer out.Close()
	var key []byte
	diskKey := func(kind byte, of []byte) []byte {
		key = append(append(key[:0], kind), of...)
		return key
	}
	var err error
	for _, o := range state.ops {
		switch o.kind {
		case opSet:
			err = errors.Join(err, out.Set(diskKey(kindLeaf, o.key), o.value, nil))
		case opDelete:
			err = errors.Join(err, out.Delete(diskKey(kindLeaf, o.key), nil), out.Delete(diskKey(kindHeight, o.key), nil))
		case opHeight:
			err = errors.Join(err, out.Set(diskKey(kindHeight, o.key), o.value, nil))
		}
	}
	if err != nil {
		return err
	}
	return out.Commit(pebble.Sync)
}

func (l *leavesLayout) drain() error { return nil } // nothing to do: the log is durable

func (l *leavesLayout) busy() bool { return l.blocks.busy() || l.state.busy() }

func (l *leavesLayout) counts() counts { return l.blocks.counts().plus(l.state.counts()) }

func (l *leavesLayout) hits() cacheHits { return hitsOf(l.cache) }

func hitsOf(c *sgc.Cache) cacheHits {
	s := c.Stats()
	state, blocks := s.Zones[sgc.State], s.Zones[sgc.Blocks]
	return cacheHits{state.Hits, state.Misses, blocks.Hits, blocks.Misses}
}

func (l *leavesLayout) plan() memoryPlan { return l.memory }

func (l *leavesLayout) close() error {
	var err error
	if l.leaf != nil {
		err = errors.Join(l.leaf.Close(), l.height.Close())
	}
	return errors.Join(err, l.blocks.close(), l.state.close())
}

func (l *leavesLayout) tx(height, tx int, use func(record, part []byte) error) error {
	return readTx(l.Spec, height, tx, func(db byte, key []byte, use func([]byte) error) error {
		key = append([]byte{db}, key...)
		if cached, ok := l.cache.GetBytes(sgc.Blocks, key, nil); ok {
			return use(cached)
		}
		return l.blocks.get(key, func(value []byte) error {
			l.cache.PutBytes(sgc.Blocks, key, value)
			return use(value)
		})
	}, use)
}

func (l *leavesLayout) account(key []byte, use func([]byte) error) error {
	return l.pages.account(key, use)
}

// scan merges leaves and heights with keys in [first, after); nil is unbounded. Every height
// belongs to a leaf.
func (l *leavesLayout) scan(first, after []byte, take func(key, value []byte, height uint8) bool) (err error) {
	if l.leaf == nil {
		if l.leaf, err = l.iterator(kindLeaf); err != nil {
			return err
		}
		if l.height, err = l.iterator(kindHeight); err != nil {
			return err
		}
	}
	var seek [1 + keyBytes]byte
	l.leaf.SeekGE(append(append(seek[:0], kindLeaf), first...))
	l.height.SeekGE(append(append(seek[:0], kindHeight), first...))
	for ; l.leaf.Valid(); l.leaf.Next() {
		key := l.leaf.Key()[1:]
		if after != nil && bytes.Compare(key, after) >= 0 {
			break
		}
		height := byte(0)
		if l.height.Valid() && bytes.Equal(l.height.Key()[1:], key) {
			height = l.height.Value()[0]
			l.height.Next()
		}
		value, err := l.leaf.ValueAndErr()
		if err != nil {
			return err
		}
		if !take(key, value, height) {
			return nil
		}
	}
	return errors.Join(l.leaf.Error(), l.height.Error())
}

var errPage = errors.New("the page on disk does not have the hash in the tree")

func (l *leavesLayout) Page(first, after []byte, limit uint64, accept func([]byte) bool) error {
	buf := l.buf[:0]
	err := l.scan(first, after, func(key, value []byte, height uint8) bool {
		buf = record.Append(buf, record.Leaf{Key: key, Value: value, Height: height})
		return uint64(len(buf)) <= limit
	})
	l.buf = buf
	if err == nil && !accept(buf) {
		err = errPage
	}
	return err
}

func (l *leavesLayout) iterator(kind byte) (*pebble.Iterator, error) {
	return l.state.db.NewIter(&pebble.IterOptions{LowerBound: []byte{kind}, UpperBound: []byte{kind + 1}})
}
