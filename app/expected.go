package app

import (
	"bytes"
	"slices"
	"sync"

	"github.com/starling-kv/starling/avlstar"
)

const (
	// expectedBlocks is the number of blocks for which the nodes of a checked transaction stay. A
	// transaction waits longer only if the mempool has more than so many blocks' worth.
	expectedBlocks = 16
	// maxExpectedBytes limits the memory of expectedKeys. The nodes of further transactions do not
	// stay.
	maxExpectedBytes = 8 << 20
	// expectedKeyBytes is the memory of a key in addition to its length: its slice, and the
	// rounding of its allocation.
	expectedKeyBytes = 40
)

// expectedKeys are the keys of transactions that CheckTx has admitted lately: the next blocks
// probably read them. Their nodes stay in memory. Otherwise a node that the check has found could
// leave before the block, because it was last changed or fetched a window of blocks ago.
type expectedKeys struct {
	mu     sync.Mutex
	blocks [expectedBlocks]keysOfBlock // the keys since the last block are in blocks[0]
	bytes  int
}

type keysOfBlock struct {
	keys  [][]byte // sorted, except in blocks[0]
	bytes int
}

// add adds the keys of wants.
func (e *expectedKeys) add(wants []avlstar.Want) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := &e.blocks[0]
	for _, w := range wants {
		size := len(w.Key) + expectedKeyBytes
		if e.bytes+size > maxExpectedBytes {
			return
		}
		b.keys = append(b.keys, bytes.Clone(w.Key)) // w.Key keeps the whole transaction in memory
		b.bytes, e.bytes = b.bytes+size, e.bytes+size
	}
}

// block begins the next block, and forgets the keys of the oldest one.
func (e *expectedKeys) block() {
	e.mu.Lock()
	defer e.mu.Unlock()
	slices.SortFunc(e.blocks[0].keys, bytes.Compare)
	e.bytes -= e.blocks[expectedBlocks-1].bytes
	copy(e.blocks[1:], e.blocks[:])
	e.blocks[0] = keysOfBlock{}
}

// any reports whether a key of an earlier block is in [first, after) (nil: open).
func (e *expectedKeys) any(first, after []byte) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range e.blocks[1:] {
		i, _ := slices.BinarySearchFunc(b.keys, first, bytes.Compare)
		if i < len(b.keys) && (after == nil || bytes.Compare(b.keys[i], after) < 0) {
			return true
		}
	}
	return false
}
