package fetch

import (
	"slices"
	"sync"
)

// maxSpare and maxSpareBytes limit the number and the total size of unused buffers.
const (
	maxSpare      = 16
	maxSpareBytes = 16 << 20
	// step is the granularity of long buffers: the next chunk may be slightly longer than this one.
	step = 64 << 10
)

// Buffers is a free list for the buffers of answers: most are of similar length, and new memory
// would have to be cleared. It may be used concurrently.
type Buffers struct {
	sync.Mutex
	spare [][]byte // ascending by capacity
	bytes int      // total capacity of spare
}

func byCap(b []byte, n int) int { return cap(b) - n }

// Take returns a buffer of n bytes with arbitrary content.
func (b *Buffers) Take(n int) []byte {
	b.Lock()
	defer b.Unlock()
	// A buffer that is much too long would keep all of its memory in use for a small answer.
	if i, _ := slices.BinarySearchFunc(b.spare, n, byCap); i < len(b.spare) && cap(b.spare[i]) <= 4*n {
		data := b.spare[i]
		b.spare = slices.Delete(b.spare, i, i+1)
		b.bytes -= cap(data)
		return data[:n]
	}
	if n <= step {
		return make([]byte, n)
	}
	return make([]byte, n, (n+step-1)/step*step)
}

// Give returns a buffer that nothing refers to. If there are too many, the shortest are dropped.
func (b *Buffers) Give(data []byte) {
	if cap(data) == 0 || cap(data) > maxSpareBytes {
		return
	}
	b.Lock()
	defer b.Unlock()
	i, _ := slices.BinarySearchFunc(b.spare, cap(data), byCap)
	b.spare = slices.Insert(b.spare, i, data)
	b.bytes += cap(data)
	for len(b.spare) > maxSpare || b.bytes > maxSpareBytes {
		b.bytes -= cap(b.spare[0])
		b.spare = slices.Delete(b.spare, 0, 1)
	}
}
