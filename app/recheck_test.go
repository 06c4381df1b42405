package app

import (
	"crypto/sha256"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/tx"
)

// After a block, CometBFT checks its whole mempool again while the next block waits. Executing a
// transaction of 10,000 operations takes 10 ms, and five thousand of them about a minute. So while
// no right has changed, only the nonce is checked.
func TestRecheck(t *testing.T) {
	a := startChain(t, &memoryStore{}, `{"admins": ["@root"], "grants": [{"grantee": "@alice", "prefix": "a"}, {"grantee": "@bob", "prefix": "b"}]}`)
	check := func(raw []byte, kind abci.CheckTxType) tx.Code {
		t.Helper()
		res, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw, Type: kind})
		require.NoError(t, err)
		return tx.Code(res.Code)
	}
	known := func(raw []byte) bool {
		_, ok := a.check.admittedEarlier(sha256.Sum256(raw))
		return ok
	}
	var txs [][]byte
	for nonce := range uint64(5) {
		txs = append(txs, sign(t, "alice", nonce, put("a", "1")))
		require.Equal(t, tx.CodeOK, check(txs[nonce], abci.CheckTxType_New))
	}
	gap := sign(t, "alice", 6, put("a", "1"))
	require.Equal(t, tx.CodeBadNonce, check(gap, abci.CheckTxType_New))

	runBlock(t, a, txs[0], sign(t, "bob", 0, put("b", "1")))
	require.True(t, known(txs[0]) && known(txs[1]))
	require.False(t, known(gap))
	require.Equal(t, tx.CodeBadNonce, check(txs[0], abci.CheckTxType_Recheck), "it is in the block")
	require.Equal(t, tx.CodeBadNonce, check(txs[2], abci.CheckTxType_Recheck), "the transaction before it comes first")
	require.Equal(t, tx.CodeBadNonce, check(gap, abci.CheckTxType_Recheck))
	require.Equal(t, tx.CodeOK, check(txs[1], abci.CheckTxType_Recheck))
	require.Equal(t, tx.CodeOK, check(txs[2], abci.CheckTxType_Recheck))
	require.Equal(t, tx.CodeOK, check(txs[2], abci.CheckTxType_New), "CometBFT knows whether it waits already")
	require.Equal(t, tx.CodeBadNonce, check(sign(t, "alice", 2, put("a", "2")), abci.CheckTxType_New), "another transaction with its nonce")

	runBlock(t, a)
	require.True(t, known(txs[1]) && known(txs[2]))
	require.False(t, known(txs[3]), "it was dropped")
	require.Equal(t, tx.CodeOK, check(txs[1], abci.CheckTxType_Recheck))

	runBlock(t, a, sign(t, "root", 0, revokeOp(account("alice"), "a")))
	require.False(t, known(txs[1]))
	require.Equal(t, tx.CodeUnauthorized, check(txs[1], abci.CheckTxType_Recheck))
}

func TestChangeRights(t *testing.T) {
	for name, c := range map[string]struct {
		changed bool
		txs     [][]byte
	}{
		"nothing":   {false, nil},
		"write":     {false, [][]byte{sign(t, "alice", 0, put("a", "1"))}},
		"validator": {false, [][]byte{sign(t, "root", 0, validatorOp(account("v2"), 1))}},
		"grant":     {true, [][]byte{sign(t, "root", 0, grantOp(account("bob"), "b", 0))}},
		"quota":     {true, [][]byte{sign(t, "root", 0, grantOp(account("alice"), "a", 9))}},
		"revoke":    {true, [][]byte{sign(t, "root", 0, revokeOp(account("alice"), "a"))}},
		"admin":     {true, [][]byte{sign(t, "root", 0, adminOp(account("bob"), false))}},
		"undone":    {false, [][]byte{sign(t, "root", 0, adminOp(account("bob"), false), put("a", "1"))}},
	} {
		a := startChain(t, &memoryStore{}, `{"admins": ["@root"], "grants": [{"grantee": "@alice", "prefix": "a"}]}`)
		finalize(t, a, c.txs...)
		require.Equal(t, c.changed, changeRights(a.block.pending.changes), name)
	}
}
