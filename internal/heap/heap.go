// Package heap is a binary heap from which any element can be removed, for state machines that must
// find what is due without visiting everything.
package heap

import (
	stdheap "container/heap"
	"fmt"
)

// Heap is a binary heap whose elements store their position, so that any of them can be removed.
type Heap[T any] struct {
	// Before is a strict order: equal elements would make the result depend on history.
	Before func(a, b T) bool
	// Place returns where an element stores its position + 1; 0: not in the heap.
	Place func(T) *int
	v     []T
}

// First returns the least element, if there is one.
func (h *Heap[T]) First() (t T, ok bool) {
	if len(h.v) == 0 {
		return t, false
	}
	return h.v[0], true
}

// All returns the elements in the order of the heap. The caller must not modify the slice.
func (h *Heap[T]) All() []T { return h.v }

// Has reports whether t is in the heap.
func (h *Heap[T]) Has(t T) bool { return *h.Place(t) > 0 }

// Push adds t, which must not be in the heap.
func (h *Heap[T]) Push(t T) { stdheap.Push((*ordered[T])(h), t) }

// Remove removes t, which must be in the heap. What Before compares must be as it was at Push.
func (h *Heap[T]) Remove(t T) { stdheap.Remove((*ordered[T])(h), *h.Place(t)-1) }

// Discard removes t if it is in the heap.
func (h *Heap[T]) Discard(t T) {
	if h.Has(t) {
		h.Remove(t)
	}
}

// Check returns an error if elements are not where they say, or out of order: a caller has changed
// what Before compares.
func (h *Heap[T]) Check() error {
	for i, t := range h.v {
		if *h.Place(t) != i+1 || i > 0 && h.Before(t, h.v[(i-1)/2]) {
			return fmt.Errorf("the heap is broken at %d of %d", i, len(h.v))
		}
	}
	return nil
}

// ordered implements heap.Interface for a Heap.
type ordered[T any] Heap[T]

func (o *ordered[T]) Len() int           { return len(o.v) }
func (o *ordered[T]) Less(i, j int) bool { return (*Heap[T])(o).Before(o.v[i], o.v[j]) }

func (o *ordered[T]) Swap(i, j int) {
	o.v[i], o.v[j] = o.v[j], o.v[i]
	*(*Heap[T])(o).Place(o.v[i]), *(*Heap[T])(o).Place(o.v[j]) = i+1, j+1
}

// Push implements heap.Interface.
func (o *ordered[T]) Push(t any) {
	o.v = append(o.v, t.(T))
	*(*Heap[T])(o).Place(t.(T)) = len(o.v)
}

// Pop implements heap.Interface.
func (o *ordered[T]) Pop() any {
	last := len(o.v) - 1
	t := o.v[last]
	var none T
	o.v[last], o.v = none, o.v[:last]
	*(*Heap[T])(o).Place(t) = 0
	return t
}
