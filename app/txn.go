package app

import (
	"bytes"
	"errors"
	"fmt"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// Conditions, ranges and if / then / else, in one transaction:
//
//	txn ─► rights of all writes of both branches ─► compares ─┬─ all hold ──► success ─┐
//	                                                          └─ otherwise ─► failure ─┴─► results of the executed branch
//
// The cost of a range is its limit, which the sender names, so the cost of a block does not depend
// on the state.

// errLate is returned if the deadline of a proposal passes during an operation.
var errLate = errors.New("the time of the proposal is over")

// perform executes one operation of account.
func (x *executor) perform(account []byte, operation *tx.Operation) (tx.OperationResult, []abci.Event, error) {
	switch op := operation.Op.(type) {
	case *tx.Operation_Compare:
		result, err := x.compare(op.Compare)
		return result, nil, err
	case *tx.Operation_ReadRange:
		result, err := x.readRange(op.ReadRange)
		return result, nil, err
	case *tx.Operation_DeleteRange:
		return x.deleteRange(account, op.DeleteRange)
	case *tx.Operation_Txn:
		return x.txn(account, op.Txn)
	case *tx.Operation_Propose:
		return x.propose(account, op.Propose)
	case *tx.Operation_Approve:
		return x.approve(account, op.Approve)
	case *tx.Operation_Deploy, *tx.Operation_Call:
		return x.runProgram(account, operation)
	}
	found, value, event, err := x.operation(account, operation)
	if event == nil {
		return tx.OperationResult{Found: found, Value: value}, nil, err
	}
	return tx.OperationResult{Found: found, Value: value}, []abci.Event{*event}, err
}

// compare returns a *tx.Error if the condition does not hold.
func (x *executor) compare(c *tx.Compare) (tx.OperationResult, error) {
	have, err := x.peek(c.Key)
	switch {
	case err != nil:
		return tx.OperationResult{}, err
	case c.Present && have.present():
		return tx.OperationResult{Found: true}, nil
	case c.Present:
		return tx.OperationResult{}, tx.Errorf(tx.CodeCompareFailed, "key %q is absent", shorten(c.Key))
	}
	return tx.OperationResult{Found: have.present()}, x.expect(c.Key, have, c.Value)
}

// satisfied reports whether a condition of a Txn holds.
func (x *executor) satisfied(c *tx.Compare) (bool, error) {
	have, err := x.peek(c.Key)
	if err != nil || c.Present {
		return have.present(), err
	}
	return x.holds(c.Key, have, c.Value)
}

// txn executes a branch. It returns a *tx.Error if the account has no right to one of the writes of
// either branch.
func (x *executor) txn(account []byte, t *tx.Txn) (tx.OperationResult, []abci.Event, error) {
	fail := func(err error) (tx.OperationResult, []abci.Event, error) { return tx.OperationResult{}, nil, err }
	if err := x.rightsOfBranches(account, t); err != nil {
		return fail(err)
	}
	result := tx.OperationResult{Succeeded: true}
	for i := range t.Compares {
		x.ahead.step(i)
		holds, err := x.satisfied(&t.Compares[i])
		if err != nil {
			return fail(err)
		}
		result.Succeeded = result.Succeeded && holds
	}
	ran, first := 0, len(t.Compares)
	if !result.Succeeded {
		ran, first = 1, first+len(t.Success)
	}
	var events []abci.Event
	for i := range t.Branches()[ran] {
		if x.late() {
			return fail(errLate)
		}
		x.ahead.step(first + i)
		inner, more, err := x.perform(account, &t.Branches()[ran][i])
		if err != nil {
			return fail(inBranch(ran, i, err))
		}
		result.Results = append(result.Results, inner)
		events = append(events, more...)
	}
	return result, events, nil
}

// inBranch adds the branch and the index of the operation to a refusal.
func inBranch(branch, i int, err error) error {
	var refused *tx.Error
	if errors.As(err, &refused) {
		return tx.Errorf(refused.Code, "operation %d of %s: %s", i, tx.BranchName(branch), refused.Reason)
	}
	return err
}

// rightsOfBranches returns a *tx.Error if the account has no right to the operations of one of the
// branches, so that the result does not depend on a condition.
func (x *executor) rightsOfBranches(account []byte, t *tx.Txn) error {
	for b, branch := range t.Branches() {
		for i := range branch {
			if err := x.right(account, &branch[i]); err != nil {
				return inBranch(b, i, err)
			}
		}
	}
	return nil
}

// mayDelete returns a *tx.Error unless one grant covers all keys that the range may contain.
func (x *executor) mayDelete(account []byte, op *tx.DeleteRange) error {
	prefix := commonOfRange(op.Start, op.End)
	_, ok, err := x.grantFor(account, prefix)
	if err == nil && !ok {
		end := "the end"
		if len(op.End) > 0 {
			end = fmt.Sprintf("%q", shorten(op.End))
		}
		err = tx.Errorf(tx.CodeUnauthorized, "account %x has no single grant for all keys from %q to %s: delete the range of each grant alone", account, shorten(op.Start), end)
	}
	return err
}

// commonOfRange returns the longest common prefix of all possible keys in [start, end); an empty
// end is open.
func commonOfRange(start, end []byte) []byte {
	n := 0
	if len(end) > 0 {
		n = commonPrefix(start, end)
		if n == len(start) {
			return start // start is a prefix of end
		}
		if len(end) != n+1 || end[n] != start[n]+1 {
			return start[:n]
		}
		n++ // end is the first key after those that start with start[:n+1]
	}
	for n < len(start) && start[n] == 0xff {
		n++
	}
	return start[:n]
}

// readRange reads the first keys of a range, as many as fit.
func (x *executor) readRange(op *tx.ReadRange) (tx.OperationResult, error) {
	var (
		result tx.OperationResult
		length int // total length of keys and values
	)
	err := x.ascendRange(op.Start, op.End, int(op.Limit), func(key []byte, c content) bool {
		with := length + len(key) + c.length
		if len(result.Entries) == int(op.Limit) || len(result.Entries) > 0 && with > tx.MaxReadBytes {
			result.More = true
			return false
		}
		length = with
		result.Entries = append(result.Entries, tx.KeyValue{Key: key, Value: c.value})
		return true
	})
	if err != nil {
		return tx.OperationResult{}, err
	}
	result.Found = len(result.Entries) > 0
	return result, x.spendReads(uint64(length), max(1, uint64(len(result.Entries))))
}

// deleteRange removes a range, or the first part of it. The removed keys count as reads: there is
// an event for each of them, although the sender did not name them.
func (x *executor) deleteRange(account []byte, op *tx.DeleteRange) (tx.OperationResult, []abci.Event, error) {
	fail := func(err error) (tx.OperationResult, []abci.Event, error) { return tx.OperationResult{}, nil, err }
	if err := x.mayDelete(account, op); err != nil {
		return fail(err)
	}
	var (
		keys         [][]byte
		length, size uint64 // of keys and of records
		more         bool
	)
	err := x.ascendRange(op.Start, op.End, int(op.Limit), func(key []byte, c content) bool {
		size += recordBytes(key, c)
		if len(keys) == int(op.Limit) || len(keys) > 0 && size > tx.MaxDeleteBytes {
			more = true
			return false
		}
		length += uint64(len(key))
		keys = append(keys, bytes.Clone(key)) // changes must not refer to memory of base
		return true
	})
	switch {
	case err != nil:
		return fail(err)
	case more && !op.Part:
		return fail(tx.Errorf(tx.CodeRangeLimit, "the range from %q is above its limit (keys: %d, bytes: %d): name a higher limit, or delete it in parts", shorten(op.Start), op.Limit, tx.MaxDeleteBytes))
	}
	if err := x.spendReads(length, max(1, uint64(len(keys)))); err != nil {
		return fail(err)
	}
	result := tx.OperationResult{Found: len(keys) > 0, More: more, Deleted: uint32(len(keys))}
	var events []abci.Event
	for _, key := range keys {
		event, err := x.write(key, nil, KindDelete)
		if err != nil {
			return fail(err)
		}
		events = append(events, *event) // not nil: the key was present
	}
	if x.needs != nil {
		x.removed = append(x.removed, keys...)
	}
	return result, events, nil
}

// spendReads subtracts reads from the budget of the block, or returns a *tx.Error.
func (x *executor) spendReads(length, number uint64) error {
	after := reads{x.reads.bytes + length, x.reads.number + number}
	switch {
	case after.bytes > ReadBudgetBytes:
		return tx.Errorf(tx.CodeReadBudget, "the reads of one block return %d bytes at most: read less at once, or by a query", ReadBudgetBytes)
	case after.number > ReadBudget:
		return tx.Errorf(tx.CodeReadBudget, "there are %d reads in a block at most: read less at once, or by a query", ReadBudget)
	}
	x.reads = after
	return nil
}

// exploreRange finds the missing nodes of a range whose rights could not be checked.
func (x *executor) exploreRange(op *tx.DeleteRange) error {
	n := 0 // ascendRange records the missing nodes
	return x.ascendRange(op.Start, op.End, int(op.Limit), func([]byte, content) bool {
		n++
		return n <= int(op.Limit)
	})
}

// exploreTxn finds the missing nodes of a Txn that reached one of them. It tries each part of both
// branches separately, because the results of its conditions may differ when all nodes are present.
func (x *executor) exploreTxn(account []byte, t *tx.Txn) error {
	for i := range t.Compares {
		if _, err := x.satisfied(&t.Compares[i]); err != nil && !isMissing(err) {
			return err
		}
	}
	for _, branch := range t.Branches() {
		mark, before := x.mark(), x.reads
		for i := range branch {
			x.exploreOperation(account, &branch[i])
		}
		x.undo(mark)
		x.reads = before
	}
	return nil
}

// wantsOf appends a want for each client's key that the operation names, in both branches of a Txn.
func wantsOf(wants []avlstar.Want, operation *tx.Operation) []avlstar.Want {
	if t := operation.GetTxn(); t != nil {
		for i := range t.Compares {
			wants = append(wants, avlstar.Want{Key: t.Compares[i].Key, Written: true})
		}
		for _, branch := range t.Branches() {
			for i := range branch {
				wants = wantsOf(wants, &branch[i])
			}
		}
		return wants
	}
	if call := operation.GetCall(); call != nil {
		for step, last := 0, false; !last; step++ {
			var key []byte
			key, last = touched(call, step)
			wants = append(wants, avlstar.Want{Key: key})
		}
	}
	if key := keyOf(operation); key != nil {
		reads := operation.GetRead() != nil || operation.GetAdd() != nil
		wants = append(wants, avlstar.Want{Key: key, Deleted: operation.GetDelete() != nil, Written: !reads})
	}
	return wants
}

// keyAt returns the key that the operation names at a step. A Txn has a step for each compare and
// for each operation of its branches, a Call for each key that it is likely to touch, every other
// operation has one. key is nil if it names none.
func keyAt(operation *tx.Operation, step int) (key []byte, last bool) {
	if call := operation.GetCall(); call != nil {
		return touched(call, step)
	}
	t := operation.GetTxn()
	if t == nil {
		return keyOf(operation), true
	}
	last = step+1 == len(t.Compares)+len(t.Success)+len(t.Failure)
	if step < len(t.Compares) {
		return t.Compares[step].Key, last
	}
	if step -= len(t.Compares); step < len(t.Success) {
		return keyOf(&t.Success[step]), last
	}
	return keyOf(&t.Failure[step-len(t.Success)]), last
}

// governed appends the keys that determine the rights to the operation: keys that it writes, the
// common prefix of the keys of a range, and for a program the key of programRight.
func (x *executor) governed(keys [][]byte, account []byte, operation *tx.Operation) [][]byte {
	switch op := operation.Op.(type) {
	case *tx.Operation_DeleteRange:
		return append(keys, commonOfRange(op.DeleteRange.Start, op.DeleteRange.End))
	case *tx.Operation_Txn:
		for _, branch := range op.Txn.Branches() {
			for i := range branch {
				keys = x.governed(keys, account, &branch[i])
			}
		}
		return keys
	case *tx.Operation_Deploy, *tx.Operation_Call:
		return append(keys, x.programRight(account, operation))
	}
	if key, writes := written(operation); writes {
		keys = append(keys, key)
	}
	return keys
}
