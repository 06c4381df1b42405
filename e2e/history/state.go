package history

import (
	"errors"
	"maps"
)

// state is the sequential specification: what is at each key. A key that is absent is not in the
// map. States are never changed.
type state map[string]string

var errCompareFailed = errors.New("compare failed")

// execute returns the state after the operations of one transaction, and their results;
// errCompareFailed, and the state as it was, where a compare-and-put finds another value
// (docs/spec/transactions.md: all operations take effect, or none).
func (s state) execute(operations []Operation) (state, []Result, error) {
	next, results := s, make([]Result, 0, len(operations))
	copied := false
	for _, o := range operations {
		value, found := next[o.Key]
		result := Result{Found: found}
		switch o.Kind {
		case Read:
			result.Value = value
		case CompareAndPut:
			if value != o.Expected { // no value is empty, so empty means absent on both sides
				return s, nil, errCompareFailed
			}
		case Put, Delete:
		}
		if o.Kind != Read {
			if !copied {
				next, copied = maps.Clone(s), true
			}
			if o.Kind == Delete {
				delete(next, o.Key)
			} else {
				next[o.Key] = o.Value
			}
		}
		results = append(results, result)
	}
	return next, results, nil
}
