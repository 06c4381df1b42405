package syncbench

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage/treestore"
)

// Blocks after a join change as many keys as those of the other rows, drawn from a sample of the
// joined keys.
const (
	settlingKeys   = 2000
	sampledKeys    = 10 * settlingKeys
	settlingBytes  = 100    // bytes of each value
	settlingBlockN = 20_000 // maximum number of blocks during ingestion
)

// settlingBlocks makes blocks on a state that was just joined.
type settlingBlocks struct {
	rng             *rand.Rand
	meanwhile, late []int64 // nanoseconds of each block

	mu   sync.Mutex
	keys [][]byte // guarded by mu
}

// sample collects keys from a chunk; chunks is the number of chunks.
func (b *settlingBlocks) sample(c *avlstar.Chunk, chunks int64) {
	var keys [][]byte
	for leaf := range c.Leaves() {
		if int64(len(keys))*chunks >= sampledKeys {
			break
		}
		keys = append(keys, bytes.Clone(leaf.Key))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys = append(b.keys, keys...)
}

// make commits blocks on v until settled is closed, and the same number after that.
func (b *settlingBlocks) make(store *treestore.Store, v *avlstar.Version, settled <-chan struct{}) (err error) {
	v.Retain()
	defer func() { v.Release() }()
	height := int64(servedHeight)
	commit := func() (int64, error) {
		changes := b.changes()
		from := time.Now()
		next, err := v.Apply(changes)
		if err != nil {
			return 0, err
		}
		height++
		err = store.Commit(height, next, v, changes)
		nanos := time.Since(from).Nanoseconds()
		v.Release()
		v = next
		return nanos, err
	}
	for done := false; !done && len(b.meanwhile) < settlingBlockN; {
		select {
		case <-settled:
			done = true
		default:
			nanos, err := commit()
			if err != nil {
				return err
			}
			b.meanwhile = append(b.meanwhile, nanos)
		}
	}
	<-settled
	for range b.meanwhile {
		nanos, err := commit()
		if err != nil {
			return err
		}
		b.late = append(b.late, nanos)
	}
	return nil
}

func (b *settlingBlocks) changes() []avlstar.Change {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rng.Shuffle(len(b.keys), func(i, j int) { b.keys[i], b.keys[j] = b.keys[j], b.keys[i] })
	changes := make([]avlstar.Change, 0, settlingKeys)
	for _, key := range b.keys[:min(settlingKeys, len(b.keys))] {
		value := make([]byte, settlingBytes)
		for i := range value {
			value[i] = byte(b.rng.Uint32())
		}
		changes = append(changes, avlstar.Change{Key: key, Value: value})
	}
	return changes
}
