package app

import (
	"encoding/hex"
	"errors"
	"math"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/tx"
)

// Limits of the values that the reads of one block return together. Every node stores the results,
// and they must fit in a gRPC message of 4 MiB to the CometBFT process. A result is longer than the
// read that requests it, so the number of reads is limited too.
const (
	ReadBudgetBytes = 2 << 20 // total length of values
	ReadBudget      = 1 << 15 // number of reads
)

// The events: one for each key whose value changes, and none if a key is set to its present value.
const (
	EventType     = "starling"
	EventKey      = "key"  // attribute: the key in lower-case hex
	EventKind     = "kind" // attribute: one of the kinds
	KindPut       = "put"
	KindDelete    = "delete"
	KindGrant     = "grant"
	KindRevoke    = "revoke"
	KindValidator = "validator"
	KindAdmin     = "admin"
	KindUpgrade   = "upgrade"
	KindThreshold = "threshold"
	KindProposal  = "proposal"
)

// executor runs the transactions of one block, one after another, on an overlay.
type executor struct {
	*overlay
	params     *Params
	rules      *rules              // of the version in params
	engine     program.Engine      // of programs; nil: none, so the rules have no programs
	height     int64               // height of the block
	time       uint64              // of the block: see block
	reads      reads               // reads of this block, without those of failed transactions
	validators *validators         // counted when first needed
	changed    *validatorChange    // by the current transaction; nil: it changes no validator
	unread     int                 // values that fillReads did not find in base
	removed    [][]byte            // keys removed by its ranges, if nodes may be missing in base
	signed     [][]byte            // addresses of signers of the last block; nil: this is the first
	signers    map[string]struct{} // the same, made when first needed
	deadline   time.Time           // for a proposal: no operation begins after it; zero: none
	ahead      lookahead
	approved   bool                  // a proposal that enough admins approved is being executed
	ran        func(*program.Result) // for a simulation, called after each run of a program; or nil
}

// reads counts reads against the budget of a block.
type reads struct{ bytes, number uint64 }

// outcome is the result of a transaction.
type outcome struct {
	err *tx.Error // nil if it succeeded
	// Whether it changed the state: it succeeded, or it failed and used up its nonce.
	trace  bool
	late   bool       // whether the deadline came before its end
	result *tx.Result // results of the operations; nil for text
	events []abci.Event
}

// newExecutor returns an executor for the block at height, with the rules of the version in params.
func (a *App) newExecutor(o *overlay, params *Params, height int64) *executor {
	return &executor{overlay: o, params: params, rules: a.rules(params), engine: a.options.Programs, height: height}
}

// run executes a transaction: completely, or only its nonce, or not at all. An error is a failure
// of this node, not of the transaction: the block must not be made.
//
// The same holds for all functions that run calls: a *tx.Error refuses the operation, on every node
// alike; any other error is a failure of this node.
func (x *executor) run(t *tx.Tx) (outcome, error) {
	if t.Text != nil {
		return x.runText(t.Text)
	}
	body := t.Body
	var refused *tx.Error
	if err := x.spendNonce(body); errors.As(err, &refused) {
		return outcome{err: refused}, nil
	} else if err != nil {
		return outcome{}, err
	}

	return x.runOperations(body)
}

