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
	// largeValue: a value this large, as the parts of blocks are, is kept only when it is read
	// again soon: a peer that catches up reads each part once.
	largeValue = 16 << 10
	// lately is how many large values are remembered as read.
	lately = 4096
)

// coherentCache keeps what the cache holds equal to what the database holds, with readers and
// writers side by side:
//
//	write:  begin (generation+1, writers+1) ─ drop ─ commit ─ end (generation+1, writers-1)
//	read:   get ─miss─ note generation ─ read database ─ fill, only if the generation is still that one and nobody writes
//
// So whatever a reader read while a write of the same key (or of one in the same stripe) was under
// way is not kept. A hit between begin and drop returns the old value, as a read just before the
// commit would.
type coherentCache struct {
	cache   *sgc.Cache
	seed    maphash.Seed
	stripes [stripes]stripe
	large   [lately]atomic.Uint64 // hashes of the keys of large values that were read
}

type stripe struct {
	mu         sync.Mutex // held to change the fields, and while a reader fills
	generation atomic.Uint64
	writers    int
	_          [64]byte // a cache line of its own
}

// ticket is what a reader has to show to fill.
type ticket struct{ hash, generation uint64 }

func newCoherentCache(cache *sgc.Cache) *coherentCache {
	cache.Clear(sgc.Blocks) // it may hold what was in a folder that was removed since
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

// fill keeps a copy of the value that was read after beginRead, unless it may be old by now.
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

// beginWrite drops the keys of the batch, and keeps them from being filled until end is called.
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
