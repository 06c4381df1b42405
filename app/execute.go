package app

import (
	"bytes"
	"encoding/hex"
	"math"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/tx"
)

// What the reads of one block may return together: results are stored by every node, and must fit a gRPC message of 4 MiB to the
// CometBFT process. A result is longer than the read that asks for it, so their number counts too.
const (
	ReadBudgetBytes = 2 << 20 // of values
	ReadBudget      = 1 << 15 // reads
)

// The events: one for each change of a key, none where a key is set to the value that it has.
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
)

// executor runs the transactions of one block, one after another, on an overlay.
type executor struct {
	*overlay
	params     *Params
	rules      *rules      // of the version that params name
	height     int64       // of the block
	reads      reads       // of this block, those of transactions that failed not counted
	validators *validators // counted when first needed
}

// reads counts against the budget of a block.
type reads struct{ bytes, number uint64 }

// outcome is what a transaction did.
type outcome struct {
	err    *tx.Error  // nil: done
	trace  bool       // it left a trace in the state: it was done, or it failed and used up its nonce
	result *tx.Result // of the operations; nil for text
	events []abci.Event
}

// newExecutor begins the block at height, by the rules of the version that params name.
func newExecutor(o *overlay, params *Params, height int64) *executor {
	return &executor{overlay: o, params: params, rules: rulesOf(params.AppVersion), height: height}
}

// run executes a transaction: all of it, or its nonce alone, or nothing.
func (x *executor) run(t *tx.Tx) outcome {
	if t.Text != nil {
		return x.runText(t.Text)
	}
	body := t.Body
	if !x.isAdmin(body.Account) && !x.hasAnyGrant(body.Account) {
		return outcome{err: tx.Errorf(tx.CodeUnauthorized, "account %x holds no grant: ask an admin for one", body.Account)}
	}
	nonce := x.nonce(body.Account)
	if err := checkNonce(body.Account, body.Nonce, nonce); err != nil {
		return outcome{err: err}
	}
	x.set(NonceKey(body.Account), encodeUint64(nonce+1))

	mark, before, counted := x.mark(), x.reads, x.validators.clone()
	result := &tx.Result{Results: make([]tx.OperationResult, 0, len(body.Operations))}
	var events []abci.Event
	for i := range body.Operations {
		found, value, event, err := x.rules.operation(x, body.Account, &body.Operations[i])
		if err != nil {
			x.undo(mark)
			x.reads, x.validators = before, counted
			return outcome{trace: true, err: tx.Errorf(err.Code, "operation %d: %s", i, err.Reason)}
		}
		result.Results = append(result.Results, tx.OperationResult{Found: found, Value: value})
		if event != nil {
			events = append(events, *event)
		}
	}
	return outcome{trace: true, result: result, events: events}
}

func (x *executor) runText(t *tx.Text) outcome {
	if err := x.refuseText(x.params, t); err != nil {
		return outcome{err: err}
	}
	event := x.write(t.Key, t.Value, KindPut)
	done := outcome{trace: true}
	if event != nil {
		done.events = []abci.Event{*event}
	}
	return done
}

// refuseText returns why a text transaction may not write its key, nil if it may.
func (o *overlay) refuseText(params *Params, t *tx.Text) *tx.Error {
	if !params.Open {
		return tx.Errorf(tx.CodeTextClosed, "this chain takes no text transactions: send a signed one")
	}
	if o.covered(t.Key) {
		return tx.Errorf(tx.CodeTextClosed, "a grant covers key %q, so only signed transactions may write it", shorten(t.Key))
	}
	return nil
}

// nonce returns the nonce of account's next transaction.
func (o *overlay) nonce(account []byte) uint64 { return decodeUint64(o.get(NonceKey(account))) }

func (o *overlay) isAdmin(account []byte) bool { return o.get(AdminKey(account)) != nil }

func checkNonce(account []byte, nonce, next uint64) *tx.Error {
	if nonce != next {
		return tx.Errorf(tx.CodeBadNonce, "account %x: the transaction has nonce %d, its next is %d", account, nonce, next)
	}
	if next == math.MaxUint64 {
		return tx.Errorf(tx.CodeBadNonce, "account %x has used up its nonces", account)
	}
	return nil
}

// operation executes one operation of account. found: whether its key was there before.
func (x *executor) operation(account []byte, operation *tx.Operation) (found bool, value []byte, event *abci.Event, err *tx.Error) {
	switch op := operation.Op.(type) {
	case *tx.Operation_Put:
		found, event, err = x.putOrDelete(account, op.Put.Key, op.Put.Value)
	case *tx.Operation_Delete:
		found, event, err = x.putOrDelete(account, op.Delete.Key, nil)
	case *tx.Operation_CompareAndPut:
		found, event, err = x.compareAndPut(account, op.CompareAndPut)
	case *tx.Operation_Read:
		value, err = x.read(op.Read.Key)
		found = value != nil
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
	default:
		err = tx.Errorf(tx.CodeMalformed, "unknown operation")
	}
	return found, value, event, err
}

// write sets key to value (nil: deletes) and returns the event of it, nil where nothing changes.
func (x *executor) write(key, value []byte, kind string) *abci.Event {
	old := x.set(key, value)
	if bytes.Equal(old, value) {
		return nil
	}
	return newEvent(key, kind)
}

