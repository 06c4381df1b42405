package blocks

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/storage/sgc"
)

const (
	stripes = 256
	// largeValue is the size from which a value, such as a part of a block, is cached only on its
	// second read within a short time, because a peer that catches up reads each part once.
	largeValue = 16 << 10
	// lately is the number of large values whose reads are remembered.
	lately = 4096
)

// coherentCache keeps the cache consistent with the database while readers and writers run
// concurrently:
//
//	write:  begin (generation+1, writers+1) ─ drop ─ commit ─ end (generation+1, writers-1)
//	read:   get ─miss─ note generation ─ read database ─ fill, unless the generation has changed or there is a writer
//
// So a value that was read during a write of the same key (or stripe) is not cached. A hit between
// begin and drop returns the old value, like a read just before the commit.
type coherentCache struct {
	cache   *sgc.Cache
	seed    maphash.Seed
	stripes [stripes]stripe
	large   [lately]atomic.Uint64 // hashes of the keys of large values read lately
}

type stripe struct {
	mu         sync.Mutex // held while the fields change, and while a reader fills
	generation atomic.Uint64
	writers    int
	_          [64]byte // separates cache lines
}

// ticket permits a reader to fill the cache.
type ticket struct{ hash, generation uint64 }

func newCoherentCache(cache *sgc.Cache) *coherentCache {
	cache.Clear(sgc.Blocks) // it may contain values of a folder that was removed since
	return &coherentCache{cache: cache, seed: maphash.MakeSeed()}
}

// get returns a copy of the value.
func (c *coherentCache) get(key []byte) ([]byte, bool) {
	return c.cache.GetBytes(sgc.Blocks, key, nil)
}

func (c *coherentCache) has(key []byte) bool {
	return c.cache.Has(sgc.Blocks, key)
}

func (c *coherentCache) beginRead(key []byte) ticket {
	hash := maphash.Bytes(c.seed, key)
	return ticket{hash, c.stripes[hash%stripes].generation.Load()}
}

// fill caches a copy of the value read after beginRead, unless it may be outdated.
func (c *coherentCache) fill(t ticket, key, value []byte) {
	if len(value) >= largeValue && c.large[t.hash/stripes%lately].Swap(t.hash) != t.hash {
		return
	}
	s := &c.stripes[t.hash%stripes]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writers == 0 && s.generation.Load() == t.generation {
		c.cache.PutBytes(sgc.Blocks, key, value)
	}
}

// beginWrite drops the keys of the batch, and prevents them from being filled until end is called.
func (c *coherentCache) beginWrite(batch *pebble.Batch) (end func(), err error) {
	var touched [stripes]bool
	err = eachKey(batch, func(key []byte) {
		i := maphash.Bytes(c.seed, key) % stripes
		if s := &c.stripes[i]; !touched[i] {
			touched[i] = true
			s.mu.Lock()
			s.writers++
			s.generation.Add(1)
			s.mu.Unlock()
		}
		c.cache.Drop(sgc.Blocks, key)
	})
	end = func() {
		for i := range touched {
			if s := &c.stripes[i]; touched[i] {
				s.mu.Lock()
				s.writers--
				s.generation.Add(1)
				s.mu.Unlock()
			}
		}
	}
	if err != nil {
		end()
		return nil, err
	}
	return end, nil
}

func eachKey(batch *pebble.Batch, visit func(key []byte)) error {
	for reader := batch.Reader(); ; {
		_, key, _, ok, err := reader.Next()
		if !ok || err != nil {
			return err
		}
		visit(key)
	}
}
