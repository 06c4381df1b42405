package app

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/tx"
)

// edgedStore makes the updates of each block that replicas of the ranges between edges receive.
type edgedStore struct {
	shardedStore
	edges [][]byte
}

func (s *edgedStore) Commit(height int64, v, base *avlstar.Version, changes []avlstar.Change) error {
	first := []byte(nil)
	for _, after := range append(s.edges[:len(s.edges):len(s.edges)], nil) {
		if _, err := v.UpdateOf(base, avlstar.KeyRange{First: first, After: after}, changes); err != nil {
			return fmt.Errorf("the update of [%q, %q): %w", first, after, err)
		}
		first = after
	}
	return s.shardedStore.Commit(height, v, base, changes)
}

// Each committed version has the paths to all edges, from the first block after a start on. This
// holds even if a block deletes the leaves next to them, so that a path leads to nodes that no
// operation needed.
func TestEveryVersionHasTheWaysToTheEdges(t *testing.T) {
	rng := seeds.Rand(t)
	world := rng.Uint64()
	synctest.Test(t, func(t *testing.T) { edgesOfRandomBlocks(t, rand.New(rand.NewPCG(world, 5))) })
}

func edgesOfRandomBlocks(t *testing.T, rng *rand.Rand) {
	source := newFakeSource(t, nil)
	local := startChain(t, &memoryStore{}, witnessedState)
	var operations []tx.Operation
	for i := range 300 {
		operations = append(operations, put(fmt.Sprintf("a%03d", i), "value"))
	}
	for i := range uint64(3) {
		runBlock(t, local, sign(t, "alice", i, operations[i*100:(i+1)*100]...))
	}
	source.has(local)
	height, v := local.Latest()
	store := &edgedStore{shardedStore{t: t, height: height, at: v.Commitment()}, [][]byte{[]byte("a100"), []byte("a1505"), []byte("a250")}}
	v.Release()
	a, err := New(Options{
		Store: store, Source: source, Retention: avlstar.Retention{Depth: 2, Window: 2},
		KeepRecent: 2, ChainID: testChain, Edges: func() [][]byte { return store.edges },
	})
	require.NoError(t, err)
	later := 0
	for nonce := range uint64(40) {
		operations := []tx.Operation{put("a", fmt.Sprint(nonce))}
		for _, near := range []int{100, 150, 250} { // before and behind the edges
			first := near - rng.IntN(6)
			for i := first; i < first+rng.IntN(9); i++ {
				if key := fmt.Sprintf("a%03d", i); rng.IntN(3) == 0 {
					operations = append(operations, put(key, fmt.Sprint(nonce)))
				} else {
					operations = append(operations, del(key))
				}
			}
		}
		block := sign(t, "alice", 3+nonce, operations...)
		want := runBlock(t, local, block)
		require.Equal(t, want, finalizeAfter(t, a, abci.CommitInfo{}, block))
		if a.block.pending.edged {
			later++
		}
		_, err := a.Commit(ctx, &abci.RequestCommit{})
		require.NoError(t, err)
		source.has(local)
	}
	require.NotZero(t, later, "no block deleted the leaf next to an edge")
}
