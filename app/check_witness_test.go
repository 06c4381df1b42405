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

// CheckTx lets transactions in that it cannot check, requests the missing nodes, and decides at the
// recheck.
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
		require.Equal(t, 1, a.check.numUnchecked(), "a transaction with its rights gives up its slot when they arrive")
		require.Equal(t, tx.CodeUnauthorized, checked(t, a, sign(t, "bob", 1, put("b", "x")), abci.CheckTxType_New), "bob's rights have arrived")

		runBlock(t, local)
		runBlock(t, a)
		source.has(local)
		require.Equal(t, 1, a.check.numUnchecked(), "until its recheck")
		require.Equal(t, tx.CodeOK, checked(t, a, right, abci.CheckTxType_Recheck))
		require.Equal(t, tx.CodeOK, checked(t, a, next, abci.CheckTxType_Recheck))
		require.Equal(t, tx.CodeBadNonce, checked(t, a, old, abci.CheckTxType_Recheck))
		require.Equal(t, tx.CodeUnauthorized, checked(t, a, wrong, abci.CheckTxType_Recheck))
		require.Zero(t, a.check.numUnchecked(), "all of them are checked")
		bubble.Sleep(time.Second)

		// The rights stay in memory, and the requested keys are present: nothing is fetched.
		before := source.requests()
		require.Equal(t, runBlock(t, local, right, next), runBlock(t, a, right, next))
		require.Equal(t, before, source.requests())
	})
}

// The keys of a transaction that arrives before others of its account are requested: a block may
// have all of them.
func TestEarlyTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{Depth: 1, Window: 8})
		defer a.Stop()
		first, second := sign(t, "alice", 4, put("a7", "x")), sign(t, "alice", 5, put("a2", "y"))
		require.Equal(t, tx.CodeOK, checked(t, a, first, abci.CheckTxType_New), "unchecked")
		bubble.Sleep(time.Second)
		runBlock(t, local, first)
		runBlock(t, a, first)
		source.has(local)

		before := source.requests()
		for _, nonce := range []uint64{4, 5 + maxEarly + 1} { // spent, and too far ahead
			require.Equal(t, tx.CodeBadNonce, checked(t, a, sign(t, "alice", nonce, put("a1", "x")), abci.CheckTxType_New))
		}
		bubble.Sleep(time.Second)
		require.Equal(t, before, source.requests())

		third := sign(t, "alice", 6, put("a3", "z"))
		require.Equal(t, tx.CodeBadNonce, checked(t, a, third, abci.CheckTxType_New))
		bubble.Sleep(time.Second)
		require.Equal(t, before+1, source.requests())
		require.Equal(t, tx.CodeOK, checked(t, a, second, abci.CheckTxType_New))
		bubble.Sleep(time.Second)
		before = source.requests()
		require.Equal(t, runBlock(t, local, second, third), runBlock(t, a, second, third))
		require.Equal(t, before, source.requests())
	})
}

// A transaction whose nonce turns out to be spent keeps its slot until the recheck refuses it:
// anybody can send old transactions again.
func TestSpentNoncesKeepTheirSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{Depth: 1, Window: 1})
		defer a.Stop()
		source.delayed(100 * time.Millisecond)
		old := sign(t, "alice", 3, put("a7", "x"))
		require.Equal(t, tx.CodeOK, checked(t, a, old, abci.CheckTxType_New), "unchecked")
		bubble.Sleep(time.Second)
		require.Equal(t, tx.CodeBadNonce, checked(t, a, sign(t, "alice", 3, put("a7", "y")), abci.CheckTxType_New), "the nonce has arrived")
		require.Equal(t, 1, a.check.numUnchecked())
		runBlock(t, local)
		runBlock(t, a)
		source.has(local)
		require.Equal(t, tx.CodeBadNonce, checked(t, a, old, abci.CheckTxType_Recheck))
		require.Zero(t, a.check.numUnchecked())
	})
}

