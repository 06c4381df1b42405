package tx

import "bytes"

// MaxDeleteBytes limits the leaf records that one DeleteRange removes. MaxReadBytes limits the keys
// and values that one ReadRange returns. One key is always allowed.
const (
	MaxReadBytes   = 1 << 20
	MaxDeleteBytes = 4 << 20
)

// NewCompare makes the transaction fail unless the key's value equals expected. An empty expected
// means that the key must be absent.
func NewCompare(key, expected []byte) Operation {
	return compareOperation(Compare{Key: key, Value: expected})
}

// NewComparePresent makes the transaction fail unless key is present, whatever its value.
func NewComparePresent(key []byte) Operation {
	return compareOperation(Compare{Key: key, Present: true})
}

func compareOperation(c Compare) Operation {
	return Operation{Op: &Operation_Compare{Compare: &c}}
}

// NewReadRange returns the first limit keys in [start, end) and their values in the transaction's
// result, or fewer if they are large. An empty bound is open.
func NewReadRange(start, end []byte, limit uint32) Operation {
	return Operation{Op: &Operation_ReadRange{ReadRange: &ReadRange{Start: start, End: end, Limit: limit}}}
}

// NewDeleteRange removes the keys in [start, end), of which there may be at most limit. An empty
// end is open.
func NewDeleteRange(start, end []byte, limit uint32) Operation {
	return Operation{Op: &Operation_DeleteRange{DeleteRange: &DeleteRange{Start: start, End: end, Limit: limit}}}
}

// NewDeletePart removes the first limit keys in [start, end), or fewer if they are large. The
// result reports whether there are more.
func NewDeletePart(start, end []byte, limit uint32) Operation {
	return Operation{Op: &Operation_DeleteRange{DeleteRange: &DeleteRange{Start: start, End: end, Limit: limit, Part: true}}}
}

// NewTxn executes success if all compares hold, otherwise failure.
func NewTxn(compares []Compare, success, failure []Operation) Operation {
	return Operation{Op: &Operation_Txn{Txn: &Txn{Compares: compares, Success: success, Failure: failure}}}
}

// Keys returns the number of keys that the operation names, or may find in its ranges. This is its
// part of the cost of a transaction and of a block. Both branches of a Txn count.
func (o *Operation) Keys() int {
	switch op := o.Op.(type) {
	case *Operation_ReadRange:
		return int(op.ReadRange.Limit)
	case *Operation_DeleteRange:
		return int(op.DeleteRange.Limit)
	case *Operation_Txn:
		n := len(op.Txn.Compares)
		for _, branch := range op.Txn.Branches() {
			for i := range branch {
				n += branch[i].Keys()
			}
		}
		return n
	case *Operation_Propose:
		return 1 + len(op.Propose.Operations)
	case *Operation_Approve:
		return 1 + MaxProposalOperations // it may execute the proposal
	case *Operation_Deploy:
		return programCost(op.Deploy.Gas, op.Deploy.Keys, op.Deploy.Unnamed)
	case *Operation_Call:
		return programCost(op.Call.Gas, op.Call.Keys, op.Call.Unnamed)
	}
	return 1
}

// Parts returns the number of messages that the operation consists of.
func (o *Operation) Parts() int {
	switch op := o.Op.(type) {
	case *Operation_Txn:
		return 1 + len(op.Txn.Compares) + len(op.Txn.Success) + len(op.Txn.Failure)
	case *Operation_Call:
		return 1 + len(op.Call.Touch)
	}
	return 1
}

// Branches returns success and failure.
func (t *Txn) Branches() [2][]Operation { return [2][]Operation{t.Success, t.Failure} }

// Holds reports whether the condition holds for a key with this value; nil means that the key is
// absent.
func (c *Compare) Holds(value []byte) bool {
	if c.Present {
		return value != nil
	}
	return bytes.Equal(c.Value, value) // no value is empty
}

// checkTxn checks the kinds of operations that this file declares.
func (o *Operation) checkTxn() *Error {
	switch op := o.Op.(type) {
	case *Operation_Compare:
		if op.Compare != nil {
			return op.Compare.check()
		}
	case *Operation_ReadRange:
		if op.ReadRange != nil {
			return firstError(checkSize("start of the range", op.ReadRange.Start, 0, MaxKeyBytes),
				checkRange(op.ReadRange.Start, op.ReadRange.End, op.ReadRange.Limit))
		}
	case *Operation_DeleteRange:
		if op.DeleteRange != nil {
			return op.DeleteRange.check()
		}
	case *Operation_Txn:
		if op.Txn != nil {
			return op.Txn.check()
		}
	}
	return Errorf(CodeMalformed, "empty, or of a kind that this version does not know")
}

func (c *Compare) check() *Error {
	if err := firstError(checkSize("key", c.Key, 1, MaxKeyBytes), checkSize("value", c.Value, 0, MaxValueBytes)); err != nil {
		return err
	}
	if c.Present && len(c.Value) > 0 {
		return Errorf(CodeMalformed, "a compare with a value must not set present, which the value implies")
	}
	return nil
}

func (d *DeleteRange) check() *Error {
	if len(d.Start) == 0 {
		return Errorf(CodeReserved, "a range to be deleted must have a start: the first keys are system keys")
	}
	return firstError(checkWrite(d.Start), checkRange(d.Start, d.End, d.Limit))
}

func checkRange(start, end []byte, limit uint32) *Error {
	switch {
	case len(end) > MaxKeyBytes:
		return checkSize("end of the range", end, 0, MaxKeyBytes)
	case len(end) > 0 && bytes.Compare(start, end) >= 0:
		return Errorf(CodeMalformed, "the range is empty: its start is not below its end")
	case limit == 0:
		return Errorf(CodeMalformed, "a range must have a limit of 1 to %d keys, which is its cost", MaxOperations)
	case limit > MaxOperations:
		return Errorf(CodeTooLarge, "the limit of a range is %d, at most %d is allowed", limit, MaxOperations)
	}
	return nil
}

func (t *Txn) check() *Error {
	if len(t.Compares)+len(t.Success)+len(t.Failure) == 0 {
		return Errorf(CodeMalformed, "a txn must have compares or operations")
	}
	for i := range t.Compares {
		if err := t.Compares[i].check(); err != nil {
			return Errorf(err.Code, "compare %d: %s", i, err.Reason)
		}
	}
	for b, branch := range t.Branches() {
		for i := range branch {
			if err := branch[i].checkInBranch(); err != nil {
				return Errorf(err.Code, "operation %d of %s: %s", i, BranchName(b), err.Reason)
			}
		}
	}
	return nil
}

// BranchName returns the name of an index of Branches, for messages.
func BranchName(branch int) string { return [2]string{"success", "failure"}[branch] }

func (o *Operation) checkInBranch() *Error {
	switch o.Op.(type) {
	case *Operation_Put, *Operation_Delete, *Operation_Read, *Operation_ReadRange, *Operation_DeleteRange, *Operation_Add:
		return o.check(NewestAppVersion) // it is the same in all versions
	}
	return Errorf(CodeMalformed, "a branch of a txn may contain only put, delete, read, read_range, delete_range and add")
}
