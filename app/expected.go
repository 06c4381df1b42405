package app

import (
	"bytes"
	"sync"

	"github.com/google/btree"

	"github.com/starling-kv/starling/avlstar"
)

const (
	// expectedBlocks is the number of blocks for which the nodes of a checked transaction stay. A
	// transaction waits longer only if the mempool has more than so many blocks' worth.
	expectedBlocks = 16
	// maxExpectedBytes limits the memory of expectedKeys. The nodes of further transactions do not
	// stay.
	maxExpectedBytes = 8 << 20
	// expectedEntryBytes is the memory of a key in the list of a block, and expectedKeyBytes that of
	// a key in the tree, in addition to its length.
	expectedEntryBytes, expectedKeyBytes = 32, 64
)

// expectedKeys are the keys of transactions that CheckTx has admitted lately: the next blocks
// probably read them. Their nodes stay in memory. Otherwise a node that the check has found could
// leave before the block, because it was last changed or fetched a window of blocks ago.
type expectedKeys struct {
	mu     sync.Mutex
	keys   *btree.BTreeG[expectedKey]
	blocks [expectedBlocks][][]byte // the keys of the last blocks, by their number modulo the length
	now    uint64                   // number of the block that comes next
	bytes  int
}

type expectedKey struct {
	key   []byte
	block uint64 // the last one for which it was added
}

// add adds the keys of wants.
func (e *expectedKeys) add(wants []avlstar.Want) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.keys == nil {
		e.keys = btree.NewG(32, func(a, b expectedKey) bool { return bytes.Compare(a.key, b.key) < 0 })
	}
	list := &e.blocks[e.now%expectedBlocks]
	for _, w := range wants {
		k, known := e.keys.Get(expectedKey{key: w.Key})
		size := expectedEntryBytes
		if !known {
			k.key = bytes.Clone(w.Key) // w.Key keeps the whole transaction in memory
			size += len(w.Key) + expectedKeyBytes
		}
		if known && k.block == e.now {
			continue
		}
		if e.bytes+size > maxExpectedBytes {
			return
		}
		e.bytes += size
		k.block = e.now
		e.keys.ReplaceOrInsert(k)
		*list = append(*list, k.key)
	}
}

// block begins the next block, and forgets the keys that were added last for the oldest one.
func (e *expectedKeys) block() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now++
	oldest := &e.blocks[e.now%expectedBlocks]
	for _, key := range *oldest {
		e.bytes -= expectedEntryBytes
		if k, _ := e.keys.Get(expectedKey{key: key}); k.block+expectedBlocks == e.now {
			e.keys.Delete(k)
			e.bytes -= len(key) + expectedKeyBytes
		}
	}
	*oldest = nil
}

// any reports whether a key is in [first, after) (nil: open).
func (e *expectedKeys) any(first, after []byte) (found bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.keys == nil {
		return false
	}
	e.keys.AscendGreaterOrEqual(expectedKey{key: first}, func(k expectedKey) bool {
		found = after == nil || bytes.Compare(k.key, after) < 0
		return false
	})
	return found
}