// Queries that had to wait for missing nodes leave room for others when they end.
func TestQueriesGiveUpTheirSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, _, a := startBeside(t, avlstar.Retention{})
		defer a.Stop()
		for range maxWaitingQueries + 1 {
			forgetQueries(a)
			res, err := a.Query(ctx, &abci.RequestQuery{Path: PathNonce, Data: account("alice")})
			require.NoError(t, err)
			require.Zero(t, res.Code, res.Log)
		}
		require.Greater(t, source.requests(), maxWaitingQueries)
	})
}

// Transactions that wait unchecked are bounded: above the bound, the node is busy.
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
		require.LessOrEqual(t, source.requests(), maxInFlight+2, "two of them for the start")

		// After a block they keep their slots, and the recheck leaves them in, also along with new
		// ones.
		var others [][]byte
		for i := range maxUnchecked {
			others = append(others, sign(t, fmt.Sprint("stranger ", i), 0, put("c", "1")))
		}
		v, params := a.check.state()
		a.check.reset(v, params, nil, true, a.decoder.decodeAll(others[:10], form{testChain, 1}))
		v.Release()
		require.Equal(t, maxUnchecked-10, a.check.numUnchecked(), "those in the block have given up their slots")
		for i := range 10 {
			require.Equal(t, tx.CodeOK, checked(t, a, sign(t, fmt.Sprint("new ", i), 0, put("c", "1")), abci.CheckTxType_New))
		}
		require.Equal(t, tx.CodeBusy, checked(t, a, sign(t, "one more", 0, put("c", "1")), abci.CheckTxType_New))
		for _, raw := range others[10:] {
			require.Equal(t, tx.CodeOK, checked(t, a, raw, abci.CheckTxType_Recheck))
		}
		require.Equal(t, maxUnchecked, a.check.numUnchecked())
	})
}

// Strangers with fresh keys cannot take the slots of accounts that have sent transactions before.
func TestStrangersLeaveSlotsToUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{Depth: 1, Window: 1})
		defer a.Stop()
		first := sign(t, "alice", 4, put("a7", "x"))
		runBlock(t, local, first)
		runBlock(t, a, first)
		source.silence(true)
		for i := range maxUnchecked {
			require.Equal(t, tx.CodeOK, checked(t, a, sign(t, fmt.Sprint("stranger ", i), 0, put("c", "1")), abci.CheckTxType_New))
		}
		require.Equal(t, tx.CodeBusy, checked(t, a, sign(t, "one more", 0, put("c", "1")), abci.CheckTxType_New))
		next := sign(t, "alice", 5, put("b", "x")) // that right is not in memory, the nonce is
		require.Equal(t, tx.CodeOK, checked(t, a, next, abci.CheckTxType_New))
		require.Equal(t, maxUnchecked+1, a.check.numUnchecked())
	})
}

// The wants of proposers do not wait behind unchecked transactions, however many there are: they
// are fetched while a request for the latter is pending.
func TestStrangersDoNotDelayProposers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, _, a := startBeside(t, avlstar.Retention{})
		defer a.Stop()
		source.silence(true)
		for i := range maxUnchecked {
			require.Equal(t, tx.CodeOK, checked(t, a, sign(t, fmt.Sprint("stranger ", i), 0, put("c", "1")), abci.CheckTxType_New))
		}
		synctest.Wait()
		source.silence(false) // for later requests
		began := time.Now()
		txs := [][]byte{sign(t, "alice", 4, put("a7", "x"))}
		for {
			res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: 2, Txs: txs, MaxTxBytes: 1 << 20})
			require.NoError(t, err)
			if len(res.Txs) > 0 {
				break
			}
			synctest.Wait()
			require.Zero(t, time.Since(began))
		}
		a.ahead.mu.Lock()
		defer a.ahead.mu.Unlock()
		require.NotZero(t, a.ahead.mu.line[lineOfChecks].unchecked, "strangers must wait")
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
		forgetQueries(a)
		source.silence(true)
		began := time.Now()
		res := ask()
		require.Equal(t, uint32(tx.CodeUnreadable), res.Code)
		require.Contains(t, res.Log, "storage nodes did not send a part of the state in time")
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
