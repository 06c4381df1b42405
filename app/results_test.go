package app

import (
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/result"
	"github.com/starling-kv/starling/tx"
)

func blockOf(r *results, height int64, code uint32, txs ...string) {
	var raw [][]byte
	var all []*abci.ExecTxResult
	for _, text := range txs {
		raw = append(raw, []byte(text))
		all = append(all, &abci.ExecTxResult{Code: code, Data: []byte(text)})
	}
	r.add(height, raw, all)
}

func hashed(text string) [32]byte { return sha256.Sum256([]byte(text)) }

func TestResultsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, life := t.Context(), context.Background()
		r := newResults()
		blockOf(r, 7, 0, "before")
		found, err := r.wait(ctx, life, hashed("before"), 0)
		require.NoError(t, err)
		require.EqualValues(t, 7, found.Height)
		found, err = r.wait(ctx, life, hashed("a"), 0)
		require.NoError(t, err)
		require.Nil(t, found, "it does not wait")

		began := time.Now()
		found, err = r.wait(ctx, life, hashed("a"), time.Second)
		require.NoError(t, err)
		require.Nil(t, found)
		require.Equal(t, time.Second, time.Since(began))

		answers := make(chan *abci.TxResult)
		for range 3 {
			go func() {
				found, err := r.wait(ctx, life, hashed("a"), time.Hour)
				require.NoError(t, err)
				answers <- found
			}()
		}
		synctest.Wait()
		blockOf(r, 8, 0, "x", "a")
		for range 3 {
			found := <-answers
			require.EqualValues(t, 8, found.Height)
			require.EqualValues(t, 1, found.Index)
			require.Equal(t, "a", string(found.Result.Data))
		}
		synctest.Wait()
		require.Zero(t, r.mu.waiters)
		require.Empty(t, r.mu.waiting)
	})
}

// A request ends with its context and with the application, and there is a limit of requests.
func TestResultsGiveUp(t *testing.T) {
	r := newResults()
	ctx, end := context.WithCancel(t.Context())
	end()
	for _, c := range [][2]context.Context{{ctx, context.Background()}, {context.Background(), ctx}} {
		found, err := r.wait(c[0], c[1], hashed("a"), time.Hour)
		require.NoError(t, err)
		require.Nil(t, found)
	}
	require.Empty(t, r.mu.waiting)
	r.mu.waiters = maxResultWaiters
	_, err := r.wait(t.Context(), t.Context(), hashed("a"), time.Hour)
	require.ErrorIs(t, err, errManyWaiters)
	_, err = r.wait(t.Context(), t.Context(), hashed("a"), 0)
	require.NoError(t, err, "it does not wait")
}

func TestResultsAreBounded(t *testing.T) {
	r := newResults()
	long := string(make([]byte, maxResultBytes/10))
	for height := range int64(100) {
		blockOf(r, height+1, 0, fmt.Sprint(height, long))
		require.LessOrEqual(t, r.mu.bytes, maxResultBytes)
		require.Len(t, r.mu.byID, len(r.mu.order))
	}
	require.Len(t, r.mu.order, 9)
	blockOf(r, 101, 0, fmt.Sprint(99, long), fmt.Sprint(99, long)) // equal text transactions
	found, _, err := r.begin(hashed(fmt.Sprint(99, long)), false)
	require.NoError(t, err)
	require.EqualValues(t, 101, found.Height, "the latest")
	for height := range int64(20) {
		blockOf(r, height+102, 0, fmt.Sprint("other", height, long))
	}
	require.Len(t, r.mu.byID, len(r.mu.order))
	blockOf(r, 200, 0, string(make([]byte, 2*maxResultBytes)))
	require.Empty(t, r.mu.order)
	require.Empty(t, r.mu.byID)
	require.Zero(t, r.mu.bytes)
}

// A proposer that repeats a transaction, which then fails, does not hide that it had its effect.
func TestResultsRepeated(t *testing.T) {
	r := newResults()
	blockOf(r, 1, 0, "a")
	blockOf(r, 2, uint32(tx.CodeBadNonce), "a")
	found, _, err := r.begin(hashed("a"), false)
	require.NoError(t, err)
	require.EqualValues(t, 1, found.Height)
	blockOf(r, 3, uint32(tx.CodeBadNonce), "b")
	blockOf(r, 4, 0, "b")
	found, _, err = r.begin(hashed("b"), false)
	require.NoError(t, err)
	require.EqualValues(t, 4, found.Height)
}

func TestQueryResult(t *testing.T) {
	a := startChain(t, &memoryStore{}, fuzzGenesis)
	good, bad := sign(t, "alice", 0, put("a", "1")), sign(t, "alice", 7, put("a", "2"))
	ask := func(raw []byte) *abci.TxResult {
		request := result.Request{ID: sha256.Sum256(raw), WaitMS: 1000}
		res, err := a.Query(ctx, &abci.RequestQuery{Path: result.Path, Data: request.Encode()})
		require.NoError(t, err)
		require.Zero(t, res.Code)
		require.EqualValues(t, a.Height(), res.Height)
		if len(res.Value) == 0 {
			return nil
		}
		found := new(abci.TxResult)
		require.NoError(t, found.Unmarshal(res.Value))
		return found
	}
	require.Nil(t, ask(good), "this application does not wait")
	runBlock(t, a, good, bad)
	found := ask(good)
	require.EqualValues(t, a.Height(), found.Height)
	require.Zero(t, found.Result.Code)
	require.EqualValues(t, tx.CodeBadNonce, ask(bad).Result.Code)
	for name, req := range map[string]*abci.RequestQuery{
		"too short":   {Data: make([]byte, 35)},
		"a proof":     {Data: make([]byte, 36), Prove: true},
		"at a height": {Data: make([]byte, 36), Height: 1},
	} {
		req.Path = result.Path
		res, err := a.Query(ctx, req)
		require.NoError(t, err)
		require.EqualValues(t, tx.CodeBadRequest, res.Code, name)
	}
}
