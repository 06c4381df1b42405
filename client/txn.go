package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/tx"
)

// Txn is a transaction with conditions, created by Client.Txn. It is executed atomically: no other
// transaction is executed between its conditions and its operations.
//
//	done, err := c.Txn(ctx).
//		If(client.Equal(lock, alice), client.Absent(job)).
//		Then(tx.NewPut(job, work), tx.NewRead(next)).
//		Else(tx.NewRead(lock)).
//		Commit()
type Txn struct {
	client *Client
	ctx    context.Context // only used by Commit, as in etcd's client
	txn    tx.Txn
	err    error
}

// Condition is a condition for If: see Equal, Absent and Present.
type Condition struct {
	compare tx.Compare
	err     error
}

// Equal holds if key has this value.
func Equal(key, value []byte) Condition {
	c := Condition{compare: tx.Compare{Key: key, Value: value}}
	if len(value) == 0 {
		c.err = fmt.Errorf("client: key %q is compared with an empty value, which no key can have: use Absent", shorten(key))
	}
	return c
}

// Absent holds if key does not exist.
func Absent(key []byte) Condition { return Condition{compare: tx.Compare{Key: key}} }

// Present holds if key exists.
func Present(key []byte) Condition {
	return Condition{compare: tx.Compare{Key: key, Present: true}}
}

// Txn begins a transaction with conditions. Nothing is sent before Commit.
func (c *Client) Txn(ctx context.Context) *Txn { return &Txn{client: c, ctx: ctx} }

// If adds conditions, all of which must hold. Without conditions, Then is executed.
func (t *Txn) If(conditions ...Condition) *Txn {
	for _, c := range conditions {
		t.txn.Compares = append(t.txn.Compares, c.compare)
		t.err = errors.Join(t.err, c.err)
	}
	return t
}

// Then adds operations to execute if all conditions hold: tx.NewPut, tx.NewDelete, tx.NewRead,
// tx.NewReadRange, tx.NewDeleteRange or tx.NewDeletePart.
func (t *Txn) Then(operations ...tx.Operation) *Txn {
	t.txn.Success = append(t.txn.Success, operations...)
	return t
}

// Else adds operations to execute if a condition does not hold, of the same kinds.
func (t *Txn) Else(operations ...tx.Operation) *Txn {
	t.txn.Failure = append(t.txn.Failure, operations...)
	return t
}

// TxnResult is the result of an executed Txn.
type TxnResult struct {
	Hash      []byte
	Height    int64
	Succeeded bool                 // all conditions held
	Results   []tx.OperationResult // one for each operation of Then or of Else
}

// Commit signs the transaction, sends it and waits until it is executed. A condition that does not
// hold is not an error. The errors are those of Submit. The account needs permission for all writes
// of Then and of Else, whichever is executed.
func (t *Txn) Commit() (*TxnResult, error) {
	if t.err != nil {
		return nil, t.err
	}
	result, err := t.client.Submit(t.ctx, tx.NewTxn(t.txn.Compares, t.txn.Success, t.txn.Failure))
	if err != nil {
		return nil, err
	}
	if len(result.Results) != 1 {
		return nil, fmt.Errorf("client: transaction %X has %d results, want 1", result.Hash, len(result.Results))
	}
	done := &TxnResult{Hash: result.Hash, Height: result.Height, Succeeded: result.Results[0].Succeeded, Results: result.Results[0].Results}
	want := t.txn.Failure
	if done.Succeeded {
		want = t.txn.Success
	}
	if len(done.Results) != len(want) {
		return nil, fmt.Errorf("client: transaction %X has the results of %d operations, want %d", done.Hash, len(done.Results), len(want))
	}
	return done, nil
}
