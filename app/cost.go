package app

import (
	"cmp"
	"iter"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// maxCost limits the cost of a block: the time to execute a block must not depend on its sender's
// choices. It is a rule of the app version, because validators must agree on it, and it is above
// the cost of every single transaction (docs/decisions/0028-cost-of-a-block.md).
const maxCost = 1 << 16

// maxGas limits the gas that the operations of a block name together, for the same reason. It is at
// least the gas of every single transaction, whose cost includes it
// (docs/decisions/0074-programs.md).
const maxGas = 32_000_000

// cost returns the number of keys that t names, including the limits of its ranges, the records and
// gas of its programs, both branches of a Txn, and the operations that it proposes or approves,
// which may be executed at once. Each key may be in a page of its own, which must be read from the
// disk. The cost depends only on the transaction. The records of the account count as one.
func cost(t *tx.Tx) int {
	if t.Text != nil {
		return 1
	}
	n := 1
	for i := range t.Body.Operations {
		n += t.Body.Operations[i].Keys()
	}
	return n
}

// gas returns the sum of the gas that the operations of t name.
func gas(t *tx.Tx) (sum uint64) {
	if t.Body == nil {
		return 0
	}
	for i := range t.Body.Operations {
		sum += t.Body.Operations[i].Gas()
	}
	return sum
}

// load is what a block's transactions name together.
type load struct {
	keys int
	gas  uint64
}

func (l load) plus(t *tx.Tx) load { return load{l.keys + cost(t), l.gas + gas(t)} }

// fits returns a *tx.Error if l is above the limits of a block. what describes its transactions.
func (l load) fits(r *rules, what string) *tx.Error {
	switch {
	case l.keys > r.maxCost:
		return tx.Errorf(tx.CodeTooLarge, "%s %d keys, a block may name %d: split it", what, l.keys, r.maxCost)
	case l.gas > r.maxGas:
		return tx.Errorf(tx.CodeTooLarge, "%s %d gas, a block may name %d: split it", what, l.gas, r.maxGas)
	}
	return nil
}

// place is a position in a block: a step (see keyAt) of an operation of a transaction. An op of -1
// is before the first operation.
type place struct{ tx, op, step int }

func (p place) before(q place) bool {
	return cmp.Or(cmp.Compare(p.tx, q.tx), cmp.Compare(p.op, q.op), cmp.Compare(p.step, q.step)) < 0
}

// lookahead reads the keys of later operations, in windows, before they are executed: pages from
// the disk or, if everything is in memory, nodes into the processor's cache. It changes no result.
type lookahead struct {
	base *avlstar.Version
	txs  []decoded // the transactions in order; if it is empty, nothing is read ahead
	tx   int       // index of the transaction that is being executed
	op   int       // index of its operation that is being executed
	done place     // everything before it has been read
}

// cachedKeys is a number of keys whose paths in a tree, at most 30 cache lines each, fit in a
// core's cache.
const cachedKeys = 128

// minUncached is the least number of keys at which a tree's links do not fit in a core's cache.
// Tests lower it.
var minUncached uint64 = 1 << 17

// reach makes sure that the pages for an operation of the current transaction have been read.
func (l *lookahead) reach(op int) {
	l.op = op
	l.step(0)
}

// step does what reach does, for a step of the current operation.
func (l *lookahead) step(step int) {
	at := place{l.tx, l.op, step}
	if len(l.txs) == 0 || at.before(l.done) {
		return
	}
	l.done = at
	switch {
	case l.base.ReadAhead(l.keys()): // pages may be missing
	case l.isCached():
		l.txs = nil
	default:
		l.cache()
	}
}

// isCached reports whether the tree's links fit in a core's cache. A tree of unknown size counts as
// large.
func (l *lookahead) isCached() bool {
	n, counted := l.base.Count()
	return counted && n < minUncached
}

// cache looks up keys side by side, which takes a fraction of the time of one walk after another.
func (l *lookahead) cache() {
	var keys [cachedKeys][]byte
	n := 0
	for key := range l.keys() {
		keys[n] = key
		if n++; n == len(keys) {
			break
		}
	}
	l.base.Warm(keys[:n])
}

// keys yields the keys of the operations from l.done on, and moves l.done behind the yielded keys.
func (l *lookahead) keys() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for l.done.tx < len(l.txs) {
			t, op := l.txs[l.done.tx], l.done.op
			switch {
			case t.err != nil || t.tx.Body != nil && op == len(t.tx.Body.Operations):
				l.done = place{l.done.tx + 1, -1, 0}
			case t.tx.Text != nil:
				l.done = place{l.done.tx + 1, -1, 0}
				if !yield(t.tx.Text.Key) {
					return
				}
			case op < 0:
				l.done.op++
				account := t.tx.Body.Account
				if !yield(AdminKey(account)) || !yield(GrantKey(account, nil)) || !yield(NonceKey(account)) {
					return
				}
			default:
				key, last := keyAt(&t.tx.Body.Operations[op], l.done.step)
				if l.done.step++; last {
					l.done = place{l.done.tx, op + 1, 0}
				}
				if key != nil && !yield(key) {
					return
				}
			}
		}
	}
}

// keyOf returns the client's key that the operation names, or the start of its range; nil if there
// is none.
func keyOf(operation *tx.Operation) []byte {
	switch op := operation.Op.(type) {
	case *tx.Operation_Put:
		return op.Put.Key
	case *tx.Operation_Delete:
		return op.Delete.Key
	case *tx.Operation_CompareAndPut:
		return op.CompareAndPut.Key
	case *tx.Operation_Add:
		return op.Add.Key
	case *tx.Operation_Read:
		return op.Read.Key
	case *tx.Operation_Compare:
		return op.Compare.Key
	case *tx.Operation_ReadRange:
		if len(op.ReadRange.Start) > 0 {
			return op.ReadRange.Start
		}
	case *tx.Operation_DeleteRange:
		return op.DeleteRange.Start
	}
	return nil
}
