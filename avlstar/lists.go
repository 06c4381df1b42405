package avlstar

// spare keeps lists of one block for the next: they would be most of the garbage that a block makes. What is in them holds no pointers.
type spare[T any] struct{ lists [][]T }

// maxSpare bounds the lists that are kept, and what each may hold.
const (
	maxSpare      = 128
	maxSpareItems = 1 << 17
)

// take returns an empty list, with room for n if it is new.
func (s *spare[T]) take(n int) []T {
	if last := len(s.lists) - 1; last >= 0 {
		list := s.lists[last]
		s.lists = s.lists[:last]
		return list
	}
	return make([]T, 0, n)
}

// give takes a list that is of no more use.
func (s *spare[T]) give(list []T) {
	if len(s.lists) < maxSpare && cap(list) > 0 && cap(list) <= maxSpareItems {
		s.lists = append(s.lists, list[:0])
	}
}
