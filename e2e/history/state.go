package history

import (
	"maps"
	"slices"
	"strconv"

	"github.com/starling-kv/starling/tx"
)

// state is the sequential specification: the value of each key. An absent key is not in the map.
// States are immutable.
type state map[string]string

// execute returns the state after the operations of one transaction, and their results. If an
// operation fails, it returns the unchanged state and the code of the failure
// (docs/spec/transactions.md: all operations take effect, or none).
func (s state) execute(operations []Operation) (state, []Result, tx.Code) {
	x := execution{state: s}
	results := make([]Result, 0, len(operations))
	for _, o := range operations {
		result, code := x.operation(o)
		if code != tx.CodeOK {
			return s, nil, code
		}
		results = append(results, result)
	}
	return x.state, results, tx.CodeOK
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

func (x *execution) operation(o Operation) (Result, tx.Code) {
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
			return Result{}, tx.CodeCompareFailed
		}
		if o.Kind == CompareAndPut {
			x.write(o.Key, o.Value)
		}
	case Add:
		number, code := o.sum(value)
		if code != tx.CodeOK {
			return Result{}, code
		}
		result.Value = strconv.FormatInt(number, 10)
		x.write(o.Key, result.Value)
	case ReadRange, DeleteRange:
		return x.inRange(o), tx.CodeOK
	case Txn:
		return x.txn(o)
	}
	return result, tx.CodeOK
}

// sum returns the number that an add writes. An absent key counts as 0.
func (o Operation) sum(value string) (int64, tx.Code) {
	before := int64(0)
	if value != "" {
		var err error
		if before, err = strconv.ParseInt(value, 10, 64); err != nil {
			return 0, tx.CodeNotNumber
		}
	}
	after := before + o.Delta
	if overflows := (after < before) != (o.Delta < 0); overflows || after < o.Least || after > o.Most {
		return 0, tx.CodeOutOfBounds
	}
	return after, tx.CodeOK
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

func (x *execution) txn(o Operation) (Result, tx.Code) {
	result := Result{Holds: true}
	for _, c := range o.If {
		value, found := x.state[c.Key]
		result.Holds = result.Holds && (c.Present && found || !c.Present && value == c.Value)
	}
	for _, o := range o.branch(result.Holds) {
		inner, code := x.operation(o)
		if code != tx.CodeOK {
			return Result{}, code
		}
		result.Results = append(result.Results, inner)
	}
	return result, tx.CodeOK
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
