package statesync

import (
	"slices"
)

// chunkQueue mimics CometBFT v0.40.0's statesync/chunks.go, in memory and without blocking, method
// by method.
type chunkQueue struct {
	size      uint32
	chunks    map[uint32][]byte
	senders   map[uint32]string
	allocated map[uint32]bool
	returned  map[uint32]bool
}

func newChunkQueue(size uint32) *chunkQueue {
	return &chunkQueue{size, map[uint32][]byte{}, map[uint32]string{}, map[uint32]bool{}, map[uint32]bool{}}
}

// add ignores chunks that the queue has. It accepts chunks that were not requested, and chunks from
// rejected senders.
func (q *chunkQueue) add(index uint32, data []byte, sender string) {
	if index >= q.size || data == nil || q.chunks[index] != nil {
		return
	}
	q.chunks[index], q.senders[index] = data, sender
}

func (q *chunkQueue) allocate() (uint32, bool) {
	for i := range q.size {
		if !q.allocated[i] {
			q.allocated[i] = true
			return i, true
		}
	}
	return 0, false
}

// discard makes a chunk available for allocation and for next again. It does nothing if the queue
// does not have the chunk.
func (q *chunkQueue) discard(index uint32) {
	if q.chunks[index] == nil {
		return
	}
	delete(q.chunks, index)
	delete(q.returned, index)
	delete(q.allocated, index)
}

// discardSender discards only chunks that next has not returned yet.
func (q *chunkQueue) discardSender(sender string) {
	for index, s := range q.senders {
		if s == sender && !q.returned[index] {
			q.discard(index)
			delete(q.senders, index)
		}
	}
}

// next returns the lowest chunk not yet returned. ok is false if CometBFT would wait for it.
func (q *chunkQueue) next() (index uint32, data []byte, sender string, ok, done bool) {
	for i := range q.size {
		if q.returned[i] {
			continue
		}
		if q.chunks[i] == nil {
			return i, nil, "", false, false
		}
		q.returned[i] = true
		return i, slices.Clone(q.chunks[i]), q.senders[i], true, false
	}
	return 0, nil, "", false, true
}