// runOperations executes the operations of a signed transaction after its nonce, all of them or
// none.
func (x *executor) runOperations(body *tx.Body) (outcome, error) {
	mark, before, counted := x.mark(), x.reads, x.validators.clone()
	undo := func(refused *tx.Error) outcome {
		x.undo(mark)
		x.reads, x.validators = before, counted
		return outcome{trace: true, err: refused}
	}
	x.changed, x.removed = nil, nil
	result := &tx.Result{Results: make([]tx.OperationResult, 0, len(body.Operations))}
	var (
		events  []abci.Event
		refused *tx.Error
	)
	for i := range body.Operations {
		if x.late() {
			return outcome{trace: true, late: true}, nil
		}
		x.ahead.reach(i)
		done, changed, err := x.rules.perform(x, body.Account, &body.Operations[i])
		switch {
		case errors.Is(err, errLate):
			return outcome{trace: true, late: true}, nil
		case err != nil:
			if !errors.As(err, &refused) {
				return outcome{}, err
			}
			return undo(tx.Errorf(refused.Code, "operation %d: %s", i, refused.Reason)), nil
		}
		result.Results = append(result.Results, done)
		events = append(events, changed...)
	}
	if x.changed != nil {
		if refused := x.changed.judge(x.validators.power); refused != nil {
			return undo(refused), nil
		}
	}
	if err := x.fillReads(body.Operations, result.Results); err != nil {
		return outcome{}, err
	}
	return outcome{trace: true, result: result, events: events}, nil
}

// late reports whether the deadline has passed.
func (x *executor) late() bool { return !x.deadline.IsZero() && time.Now().After(x.deadline) }

// spendNonce increments the account's nonce, or returns the reason why the transaction leaves no
// trace.
func (x *executor) spendNonce(body *tx.Body) error {
	who, err := x.standingOf(body.Account)
	if err != nil {
		return err
	}
	if refused := checkNonce(body.Account, body.Nonce, who.nonce); refused != nil {
		return refused
	}
	if who.newcomer() {
		count, err := x.roomForStranger()
		if err != nil {
			return err
		}
		if _, err := x.set(StrangersKey(), encodeUint64(count)); err != nil {
			return err
		}
	}
	_, err = x.set(NonceKey(body.Account), encodeUint64(who.nonce+1))
	return err
}

func (x *executor) runText(t *tx.Text) (outcome, error) {
	if err := x.mayWriteText(x.params, t); err != nil {
		var refused *tx.Error
		if !errors.As(err, &refused) {
			return outcome{}, err
		}
		return outcome{err: refused}, nil
	}
	x.ahead.reach(0)
	event, err := x.write(t.Key, t.Value, KindPut)
	if err != nil {
		return outcome{}, err
	}
	done := outcome{trace: true}
	if event != nil {
		done.events = []abci.Event{*event}
	}
	return done, nil
}

// mayWriteText returns a *tx.Error if a text transaction must not write its key.
func (o *overlay) mayWriteText(params *Params, t *tx.Text) error {
	if !params.Open {
		return tx.Errorf(tx.CodeTextClosed, "this chain takes no text transactions: send a signed one")
	}
	covered, err := o.covered(t.Key)
	if err != nil {
		return err
	}
	if covered {
		return tx.Errorf(tx.CodeTextClosed, "a grant covers key %q, so only signed transactions may write it", shorten(t.Key))
	}
	return nil
}

// nonce returns the nonce of account's next transaction.
func (o *overlay) nonce(account []byte) (uint64, error) {
	value, err := o.get(NonceKey(account))
	return decodeUint64(value), err
}

func (o *overlay) isAdmin(account []byte) (bool, error) {
	value, err := o.get(AdminKey(account))
	return value != nil, err
}

func checkNonce(account []byte, nonce, next uint64) *tx.Error {
	if nonce != next {
		return tx.Errorf(tx.CodeBadNonce, "account %x: the transaction has nonce %d, its next is %d", account, nonce, next)
	}
	if next == math.MaxUint64 {
		return tx.Errorf(tx.CodeBadNonce, "account %x has used up its nonces", account)
	}
	return nil
}

