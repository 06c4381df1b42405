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
	// maxExpectedKeys limits the keys of one transaction.
	maxExpectedKeys = 1024
	// maxExpectedBytes limits the memory of expectedKeys. Beyond it, the oldest keys are forgotten.
	maxExpectedBytes = 8 << 20
	// expectedEntryBytes is the memory of a key in the queue, and expectedKeyBytes that of a key in
	// the tree, in addition to its length.
	expectedEntryBytes, expectedKeyBytes = 32, 64
	// forgottenPerBlock limits what a commit waits for. add forgets the rest.
	forgottenPerBlock = 256
)

// expectedKeys are the keys of transactions that CheckTx has admitted lately: the next blocks
// probably read them. The nodes on the paths to them stay in memory, without the neighbours that a
// deletion needs. Otherwise a node that the check has found could leave before the block, because
// it was last changed or fetched a window of blocks ago.
type expectedKeys struct {
	mu    sync.Mutex // may be locked while the tree's lock is held
	keys  *btree.BTreeG[expectedKey]
	queue []expectedKey // as they were added; some were added again later
	now   uint64        // number of the block that comes next
	bytes int
}

type expectedKey struct {
	key   []byte
	block uint64 // for which it was added last
}

// add adds the keys of the first wants, which must not be modified.
func (e *expectedKeys) add(wants []avlstar.Want) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.keys == nil {
		e.keys = btree.NewG(32, func(a, b expectedKey) bool { return bytes.Compare(a.key, b.key) < 0 })
	}
	for _, w := range wants[:min(len(wants), maxExpectedKeys)] {
		k, known := e.keys.Get(expectedKey{key: w.Key})
		if known && k.block == e.now {
			continue
		}
		if !known {
			k.key = w.Key
			e.bytes += len(w.Key) + expectedKeyBytes
		}
		e.bytes += expectedEntryBytes
		k.block = e.now
		e.keys.ReplaceOrInsert(k)
		e.queue = append(e.queue, k)
		e.forget(2)
		for e.bytes > maxExpectedBytes {
			e.forgetOldest()
		}
	}
}

// block begins the next block.
func (e *expectedKeys) block() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now++
	e.forget(forgottenPerBlock)
}

// forget forgets at most n keys that were added too long ago. The caller holds mu.
func (e *expectedKeys) forget(n int) {
	for ; n > 0 && len(e.queue) > 0 && e.queue[0].block+expectedBlocks <= e.now; n-- {
		e.forgetOldest()
	}
}

// forgetOldest takes a key from the queue. The caller holds mu.
func (e *expectedKeys) forgetOldest() {
	oldest := e.queue[0]
	e.queue = e.queue[1:]
	e.bytes -= expectedEntryBytes
	if k, _ := e.keys.Get(oldest); k.block == oldest.block { // it was not added again
		e.keys.Delete(oldest)
		e.bytes -= len(oldest.key) + expectedKeyBytes
	}
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
