package scheduler

import stdheap "container/heap"

// heap is a binary heap whose elements know their place, so that any of them can be removed.
type heap[T any] struct {
	v    []T
	less func(a, b T) bool // a strict order: equal elements would make the result depend on history
	at   func(T) *int      // where the element keeps its place + 1; 0: in no heap
}

func (h *heap[T]) first() (t T, ok bool) {
	if len(h.v) == 0 {
		return t, false
	}
	return h.v[0], true
}

func (h *heap[T]) has(t T) bool { return *h.at(t) > 0 }
func (h *heap[T]) push(t T)     { stdheap.Push((*ordered[T])(h), t) }
func (h *heap[T]) remove(t T)   { stdheap.Remove((*ordered[T])(h), *h.at(t)-1) }

// ordered is a heap as container/heap needs it.
type ordered[T any] heap[T]

func (o *ordered[T]) Len() int           { return len(o.v) }
func (o *ordered[T]) Less(i, j int) bool { return o.less(o.v[i], o.v[j]) }

func (o *ordered[T]) Swap(i, j int) {
	o.v[i], o.v[j] = o.v[j], o.v[i]
	*o.at(o.v[i]), *o.at(o.v[j]) = i+1, j+1
}

// Push implements heap.Interface.
func (o *ordered[T]) Push(t any) {
	o.v = append(o.v, t.(T))
	*o.at(t.(T)) = len(o.v)
}

// Pop implements heap.Interface.
func (o *ordered[T]) Pop() any {
	last := len(o.v) - 1
	t := o.v[last]
	var none T
	o.v[last], o.v = none, o.v[:last]
	*o.at(t) = 0
	return t
}
