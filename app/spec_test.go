package app

import (
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/spectest"
)

// TestRecordsSpecExample: docs/spec/records.md has a whole state, system keys included.
func TestRecordsSpecExample(t *testing.T) {
	a := startChain(t, &memoryStore{}, `{"chunk_bytes": 300, "admins": ["@root"], "grants": [{"grantee": "@alice", "prefix": "a", "quota": 1000}]}`)
	require.Zero(t, runBlock(t, a, sign(t, "alice", 0, put("a", "1"))).TxResults[0].Code)
	var state [][]byte
	for _, kv := range entries(t, latest(t, a)) {
		state = append(state, kv.Key, kv.Value)
	}
	spectest.Require(t, "records.md", state...)
}

// TestQueriesSpecExample: docs/spec/queries.md has queries of a state of three keys, and answers.
func TestQueriesSpecExample(t *testing.T) {
	a := startChain(t, &memoryStore{}, `{"open": true}`)
	require.Zero(t, runBlock(t, a, []byte("a=1")).TxResults[0].Code)
	request, err := (&RangeRequest{Start: []byte("a"), End: []byte("b"), Limit: 1}).Marshal()
	require.NoError(t, err)
	byKey, err := a.Query(ctx, &abci.RequestQuery{Path: PathKey, Data: []byte("a"), Prove: true})
	require.NoError(t, err)
	byRange, err := a.Query(ctx, &abci.RequestQuery{Path: PathRange, Data: request})
	require.NoError(t, err)
	spectest.Require(t, "queries.md", byKey.Key, byKey.Value, byKey.ProofOps.Ops[0].Data, byKey.ProofOps.Ops[1].Data, request, byRange.Value)
}
