package sgc

import "math/bits"

// chunk is the number of elements that a table allocates at once.
const chunk = 512

// table is an array that grows and shrinks at its end without copying.
type table[T any] struct {
	chunks []*[chunk]T
	n      uint32
}

func (t *table[T]) at(i uint32) *T { return &t.chunks[i/chunk][i%chunk] }

func (t *table[T]) push(v T) {
	if int(t.n/chunk) == len(t.chunks) {
		t.chunks = append(t.chunks, new([chunk]T))
	}
	t.n++
	*t.at(t.n - 1) = v
}

// pop removes the last element. One empty chunk is kept.
func (t *table[T]) pop() {
	t.n--
	if keep := (int(t.n)+chunk-1)/chunk + 1; len(t.chunks) > keep {
		t.chunks[keep] = nil
		t.chunks = t.chunks[:keep]
	}
}

// none is not an element: element numbers begin with 1.
const none = 0

// chained is the set of elements of an index, by number: each has a hash, and a link to the next
// element of its bucket.
type chained interface {
	hashOf(i uint32) uint32
	linkOf(i uint32) *uint32
}

// index is a hash table of numbers, with about one bucket for each. It grows and shrinks by one
// bucket at a time (W. Litwin, Linear hashing, VLDB 1980), so no call moves all elements.
type index struct {
	buckets table[uint32]
	n       uint32 // count of numbers
}

func (x *index) init() {
	*x = index{}
	x.buckets.push(none)
}

// bucket returns the head of the chain of a hash.
func (x *index) bucket(hash uint32) *uint32 {
	n := x.buckets.n
	top := uint64(1) << bits.Len32(n-1) // smallest power of two that is at least n
	at := hash & uint32(top-1)
	if at >= n {
		at &= uint32(top/2 - 1)
	}
	return x.buckets.at(at)
}

func (x *index) first(hash uint32) uint32 { return *x.bucket(hash) }

func (x *index) add(c chained, i uint32) {
	bucket := x.bucket(c.hashOf(i))
	*c.linkOf(i), *bucket = *bucket, i
	if x.n++; x.n > x.buckets.n {
		x.split(c)
	}
}

// place returns the link that contains the number of an element, which must be in the index.
func (x *index) place(c chained, i, hash uint32) *uint32 {
	p := x.bucket(hash)
	for *p != i {
		if *p == none {
			panic("sgc: an element is not in its bucket")
		}
		p = c.linkOf(*p)
	}
	return p
}

func (x *index) remove(c chained, i uint32) {
	*x.place(c, i, c.hashOf(i)) = *c.linkOf(i)
	x.n--
	// Merging two buckets per removal keeps up with shrinking.
	for range 2 {
		if x.buckets.n > 1 && uint64(x.buckets.n) > uint64(x.n)+uint64(x.n/4)+chunk {
			x.merge(c)
		}
	}
}

// partner returns the bucket from which the last one was split.
func (x *index) partner() *uint32 {
	last := x.buckets.n - 1
	return x.buckets.at(last - 1<<(bits.Len32(last)-1))
}

// split adds a bucket.
func (x *index) split(c chained) {
	x.buckets.push(none)
	moved := x.buckets.at(x.buckets.n - 1)
	for p := x.partner(); *p != none; {
		i := *p
		if x.bucket(c.hashOf(i)) != moved {
			p = c.linkOf(i)
			continue
		}
		*p = *c.linkOf(i)
		*c.linkOf(i), *moved = *moved, i
	}
}

// merge removes the last bucket.
func (x *index) merge(c chained) {
	end := x.partner()
	for *end != none {
		end = c.linkOf(*end)
	}
	*end = *x.buckets.at(x.buckets.n - 1)
	x.buckets.pop()
}
