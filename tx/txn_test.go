package tx

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/hexruns"
)

func toVectorTxn(op Operation) vectorOperation {
	h := hex.EncodeToString
	p := func(b []byte) *string { s := h(b); return &s }
	compare := func(c *Compare) vectorOperation {
		return vectorOperation{Kind: "compare", Key: h(c.Key), Value: h(c.Value), Present: c.Present}
	}
	branch := func(operations []Operation) (all []vectorOperation) {
		for _, op := range operations {
			all = append(all, toVectorOperation(op))
		}
		return all
	}
	switch o := op.Op.(type) {
	case *Operation_Compare:
		return compare(o.Compare)
	case *Operation_ReadRange:
		return vectorOperation{Kind: "read_range", Start: p(o.ReadRange.Start), End: p(o.ReadRange.End), Limit: o.ReadRange.Limit}
	case *Operation_DeleteRange:
		d := o.DeleteRange
		return vectorOperation{Kind: "delete_range", Start: p(d.Start), End: p(d.End), Limit: d.Limit, Part: d.Part}
	case *Operation_Txn:
		v := vectorOperation{Kind: "txn", Success: branch(o.Txn.Success), Failure: branch(o.Txn.Failure)}
		for i := range o.Txn.Compares {
			v.Compares = append(v.Compares, compare(&o.Txn.Compares[i]))
		}
		return v
	}
	return vectorOperation{Kind: "none"}
}

