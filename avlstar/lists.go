package avlstar

// spare keeps the lists of one block for the next; otherwise they would be most of a block's
// garbage. Their elements hold no pointers.
type spare[T any] struct{ lists [][]T }

// Limits on the number of lists that are kept, and on their capacity.
const (
	maxSpare      = 128
	maxSpareItems = 1 << 17
)

// take returns an empty list, with capacity n if it is a new one.
func (s *spare[T]) take(n int) []T {
	if last := len(s.lists) - 1; last >= 0 {
		list := s.lists[last]
		s.lists = s.lists[:last]
		return list
	}
	return make([]T, 0, n)
}

// give takes back a list that is no longer used.
func (s *spare[T]) give(list []T) {
	if len(s.lists) < maxSpare && cap(list) > 0 && cap(list) <= maxSpareItems {
		s.lists = append(s.lists, list[:0])
	}
}
