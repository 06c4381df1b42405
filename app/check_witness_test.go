package app

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/tx"
)

func checked(t *testing.T, a *App, raw []byte, kind abci.CheckTxType) tx.Code {
	t.Helper()
	began := time.Now()
	res, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw, Type: kind})
	require.NoError(t, err)
	require.Zero(t, time.Since(began), "CheckTx waited")
	return tx.Code(res.Code)
}

// CheckTx lets in what it cannot check, asks for what it lacks, and judges at the recheck.
func TestCheckTxNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{Depth: 1, Window: 1})
		defer a.Stop()
		source.delayed(100 * time.Millisecond)
		right, next := sign(t, "alice", 4, put("a7", "x")), sign(t, "alice", 5, put("a7", "y"))
		old, wrong := sign(t, "alice", 3, put("a7", "x")), sign(t, "bob", 0, put("b", "x"))
		for _, raw := range [][]byte{right, next, right} {
			require.Equal(t, tx.CodeOK, checked(t, a, raw, abci.CheckTxType_New))
		}
		require.Equal(t, tx.CodeOK, checked(t, a, wrong, abci.CheckTxType_New), "unchecked")
		require.Equal(t, 3, a.check.numUnchecked())
		bubble.Sleep(time.Second)
		require.Equal(t, tx.CodeUnauthorized, checked(t, a, sign(t, "bob", 1, put("b", "x")), abci.CheckTxType_New), "bob's rights have come")

		runBlock(t, local)
		runBlock(t, a)
		source.has(local)
		require.Zero(t, a.check.numUnchecked())
		require.Equal(t, tx.CodeOK, checked(t, a, right, abci.CheckTxType_Recheck))
		require.Equal(t, tx.CodeOK, checked(t, a, next, abci.CheckTxType_Recheck))
		require.Equal(t, tx.CodeBadNonce, checked(t, a, old, abci.CheckTxType_Recheck))
		require.Equal(t, tx.CodeUnauthorized, checked(t, a, wrong, abci.CheckTxType_Recheck))
		require.Zero(t, a.check.numUnchecked(), "all of them are checked")
		bubble.Sleep(time.Second)

		// The rights stay, and what was checked and asked for is there: nothing is fetched.
		before := source.requests()
		require.Equal(t, runBlock(t, local, right, next), runBlock(t, a, right, next))
		require.Equal(t, before, source.requests())
	})
}

// Transactions that wait unchecked are bounded: beyond that, the node is busy.
func TestUncheckedTransactionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, _, a := startBeside(t, avlstar.Retention{})
		defer a.Stop()
		source.silence(true)
		var last []byte
		for i := range maxUnchecked {
			last = sign(t, fmt.Sprint("stranger ", i), 0, put("c", "1"))
			require.Equal(t, tx.CodeOK, checked(t, a, last, abci.CheckTxType_New))
		}
		require.Equal(t, tx.CodeBusy, checked(t, a, sign(t, "one more", 0, put("c", "1")), abci.CheckTxType_New))
		require.Equal(t, tx.CodeOK, checked(t, a, last, abci.CheckTxType_New), "it waits already")
		require.LessOrEqual(t, source.requests(), 3, "one request at a time")
	})
}

// The next nonce of an account whose record is missing is fetched.
func TestNonceIsFetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, _, a := startBeside(t, avlstar.Retention{})
		defer a.Stop()
		ask := func() *abci.ResponseQuery {
			res, err := a.Query(ctx, &abci.RequestQuery{Path: PathNonce, Data: account("alice")})
			require.NoError(t, err)
			return res
		}
		require.Equal(t, encodeUint64(4), ask().Value)
		source.silence(true)
		began := time.Now()
		res := ask()
		require.Equal(t, uint32(tx.CodeUnreadable), res.Code)
		require.Contains(t, res.Log, "did not come from storage nodes in time")
		require.Equal(t, queryPatience*DefaultWitnessTimeout, time.Since(began))
	})
}

func TestKeepRecords(t *testing.T) {
	for _, c := range []struct {
		first, after string
		keep         bool
	}{
		{"", "", true}, {"", "\x00a", true}, {"\x00", "a", true}, {"\x00m", "\x00o", true}, {"\x00n", "\x00o", false},
		{"\x00n", "\x00p", true}, {"\x00n", "", true}, {"\x00nab", "\x00nb", false}, {"\x01", "", false}, {"a", "b", false},
	} {
		require.Equal(t, c.keep, KeepRecords([]byte(c.first), []byte(c.after)), "%q", c.first)
	}
}
