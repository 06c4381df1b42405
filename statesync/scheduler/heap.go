package scheduler

// heap is a binary heap whose elements know their place, so that any of them can be removed.
//
// container/heap works through an interface; this one keeps the positions where each kind of heap wants them.
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

func (h *heap[T]) push(t T) {
	h.v = append(h.v, t)
	*h.at(t) = len(h.v)
	h.up(len(h.v) - 1)
}

func (h *heap[T]) remove(t T) {
	i, last := *h.at(t)-1, len(h.v)-1
	h.swap(i, last)
	*h.at(t) = 0
	var zero T
	h.v[last] = zero
	h.v = h.v[:last]
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h *heap[T]) swap(i, j int) {
	h.v[i], h.v[j] = h.v[j], h.v[i]
	*h.at(h.v[i]), *h.at(h.v[j]) = i+1, j+1
}

func (h *heap[T]) up(i int) {
	for i > 0 && h.less(h.v[i], h.v[(i-1)/2]) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h *heap[T]) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h.v); c++ {
			if h.less(h.v[c], h.v[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}