func newEvent(key []byte, kind string) *abci.Event {
	return &abci.Event{Type: EventType, Attributes: []abci.EventAttribute{
		{Key: EventKey, Value: hex.EncodeToString(key), Index: true},
		{Key: EventKind, Value: kind, Index: true},
	}}
}

// putOrDelete writes a client's key under the account's grant: value nil deletes.
func (x *executor) putOrDelete(account, key, value []byte) (found bool, event *abci.Event, err *tx.Error) {
	if err := x.mayWrite(account, key, value); err != nil {
		return false, nil, err
	}
	kind := KindPut
	if value == nil {
		kind = KindDelete
	}
	found = x.get(key) != nil
	return found, x.write(key, value, kind), nil
}

// mayWrite tells whether the account may set key to value: by the grant with the longest prefix, within its quota.
func (x *executor) mayWrite(account, key, value []byte) *tx.Error {
	if key[0] == reserved {
		return tx.Errorf(tx.CodeReserved, "keys that start with byte 0x00 are the application's own")
	}
	g, ok := x.grantFor(account, key)
	if !ok {
		return tx.Errorf(tx.CodeUnauthorized, "account %x has no grant for key %q", account, shorten(key))
	}
	before, after := recordBytes(key, x.get(key)), recordBytes(key, value)
	if g.quota == 0 || after <= before {
		return nil
	}
	if used := x.usage(g.prefix) + after - before; used > g.quota {
		return tx.Errorf(tx.CodeQuota, "the keys under prefix %q would take %d bytes, the quota is %d", shorten(g.prefix), used, g.quota)
	}
	return nil
}

func (x *executor) compareAndPut(account []byte, op *tx.CompareAndPut) (bool, *abci.Event, *tx.Error) {
	if err := x.mayWrite(account, op.Key, op.Value); err != nil {
		return false, nil, err
	}
	value := x.get(op.Key)
	switch {
	case value == nil && len(op.Expected) > 0:
		return false, nil, tx.Errorf(tx.CodeCompareFailed, "key %q is absent", shorten(op.Key))
	case value != nil && len(op.Expected) == 0:
		return false, nil, tx.Errorf(tx.CodeCompareFailed, "key %q is there, it was expected to be absent", shorten(op.Key))
	case !bytes.Equal(value, op.Expected):
		return false, nil, tx.Errorf(tx.CodeCompareFailed, "key %q has another value than expected", shorten(op.Key))
	}
	return value != nil, x.write(op.Key, op.Value, KindPut), nil
}

func (x *executor) read(key []byte) ([]byte, *tx.Error) {
	value := x.get(key)
	after := reads{x.reads.bytes + uint64(len(value)), x.reads.number + 1}
	switch {
	case after.bytes > ReadBudgetBytes:
		return nil, tx.Errorf(tx.CodeReadBudget, "the reads of one block return %d bytes at most: read less at once, or by a query", ReadBudgetBytes)
	case after.number > ReadBudget:
		return nil, tx.Errorf(tx.CodeReadBudget, "there are %d reads in a block at most: read less at once, or by a query", ReadBudget)
	}
	x.reads = after
	return value, nil
}

// grant gives or (KindRevoke) takes back a grant.
func (x *executor) grant(account, grantee, prefix []byte, quota uint64, kind string) (bool, *abci.Event, *tx.Error) {
	if !x.isAdmin(account) {
		return false, nil, notAdmin(account, "give or take back grants")
	}
	old, changed := x.setGrant(grantee, prefix, quota, kind == KindRevoke)
	if !changed {
		return old != nil, nil, nil
	}
	return old != nil, newEvent(GrantKey(grantee, prefix), kind), nil
}

func notAdmin(account []byte, what string) *tx.Error {
	return tx.Errorf(tx.CodeNotAdmin, "account %x is no admin: only an admin may %s", account, what)
}

func (x *executor) setAdmin(account []byte, op *tx.SetAdmin) (bool, *abci.Event, *tx.Error) {
	if !x.isAdmin(account) {
		return false, nil, notAdmin(account, "change admins")
	}
	found := x.isAdmin(op.Account)
	if !op.Remove {
		return found, x.write(AdminKey(op.Account), adminValue, KindAdmin), nil
	}
	if found && x.lastAdmin() {
		return false, nil, tx.Errorf(tx.CodeInvalidChange, "account %x is the last admin: name another one first", op.Account)
	}
	return found, x.write(AdminKey(op.Account), nil, KindAdmin), nil
}

// lastAdmin tells whether there is only one admin. The admins' records are all of one length, so their bytes count them.
func (x *executor) lastAdmin() bool {
	start := record(tagAdmin)
	end := prefixEnd(start)
	sum := x.base.RangeBytes(start, end)
	x.ascend(start, end, func(e *overlayEntry) {
		sum += recordBytes(e.key, e.value) - recordBytes(e.key, e.before)
	})
	return sum <= recordBytes(AdminKey(everyone), adminValue)
}

// shorten makes a key fit for a message.
func shorten(key []byte) []byte { return key[:min(len(key), 64)] }