// operation executes one operation of account on one key or record. found reports whether the key
// existed before.
func (x *executor) operation(account []byte, operation *tx.Operation) (found bool, value []byte, event *abci.Event, err error) {
	switch op := operation.Op.(type) {
	case *tx.Operation_Put:
		found, event, err = x.putOrDelete(account, op.Put.Key, op.Put.Value)
	case *tx.Operation_Delete:
		found, event, err = x.putOrDelete(account, op.Delete.Key, nil)
	case *tx.Operation_CompareAndPut:
		found, event, err = x.compareAndPut(account, op.CompareAndPut)
	case *tx.Operation_Add:
		found, value, event, err = x.add(account, op.Add)
	case *tx.Operation_Read:
		value, found, err = x.read(op.Read.Key)
	case *tx.Operation_Grant:
		found, event, err = x.grant(account, op.Grant.Grantee, op.Grant.Prefix, op.Grant.Quota, KindGrant)
	case *tx.Operation_Revoke:
		found, event, err = x.grant(account, op.Revoke.Grantee, op.Revoke.Prefix, 0, KindRevoke)
	case *tx.Operation_SetValidator:
		found, event, err = x.setValidator(account, op.SetValidator)
	case *tx.Operation_SetAdmin:
		found, event, err = x.setAdmin(account, op.SetAdmin)
	case *tx.Operation_ScheduleUpgrade:
		found, event, err = x.scheduleUpgrade(account, op.ScheduleUpgrade)
	case *tx.Operation_SetThreshold:
		found, event, err = x.setThreshold(account, op.SetThreshold)
	default:
		err = tx.Errorf(tx.CodeMalformed, "unknown operation")
	}
	return found, value, event, err
}

// write sets key to value (nil: deletes it) and returns the event, or nil if nothing changes.
func (x *executor) write(key, value []byte, kind string) (*abci.Event, error) {
	if _, err := x.set(key, value); err != nil || !x.wrote() {
		return nil, err
	}
	return newEvent(key, kind), nil
}

func newEvent(key []byte, kind string) *abci.Event {
	return &abci.Event{Type: EventType, Attributes: []abci.EventAttribute{
		{Key: EventKey, Value: hex.EncodeToString(key), Index: true},
		{Key: EventKind, Value: kind, Index: true},
	}}
}

// putOrDelete writes a client's key under the account's grant; a nil value deletes it.
func (x *executor) putOrDelete(account, key, value []byte) (found bool, event *abci.Event, err error) {
	old, err := x.mayWrite(account, key, value)
	if err != nil {
		return false, nil, err
	}
	kind := KindPut
	if value == nil {
		kind = KindDelete
	}
	event, err = x.write(key, value, kind)
	return old.present(), event, err
}

// mayTouch returns the grant by which the account may write key, or a *tx.Error. The grant with the
// longest prefix applies. A record of a program needs a grant for records of programs: the empty
// prefix does not cover them.
func (x *executor) mayTouch(account, key []byte) (grant, error) {
	ofProgram := tx.IsProgramKey(key)
	if key[0] == reserved && !ofProgram {
		return grant{}, tx.Errorf(tx.CodeReserved, "keys that start with byte 0x00 are the application's own")
	}
	g, ok, err := x.grantFor(account, key)
	if err != nil {
		return grant{}, err
	}
	if !ok || ofProgram && !tx.IsProgramKey(g.prefix) {
		return grant{}, tx.Errorf(tx.CodeUnauthorized, "account %x has no grant for key %q", account, shorten(key))
	}
	return g, nil
}

// mayWrite returns a *tx.Error unless the account's grant and quota allow it to set key to value.
// old is the present value of key.
func (x *executor) mayWrite(account, key, value []byte) (old content, err error) {
	g, err := x.mayTouch(account, key)
	if err != nil {
		return content{}, err
	}
	if old, err = x.peek(key); err != nil {
		return content{}, err
	}
	before, after := recordBytes(key, old), recordBytes(key, contentOf(value))
	if g.quota == 0 || after <= before {
		return old, nil
	}
	used, err := x.usage(g.prefix)
	if err != nil {
		return content{}, err
	}
	if used += after - before; used > g.quota {
		return content{}, tx.Errorf(tx.CodeQuota, "the keys under prefix %q would take %d bytes, the quota is %d: delete keys there, or ask an administrator for a larger quota", shorten(g.prefix), used, g.quota)
	}
	return old, nil
}

