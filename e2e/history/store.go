package history

import (
	"context"
	"errors"
	"math"

	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

// store executes transactions, one at a time: a node, accessed with an account that nothing else
// uses.
type store interface {
	// execute returns when the outcome is known. If ctx ends before that, the answer is Maybe or
	// Refused.
	execute(ctx context.Context, operations []Operation) answer
}

// answer is the answer that a client gets for a transaction; its fields are those of Transaction.
type answer struct {
	outcome Outcome
	results []Result
	hash    []byte
	height  int64
	why     error
}

// starlingStore is a node of Starling.
type starlingStore struct{ *client.Client }

// connectStarling connects to the RPC server of a node.
func connectStarling(ctx context.Context, node, chainID, account string) (store, error) {
	key := ed25519.GenPrivKeyFromSecret([]byte(account))
	c, err := client.Dial(ctx, []string{node}, client.WithChainID(chainID), client.WithKey(key))
	if err != nil {
		return nil, err
	}
	return starlingStore{c}, nil
}

func (s starlingStore) execute(ctx context.Context, operations []Operation) answer {
	list := make([]tx.Operation, len(operations))
	for i, o := range operations {
		list[i] = o.encode()
	}
	return answerOf(s.Submit(ctx, list...))
}

// answerOf classifies the result of Client.Submit by its consequences for the state.
func answerOf(result *client.TxResult, err error) answer {
	var (
		unknown *client.UnknownOutcomeError
		refused *client.TxError
	)
	switch {
	case err == nil:
		a := answer{outcome: OK, hash: result.Hash, height: result.Height, results: make([]Result, len(result.Results))}
		for i, r := range result.Results {
			a.results[i] = resultOf(&r)
		}
		return a
	case errors.As(err, &unknown):
		// This case comes first, since the error may wrap a refusal of the same bytes, sent again.
		return answer{outcome: Maybe, hash: unknown.Hash, why: err}
	case errors.As(err, &refused) && fails(refused.Code):
		return answer{outcome: Failed, hash: refused.Hash, height: refused.Height}
	case errors.As(err, &refused) && refused.Height > 0 && refused.Code == tx.CodeBadNonce:
		// A block contained it too early. That leaves no trace in the state, so another block can
		// still execute the same bytes.
		return answer{outcome: Maybe, hash: refused.Hash, why: err}
	case errors.As(err, &refused):
		return answer{outcome: Refused, hash: refused.Hash, why: err}
	default:
		return answer{outcome: Refused, why: err}
	}
}

// fails reports whether a transaction with this code was executed in a block without effect, for a
// reason that depends on the state.
func fails(code tx.Code) bool {
	return code == tx.CodeCompareFailed || code == tx.CodeOutOfBounds || code == tx.CodeNotNumber
}

func (o Operation) encode() tx.Operation {
	key := []byte(o.Key)
	switch o.Kind {
	case Put:
		return tx.NewPut(key, []byte(o.Value))
	case CompareAndPut:
		return tx.NewCompareAndPut(key, []byte(o.Expected), []byte(o.Value))
	case Delete:
		return tx.NewDelete(key)
	case Compare:
		return tx.NewCompare(key, []byte(o.Expected))
	case Add:
		if o.Least == math.MinInt64 && o.Most == math.MaxInt64 {
			return tx.NewAdd(key, o.Delta)
		}
		return tx.NewBoundedAdd(key, o.Delta, o.Least, o.Most)
	case ReadRange:
		return tx.NewReadRange(key, []byte(o.End), uint32(o.Limit))
	case DeleteRange:
		return tx.NewDeletePart(key, []byte(o.End), uint32(o.Limit))
	case Txn:
		var compares []tx.Compare
		for _, c := range o.If {
			compares = append(compares, tx.Compare{Key: []byte(c.Key), Value: []byte(c.Value), Present: c.Present})
		}
		return tx.NewTxn(compares, encodeAll(o.Then), encodeAll(o.Else))
	default:
		return tx.NewRead(key)
	}
}

func encodeAll(operations []Operation) (list []tx.Operation) {
	for _, o := range operations {
		list = append(list, o.encode())
	}
	return list
}

// decodeOperation is the inverse of encode. It returns false for kinds that the clients do not use.
func decodeOperation(o *tx.Operation) (Operation, bool) {
	switch op := o.Op.(type) {
	case *tx.Operation_Put:
		return Operation{Kind: Put, Key: string(op.Put.Key), Value: string(op.Put.Value)}, true
	case *tx.Operation_CompareAndPut:
		c := op.CompareAndPut
		return Operation{Kind: CompareAndPut, Key: string(c.Key), Expected: string(c.Expected), Value: string(c.Value)}, true
	case *tx.Operation_Delete:
		return Operation{Kind: Delete, Key: string(op.Delete.Key)}, true
	case *tx.Operation_Read:
		return Operation{Kind: Read, Key: string(op.Read.Key)}, true
	case *tx.Operation_Compare:
		c := op.Compare
		return Operation{Kind: Compare, Key: string(c.Key), Expected: string(c.Value)}, !c.Present
	case *tx.Operation_Add:
		least, most := op.Add.Limits()
		return Operation{Kind: Add, Key: string(op.Add.Key), Delta: op.Add.Delta, Least: least, Most: most}, true
	case *tx.Operation_ReadRange:
		r := op.ReadRange
		return Operation{Kind: ReadRange, Key: string(r.Start), End: string(r.End), Limit: int(r.Limit)}, len(r.End) > 0
	case *tx.Operation_DeleteRange:
		r := op.DeleteRange
		return Operation{Kind: DeleteRange, Key: string(r.Start), End: string(r.End), Limit: int(r.Limit)}, r.Part && len(r.End) > 0
	case *tx.Operation_Txn:
		return decodeTxn(op.Txn)
	default:
		return Operation{}, false
	}
}

func decodeTxn(t *tx.Txn) (Operation, bool) {
	o := Operation{Kind: Txn}
	for _, c := range t.Compares {
		o.If = append(o.If, Condition{Key: string(c.Key), Value: string(c.Value), Present: c.Present})
	}
	for b, to := range []*[]Operation{&o.Then, &o.Else} {
		branch := t.Branches()[b]
		for i := range branch {
			inner, known := decodeOperation(&branch[i])
			if !known {
				return Operation{}, false
			}
			*to = append(*to, inner)
		}
	}
	return o, true
}

// resultOf returns the reported result of an operation.
func resultOf(r *tx.OperationResult) Result {
	result := Result{Found: r.Found, Value: string(r.Value), Deleted: int(r.Deleted), More: r.More, Holds: r.Succeeded}
	for _, e := range r.Entries {
		result.Entries = append(result.Entries, Entry{string(e.Key), string(e.Value)})
	}
	for i := range r.Results {
		result.Results = append(result.Results, resultOf(&r.Results[i]))
	}
	return result
}
