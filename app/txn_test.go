package app

import (
	"fmt"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/tx"
)

// The cost of a transaction is known without the state: the limits of its ranges, and both
// branches.
func TestCostOfTxns(t *testing.T) {
	all := []byte("a")
	signed := func(operations ...tx.Operation) *tx.Tx {
		decoded, err := tx.Decode(sign(t, "alice", 0, operations...), testChain)
		require.NoError(t, err)
		return decoded
	}
	compare := []tx.Compare{{Key: all}, {Key: all}}
	require.Equal(t, 2, cost(signed(tx.NewCompare(all, nil))))
	require.Equal(t, 1+7+9, cost(signed(tx.NewReadRange(all, nil, 7), tx.NewDeleteRange(all, nil, 9))))
	require.Equal(t, 1+2+1+5+1+1, cost(signed(tx.NewTxn(compare, []tx.Operation{put("a", "1"), tx.NewReadRange(all, nil, 5)}, []tx.Operation{del("a")}), read("a"))))
	most := signed(tx.NewTxn(compare, []tx.Operation{tx.NewReadRange(all, nil, tx.MaxOperations-3)}, []tx.Operation{del("a")}))
	require.Equal(t, 1+tx.MaxOperations, cost(most))

	// A proposal contains no more than a block may cost.
	a := startChain(t, &memoryStore{}, `{"admins": ["@root"], "grants": [{"grantee": "*", "prefix": ""}]}`)
	var txs [][]byte
	for i := range 10 {
		txs = append(txs, sign(t, fmt.Sprint("a", i), 0, tx.NewReadRange(all, nil, tx.MaxOperations)))
	}
	prepared, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Txs: txs, MaxTxBytes: 1 << 20})
	require.NoError(t, err)
	require.Len(t, prepared.Txs, maxCost/(1+tx.MaxOperations))
	processed, err := a.ProcessProposal(ctx, &abci.RequestProcessProposal{Txs: txs})
	require.NoError(t, err)
	require.False(t, processed.IsAccepted())
}

// The keys of txns are read ahead one window after the other, like those of operations.
func TestTxnsLookAhead(t *testing.T) {
	var (
		success, failure []tx.Operation
		want             []string
	)
	for i := range 300 {
		success, failure = append(success, put(fmt.Sprintf("s%03d", i), "1")), append(failure, del(fmt.Sprintf("f%03d", i)))
	}
	decodedTx, err := tx.Decode(sign(t, "alice", 0, read("before"), tx.NewTxn([]tx.Compare{{Key: []byte("c")}}, success, failure),
		tx.NewReadRange(nil, nil, 5), tx.NewDeleteRange([]byte("d"), nil, 5)), testChain)
	require.NoError(t, err)
	l := lookahead{txs: []decoded{{tx: decodedTx}}}
	var got []string
	for l.done = (place{0, -1, 0}); l.done.tx == 0; {
		n := 0
		for key := range l.keys() { // windows of seven
			if got = append(got, string(key)); n == 6 {
				break
			}
			n++
		}
	}
	for _, key := range [][]byte{AdminKey(account("alice")), GrantKey(account("alice"), nil), NonceKey(account("alice"))} {
		want = append(want, string(key))
	}
	want = append(want, "before", "c")
	for _, branch := range [][]tx.Operation{success, failure} {
		for i := range branch {
			want = append(want, string(keyOf(&branch[i])))
		}
	}
	require.Equal(t, append(want, "d"), got)
}