func (x *executor) compareAndPut(account []byte, op *tx.CompareAndPut) (bool, *abci.Event, error) {
	old, err := x.mayWrite(account, op.Key, op.Value)
	if err == nil {
		err = x.expect(op.Key, old, op.Expected)
	}
	if err != nil {
		return false, nil, err
	}
	event, err := x.write(op.Key, op.Value, KindPut)
	return old.present(), event, err
}

// expect returns a *tx.Error unless c, the content of key, is value (empty: key is absent).
func (x *executor) expect(key []byte, c content, value []byte) error {
	switch same, err := x.holds(key, c, value); {
	case err != nil || same:
		return err
	case !c.present():
		return tx.Errorf(tx.CodeCompareFailed, "key %q is absent", shorten(key))
	case len(value) == 0:
		return tx.Errorf(tx.CodeCompareFailed, "key %q is present, but was expected to be absent", shorten(key))
	}
	return tx.Errorf(tx.CodeCompareFailed, "key %q has another value than expected", shorten(key))
}

// read returns the value of key. If it is missing in base, fillReads adds it.
func (x *executor) read(key []byte) (value []byte, found bool, err error) {
	c, err := x.peek(key)
	if err != nil {
		return nil, false, err
	}
	return c.value, c.present(), x.spendReads(uint64(c.length), 1)
}

// fillReads adds the values that are missing in the results of a transaction that succeeded. Only
// these count against the budget of a block, so the values that a block brings have a bound,
// whatever its failing transactions read. A value that cannot be read from base is recorded in
// needs; the rest of the block then runs with the right budget.
func (x *executor) fillReads(operations []tx.Operation, results []tx.OperationResult) error {
	fill := func(key []byte, value *[]byte) error {
		if *value != nil {
			return nil
		}
		// The value was missing, so the read was before any write: it is that of base.
		read, err := x.inBase(key)
		if x.lacks(err) {
			x.unread++
			return nil
		}
		*value = read
		return err
	}
	for i := range results {
		r := &results[i]
		switch op := operations[i].Op.(type) {
		case *tx.Operation_Read:
			if r.Found {
				if err := fill(op.Read.Key, &r.Value); err != nil {
					return err
				}
			}
		case *tx.Operation_ReadRange:
			for k := range r.Entries {
				if err := fill(r.Entries[k].Key, &r.Entries[k].Value); err != nil {
					return err
				}
			}
		case *tx.Operation_Txn:
			branch := op.Txn.Failure
			if r.Succeeded {
				branch = op.Txn.Success
			}
			if err := x.fillReads(branch, r.Results); err != nil {
				return err
			}
		}
	}
	return nil
}

// grant creates or updates a grant, or revokes it (KindRevoke).
func (x *executor) grant(account, grantee, prefix []byte, quota uint64, kind string) (bool, *abci.Event, error) {
	if err := x.onlyAdmin(account, "give or take back grants"); err != nil {
		return false, nil, err
	}
	old, changed, err := x.setGrant(grantee, prefix, quota, kind == KindRevoke)
	if err != nil || !changed {
		return old != nil, nil, err
	}
	return old != nil, newEvent(GrantKey(grantee, prefix), kind), nil
}

func (x *executor) setAdmin(account []byte, op *tx.SetAdmin) (bool, *abci.Event, error) {
	if err := x.onlyAdmin(account, "change admins"); err != nil {
		return false, nil, err
	}
	found, err := x.isAdmin(op.Account)
	if err != nil {
		return false, nil, err
	}
	value := adminValue
	if op.Remove {
		value = nil
		if found {
			if err := x.mayRemoveAdmin(op.Account); err != nil {
				return false, nil, err
			}
			if _, err := x.set(ProposalKey(op.Account), nil); err != nil {
				return false, nil, err
			}
		}
	}
	event, err := x.write(AdminKey(op.Account), value, KindAdmin)
	return found, event, err
}

// shorten limits a key to a length suitable for a message.
func shorten(key []byte) []byte { return key[:min(len(key), 64)] }
