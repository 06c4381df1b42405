package fastsync

import (
	"slices"
	"sync"
)

// maxSpare limits the buffers that wait to be used again, and their length together, in bytes.
const (
	maxSpare      = 16
	maxSpareBytes = 16 << 20
	// step is what the length of a long buffer is a multiple of: the next chunk may be a little
	// longer than this one.
	step = 64 << 10
)

// buffers keeps what answers landed in for other answers: most are about as long as each other, and
// new memory would have to be cleared. It may be used concurrently.
type buffers struct {
	sync.Mutex
	spare [][]byte // ascending by their capacity
	bytes int      // of these
}

func byCap(b []byte, n int) int { return cap(b) - n }

// take returns a buffer of n bytes with arbitrary content.
func (b *buffers) take(n int) []byte {
	b.Lock()
	defer b.Unlock()
	// Not one that is much too long: who keeps a small answer would keep all of it.
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

// give takes a buffer back that nothing refers to. If there are too many, the shortest are dropped.
func (b *buffers) give(data []byte) {
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
