package avlstar

import (
	"fmt"
	"runtime"
)

// ChunkRange returns the bytes [from, to) of what Chunk returns for chunk k. It encodes only those
// bytes, and walks down to both of their ends: the lengths in the nodes determine where a subtree's
// records lie.
//
//	        (n)            bytes of the left subtree: 300
//	   ┌─────┴─────┐
//	  (l)         (r)      [280, 310) is [280, 300) of l, whose first record keeps its height,
//	[0, 300)  [300, 500)   and [0, 10) of r, whose first record has the height of n
func (v *Version) ChunkRange(k uint32, from, to uint64) ([]byte, error) {
	v.inUse()
	defer runtime.KeepAlive(v)
	if k >= v.NumChunks() {
		return nil, fmt.Errorf("avlstar: no chunk %d, the version has %d", k, v.NumChunks())
	}
	if err := v.upperTree(); err != nil {
		return nil, fmt.Errorf("avlstar: chunk %d: %w", k, err)
	}
	c := v.chunks[k]
	if from > to || to > c.Bytes {
		return nil, fmt.Errorf("avlstar: no range [%d, %d) of chunk %d, which has %d bytes", from, to, k, c.Bytes)
	}
	e := v.newEncoder(to - from)
	b, err := e.appendRange(make([]byte, 0, to-from), c, 0, from, to)
	e.end(b)
	if err != nil {
		return nil, fmt.Errorf("avlstar: chunk %d: %w", k, err)
	}
	return b, nil
}

// appendRange appends the bytes [from, to) of the leaf records below c, whose first record has the
// height first.
func (e *encoder) appendRange(b []byte, c chunkRoot, first uint8, from, to uint64) ([]byte, error) {
	begin := len(b)
	switch {
	case from >= to:
		return b, nil
	case c.n == 0:
		p, err := e.pageBelow(c.up, c.side)
		if err != nil {
			return nil, err
		}
		b = append(b, p.data[from:to]...)
	case c.n.isLeaf():
		if from == 0 {
			b = append(b, 0)
		}
		b = append(b, e.body(c.n)[max(from, 1)-1:to-1]...)
	case from == 0 && to == c.Bytes:
		var err error
		if b, _, err = e.appendRecords(b, c.n); err != nil {
			return nil, err
		}
	default:
		i := e.image(c.n)
		middle := i.bytes(left)
		b, err := e.appendRange(b, e.childRoot(c.n, left), first, from, min(to, middle))
		if err != nil {
			return nil, err
		}
		return e.appendRange(b, e.childRoot(c.n, right), i.ownHeight(), max(from, middle)-middle, max(to, middle)-middle)
	}
	if from == 0 {
		b[begin] = first
	}
	return b, nil
}

func (v *Version) childRoot(n ref, side int) chunkRoot {
	return chunkRoot{childOf(&v.view, n, side), n, side}
}
