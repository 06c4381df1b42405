package client

import (
	"testing"

	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/tx"
)

func TestTxn(t *testing.T) {
	ctx, _, _, c := connected(t)
	a, b := []byte("a"), []byte("b")
	_, err := c.Put(ctx, a, []byte("1"))
	require.NoError(t, err)

	txn := func() *Txn {
		return c.Txn(ctx).If(Equal(a, []byte("1"))).If(Absent(b)).Then(tx.NewPut(b, []byte("2")), tx.NewRead(a)).Else(tx.NewReadRange(a, nil, 5))
	}
	done, err := txn().Commit()
	require.NoError(t, err)
	require.True(t, done.Succeeded)
	require.NotEmpty(t, done.Hash)
	require.Positive(t, done.Height)
	require.Equal(t, []tx.OperationResult{{}, {Found: true, Value: []byte("1")}}, done.Results)

	done, err = txn().Commit()
	require.NoError(t, err)
	require.False(t, done.Succeeded)
	require.Equal(t, []tx.KeyValue{{Key: a, Value: []byte("1")}, {Key: b, Value: []byte("2")}}, done.Results[0].Entries)

	done, err = c.Txn(ctx).If(Present(b)).Then(tx.NewDelete(b)).Commit()
	require.NoError(t, err)
	require.True(t, done.Succeeded)
	done, err = c.Txn(ctx).If(Present(b)).Then(tx.NewDelete(b)).Commit()
	require.NoError(t, err)
	require.False(t, done.Succeeded)
	require.Empty(t, done.Results)

	_, err = c.Txn(ctx).If(Equal(b, nil)).Then(tx.NewDelete(b)).Commit()
	require.ErrorContains(t, err, "use Absent")
	_, err = c.Txn(ctx).Commit()
	require.ErrorIs(t, err, &tx.Error{Code: tx.CodeMalformed})
	_, err = c.Txn(ctx).Then(tx.NewTxn(nil, []tx.Operation{tx.NewRead(a)}, nil)).Commit()
	require.ErrorContains(t, err, "a branch of a txn may contain only")
}

// TestTxnResultsThatDoNotFit: results that do not match the transaction are detected.
func TestTxnResultsThatDoNotFit(t *testing.T) {
	for name, results := range map[string][]tx.OperationResult{
		"none":                      nil,
		"two":                       {{}, {}},
		"too many in the branch":    {{Succeeded: true, Results: []tx.OperationResult{{}, {}}}},
		"none in the branch":        {{Succeeded: true}},
		"those of the other branch": {{Results: []tx.OperationResult{{}}}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, _, node, c := connected(t)
			data, err := (&tx.Result{Results: results}).Marshal()
			require.NoError(t, err)
			node.lies(func(answer any) error {
				if found, ok := answer.(*ctypes.ResultTx); ok {
					found.TxResult.Data = data
				}
				return nil
			})
			_, err = c.Txn(ctx).If(Present([]byte("a"))).Then(tx.NewRead([]byte("a"))).Commit()
			require.ErrorContains(t, err, "want")
		})
	}
}
