// Package bounded holds a map of limited size. Data about peers needs a limit, since peers can
// create any number of identities.
package bounded

import "slices"

// Map keeps a limited number of values. The value that was set first is evicted first. It is not
// safe for concurrent use.
type Map[K comparable, V any] struct {
	limit  int
	values map[K]V
	order  []K // ascending by when they were set
}

// New returns an empty Map for up to limit values.
func New[K comparable, V any](limit int) *Map[K, V] {
	return &Map[K, V]{limit: limit, values: map[K]V{}}
}

// Get returns the value of a key; false if there is none.
func (m *Map[K, V]) Get(k K) (V, bool) {
	v, ok := m.values[k]
	return v, ok
}

// Set sets the value of a key, and evicts the oldest value if there are too many.
func (m *Map[K, V]) Set(k K, v V) {
	m.Delete(k)
	if len(m.order) >= m.limit {
		m.Delete(m.order[0])
	}
	m.values[k] = v
	m.order = append(m.order, k)
}

// Delete removes a key.
func (m *Map[K, V]) Delete(k K) {
	if _, has := m.values[k]; has {
		delete(m.values, k)
		i := slices.Index(m.order, k)
		m.order = slices.Delete(m.order, i, i+1)
	}
}

// Len returns the number of values.
func (m *Map[K, V]) Len() int { return len(m.values) }

// All iterates over the values in the order in which they were set. The Map must not change
// meanwhile.
func (m *Map[K, V]) All(yield func(K, V) bool) {
	for _, k := range m.order {
		if !yield(k, m.values[k]) {
			return
		}
	}
}
