package app

import (
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/tx"
)

// The results of a block's reads fit into a gRPC message with everything else, even if each result
// is longer than the operation that requests it.
func TestReadsOfABlockAreBounded(t *testing.T) {
	a := startChain(t, &memoryStore{}, `{"grants": [{"grantee": "@alice", "prefix": "a"}]}`)
	reads := make([]tx.Operation, tx.MaxOperations)
	for i := range reads {
		reads[i] = read("a")
	}
	txs := [][]byte{sign(t, "alice", 0, put("a", "123"))}
	for nonce := range uint64(50) {
		txs = append(txs, sign(t, "alice", nonce+1, reads...))
	}
	proposal, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Txs: txs, MaxTxBytes: 1 << 30})
	require.NoError(t, err)
	require.Equal(t, txs[:1+ReadBudget/tx.MaxOperations], proposal.Txs) // the others wait
	res := finalize(t, a, txs...)
	for i, result := range res.TxResults {
		want := tx.CodeOK
		if i > ReadBudget/tx.MaxOperations {
			want = tx.CodeReadBudget
		}
		require.Equal(t, uint32(want), result.Code, i)
	}
	require.Less(t, res.Size(), 1<<20)
}
