package history

import (
	"errors"
	"maps"
	"slices"
)

// state is the sequential specification: the value of each key. An absent key is not in the map.
// States are immutable.
type state map[string]string

var errCompareFailed = errors.New("compare failed")

// execute returns the state after the operations of one transaction, and their results. If a
// compare or a compare-and-put finds another value, it returns the unchanged state and
// errCompareFailed (docs/spec/transactions.md: all operations take effect, or none).
func (s state) execute(operations []Operation) (state, []Result, error) {
	x := execution{state: s}
	results := make([]Result, 0, len(operations))
	for _, o := range operations {
		result, err := x.operation(o)
		if err != nil {
			return s, nil, err
		}
		results = append(results, result)
	}
	return x.state, results, nil
}

// execution is a transaction in execution. Its state is copied before the first write.
type execution struct {
	state  state
	copied bool
}

// write sets a key, or deletes it if value is empty.
func (x *execution) write(key, value string) {
	if !x.copied {
		x.state, x.copied = maps.Clone(x.state), true
	}
	if value == "" {
		delete(x.state, key)
	} else {
		x.state[key] = value
	}
}

func (x *execution) operation(o Operation) (Result, error) {
	value, found := x.state[o.Key]
	result := Result{Found: found}
	switch o.Kind {
	case Read:
		result.Value = value
	case Put:
		x.write(o.Key, o.Value)
	case Delete:
		x.write(o.Key, "")
	case Compare, CompareAndPut:
		if value != o.Expected { // values are never empty, so empty means absent on both sides
			return Result{}, errCompareFailed
		}
		if o.Kind == CompareAndPut {
			x.write(o.Key, o.Value)
		}
	case ReadRange, DeleteRange:
		return x.inRange(o), nil
	case Txn:
		return x.txn(o)
	}
	return result, nil
}

func (x *execution) inRange(o Operation) Result {
	var keys []string
	for key := range x.state {
		if key >= o.Key && key < o.End {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	result := Result{Found: len(keys) > 0, More: len(keys) > o.Limit}
	for _, key := range keys[:min(len(keys), o.Limit)] {
		if o.Kind == DeleteRange {
			x.write(key, "")
			result.Deleted++
		} else {
			result.Entries = append(result.Entries, Entry{key, x.state[key]})
		}
	}
	return result
}

func (x *execution) txn(o Operation) (Result, error) {
	result := Result{Holds: true}
	for _, c := range o.If {
		value, found := x.state[c.Key]
		result.Holds = result.Holds && (c.Present && found || !c.Present && value == c.Value)
	}
	for _, o := range o.branch(result.Holds) {
		inner, err := x.operation(o)
		if err != nil {
			return Result{}, err
		}
		result.Results = append(result.Results, inner)
	}
	return result, nil
}

// branch returns the operations of a txn that are executed, depending on whether its conditions
// hold.
func (o Operation) branch(holds bool) []Operation {
	if holds {
		return o.Then
	}
	return o.Else
}

// writes reports whether the operation may change something.
func (o Operation) writes() bool {
	switch o.Kind {
	case Read, ReadRange, Compare:
		return false
	case Txn:
		return slices.ContainsFunc(o.Then, Operation.writes) || slices.ContainsFunc(o.Else, Operation.writes)
	}
	return true
}

// keys returns the keys that the operation names.
func (o Operation) keys() []string {
	if o.Kind != Txn {
		return []string{o.Key}
	}
	var keys []string
	for _, c := range o.If {
		keys = append(keys, c.Key)
	}
	for _, inner := range slices.Concat(o.Then, o.Else) {
		keys = append(keys, inner.keys()...)
	}
	return keys
}

func (r Result) equal(o Result) bool {
	return r.Found == o.Found && r.Value == o.Value && r.Deleted == o.Deleted && r.More == o.More && r.Holds == o.Holds &&
		slices.Equal(r.Entries, o.Entries) && slices.EqualFunc(r.Results, o.Results, Result.equal)
}