// txnVectors returns conditions, ranges and Txns, at their limits, above them, and in encodings
// that are none.
func txnVectors(t *testing.T) []vector {
	var all []vector
	made := func(name string, code Code, operations ...Operation) {
		v := signedVector(t, name, "alice", vectorChain, 2, operations)
		require.Equal(t, code, v.Code, name)
		if len(v.Tx) > 8<<10 { // fields and sign bytes would only repeat it
			v = vector{Name: name, ChainID: vectorChain, Tx: hexruns.Encode(parseRuns(t, v.Tx)), Code: v.Code}
		}
		all = append(all, v)
	}
	raw := func(name string, code Code, operations ...[]byte) {
		b := signedBody(t, rawBody(alice, nil, operations...))
		require.Equal(t, code, codeOf(t, b, vectorChain), name)
		all = append(all, vector{Name: name, ChainID: vectorChain, Tx: hexruns.Encode(b), Code: code})
	}
	k, long := []byte("k"), []byte(strings.Repeat("k", MaxKeyBytes+1))
	put, compare := NewPut(k, []byte("v")), Compare{Key: k, Value: []byte("v")}
	many := func(op Operation, n int) (list []Operation) {
		for range n {
			list = append(list, op)
		}
		return list
	}

	made("compares: a value, absent, present", CodeOK, NewCompare(k, []byte("v")), NewCompare(k, nil), NewComparePresent(k), NewCompare([]byte{0, 'p'}, nil))
	made("compare: no key", CodeMalformed, NewCompare(nil, nil))
	made("compare: key too long", CodeTooLarge, NewCompare(long, nil))
	made("compare: value too long", CodeTooLarge, NewCompare(k, make([]byte, MaxValueBytes+1)))
	made("compare: a value and present", CodeMalformed, compareOperation(Compare{Key: k, Value: k, Present: true}))
	made("ranges: read and delete, open and not", CodeOK, NewReadRange(nil, nil, 1), NewReadRange(k, []byte("l"), 5), NewDeleteRange(k, nil, 5), NewDeletePart(k, []byte("l"), 5))
	made("read range: limit 0", CodeMalformed, NewReadRange(k, nil, 0))
	made("read range: limit 10,000", CodeOK, NewReadRange(k, nil, MaxOperations))
	made("read range: limit 10,001", CodeTooLarge, NewReadRange(k, nil, MaxOperations+1))
	made("read range: limit 2^32-1", CodeTooLarge, NewReadRange(k, nil, 1<<32-1))
	made("ranges: limits of 10,001 together", CodeTooLarge, NewReadRange(k, nil, MaxOperations/2), NewDeleteRange(k, nil, MaxOperations/2), put)
	made("read range: end at start", CodeMalformed, NewReadRange(k, k, 1))
	made("read range: end below start", CodeMalformed, NewReadRange(k, []byte("j"), 1))
	made("read range: start too long", CodeTooLarge, NewReadRange(long, nil, 1))
	made("read range: end too long", CodeTooLarge, NewReadRange(nil, long, 1))
	made("read range: under 00", CodeOK, NewReadRange([]byte{0}, []byte{1}, 1))
	made("delete range: no start", CodeReserved, NewDeleteRange(nil, k, 1))
	made("delete range: under 00", CodeReserved, NewDeleteRange([]byte{0, 1}, k, 1))
	made("delete range: start too long, limit 0", CodeTooLarge, NewDeleteRange(long, nil, 0))
	made("delete range: start 01, to the end", CodeOK, NewDeleteRange([]byte{1}, nil, 1))

	branch := []Operation{put, NewDelete(k), NewRead(k), NewReadRange(k, nil, 3), NewDeleteRange(k, nil, 3)}
	made("txn: all kinds in both branches", CodeOK, NewTxn([]Compare{compare, {Key: k}, {Key: k, Present: true}}, branch, branch))
	made("txn: compares alone", CodeOK, NewTxn([]Compare{compare}, nil, nil))
	made("txn: failure alone", CodeOK, NewTxn(nil, nil, branch))
	made("txn: nothing", CodeMalformed, NewTxn(nil, nil, nil))
	made("txn: a compare that is none", CodeMalformed, NewTxn([]Compare{{}}, branch, nil))
	made("txn: success writes under 00", CodeReserved, NewTxn(nil, []Operation{NewPut([]byte{0}, k)}, nil))
	made("txn: failure with an empty value", CodeMalformed, NewTxn(nil, nil, []Operation{put, NewPut(k, nil)}))
	for _, op := range []Operation{NewCompare(k, nil), NewCompareAndPut(k, nil, k), NewGrant(nil, k, 1), NewSetAdmin(alice, false), {}} {
		made("txn: in a branch, "+toVectorOperation(op).Kind, CodeMalformed, NewTxn(nil, []Operation{op}, nil))
	}
	made("txn: in a branch, txn", CodeMalformed, NewTxn(nil, nil, []Operation{NewTxn([]Compare{compare}, nil, nil)}))
	made("txn: 10,000 compares and operations", CodeOK, NewTxn(nil, many(put, 4000), many(put, 6000)))
	made("txn: 10,001 compares and operations", CodeTooLarge, NewTxn([]Compare{compare}, many(put, 4000), many(put, 6000)))
	made("txns: 10,001 compares and operations", CodeTooLarge, NewTxn(nil, many(put, 4000), nil), NewTxn(nil, nil, many(put, 6001)))
	made("txn: 10,000 with the limit of a range in the other branch", CodeOK, NewTxn(nil, many(put, 4000), []Operation{NewReadRange(k, nil, 6000)}))
	made("txn: 10,001 with the limit of a range in the other branch", CodeTooLarge, NewTxn(nil, many(put, 4000), []Operation{NewReadRange(k, nil, 6001)}))

	key, value := field(1, k), field(2, []byte("v"))
	txn := func(parts ...[]byte) []byte { return field(13, parts...) }
	one := field(1, key)
	raw("encoding of a compare: present written as 0", CodeMalformed, field(10, key, []byte{0x18, 0}))
	raw("encoding of a compare: present written as 2", CodeMalformed, field(10, key, []byte{0x18, 2}))
	raw("encoding of a compare: an unknown field", CodeMalformed, field(10, key, value, []byte{0x20, 1}))
	raw("encoding of a range: a limit in a longer form", CodeMalformed, field(11, []byte{0x18, 0x81, 0}))
	raw("encoding of a range: a limit of 33 bits", CodeMalformed, field(11, []byte{0x18, 0x81, 0x80, 0x80, 0x80, 0x10}))
	raw("encoding of a range: limit before start", CodeMalformed, field(12, []byte{0x18, 1}, key))
	raw("encoding of a txn: success before compares", CodeMalformed, txn(field(2, plainPut), one))
	raw("encoding of a txn: compares apart", CodeMalformed, txn(one, field(2, plainPut), one))
	raw("encoding of a txn: two kinds in an operation of a branch", CodeMalformed, txn(field(2, plainPut, field(2, key))))
	raw("encoding of a txn: an unknown field", CodeMalformed, txn(one, []byte{0x20, 1}))
	raw("encoding of a txn: txns in each other", CodeMalformed, deep(40))
	fill := func(operation []byte, n int) (b []byte) {
		return []byte(strings.Repeat(string(operation), n))
	}
	raw("encoding of a txn: 10,001 empty operations in success", CodeTooLarge, txn(fill(field(2), MaxOperations+1)))
	raw("encoding of a txn: 10,001, their lengths in a longer form", CodeTooLarge, txn(fill([]byte{0x12, 0x80, 0}, MaxOperations+1)))
	raw("encoding of a txn: 10,001, an unknown field behind them", CodeTooLarge, txn(fill(field(2), MaxOperations+1), []byte{0x20, 1}))
	raw("encoding of a txn: 10,001, what is cut off behind them", CodeMalformed, txn(fill(field(2), MaxOperations+1), []byte{0x12, 1}))
	raw("encoding of a txn: 10,001, a compare of wire type 0 behind them", CodeMalformed, txn(fill(field(2), MaxOperations+1), []byte{0x08, 1}))
	raw("encoding of a txn: 10,001, a txn in one of them", CodeMalformed, txn(fill(field(2), MaxOperations), field(2, field(13))))
	raw("encoding of a txn: an empty one", CodeMalformed, txn())
	return all
}
