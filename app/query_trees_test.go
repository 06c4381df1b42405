package app

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// forgetQueries drops the trees that queries share.
func forgetQueries(a *App) {
	a.trees.mu.Lock()
	defer a.trees.mu.Unlock()
	a.trees.leave(a.trees.list...)
	a.trees.list = nil
}

func proved(t *testing.T, a *App, key string) *abci.ResponseQuery {
	t.Helper()
	res, err := a.Query(ctx, &abci.RequestQuery{Path: PathKey, Data: []byte(key), Prove: true})
	require.NoError(t, err)
	require.Zero(t, res.Code, res.Log)
	return res
}

// TestQueriesShareATree: nodes that one query has fetched serve the others, and those of later
// states.
func TestQueriesShareATree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{})
		defer a.Stop()
		source.delayed(100 * time.Millisecond)
		cost := func(queries int, keys ...string) int {
			before := source.requests()
			var running sync.WaitGroup
			for range queries {
				for _, key := range keys {
					want := proved(t, local, key)
					running.Go(func() { require.Equal(t, want, proved(t, a, key)) })
				}
			}
			running.Wait()
			return source.requests() - before
		}
		for _, key := range []string{"a14", "a1", "a", "zz"} { // the last three are absent
			forgetQueries(a)
			one := cost(1, key)
			require.Positive(t, one)
			require.Zero(t, cost(10, key), "the nodes are there")
			forgetQueries(a)
			require.Equal(t, one, cost(10, key), "one fetch for all queries of a key")
		}
		cost(1, "a1")

		runBlock(t, local, sign(t, "alice", 4, put("a7", "x")))
		runBlock(t, a, sign(t, "alice", 4, put("a7", "x")))
		source.has(local)
		require.Len(t, a.trees.list, 1)
		require.Zero(t, cost(1, "a1"), "an older tree has the nodes that the block did not change")
		require.Len(t, a.trees.list, 2)
		runBlock(t, local, sign(t, "alice", 5, put("a1", "other")))
		runBlock(t, a, sign(t, "alice", 5, put("a1", "other")))
		source.has(local)
		cost(1, "a1") // compares the new value, and its proof
		require.Equal(t, "other", string(proved(t, a, "a1").Value))
	})
}

// TestSharedTreesAreBounded: what is still read stays, the rest is dropped.
func TestSharedTreesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{})
		defer a.Stop()
		a.trees.most = 1 // every tree is full at once
		proved(t, a, "a1")
		before := source.requests()
		for range 3 {
			proved(t, a, "a1")
			require.Len(t, a.trees.list, 1)
		}
		require.Equal(t, before, source.requests(), "each tree copied it from the one before")
		require.Equal(t, a.trees.list[0].size.Load(), a.QueryTreesBytes())
		proved(t, a, "a7")
		before = source.requests()
		proved(t, a, "a1")
		require.Greater(t, source.requests(), before, "the tree of a7 replaced that of a1")

		// A query of an older state does not enlarge a full tree.
		height, size := a.Height(), a.trees.list[0].size.Load()
		for _, app := range []*App{local, a} {
			runBlock(t, app, sign(t, "alice", 4, put("a7", "old")))
		}
		source.has(local)
		res, err := a.Query(ctx, &abci.RequestQuery{Path: PathKey, Data: []byte("ab7"), Height: height, Prove: true})
		require.NoError(t, err)
		require.Zero(t, res.Code, res.Log)
		require.Equal(t, size, a.trees.list[0].size.Load())
		require.Equal(t, size, a.QueryTreesBytes(), "its own tree is gone")

		// Trees of states that no query reads are dropped, too.
		a.trees.most = QueryTreesBytes
		for i := range 2 * maxQueryTrees {
			for _, app := range []*App{local, a} {
				runBlock(t, app, sign(t, "alice", uint64(5+i), put("a7", fmt.Sprint(i))))
			}
			source.has(local)
			proved(t, a, "a7")
			require.LessOrEqual(t, len(a.trees.list), maxQueryTrees)
		}
	})
}

// TestQueriesOutliveALeader: queries that wait for another one's fetch go on when its caller
// leaves.
func TestQueriesOutliveALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{})
		defer a.Stop()
		want := proved(t, local, "a1")
		source.silence(true)
		leaving, leave := context.WithCancel(ctx)
		defer leave()
		go func() { _, _ = a.Query(leaving, &abci.RequestQuery{Path: PathKey, Data: []byte("a1"), Prove: true}) }()
		synctest.Wait()
		done := make(chan *abci.ResponseQuery)
		go func() { done <- proved(t, a, "a1") }()
		synctest.Wait()
		source.silence(false)
		leave()
		require.Equal(t, want, <-done)
	})
}
