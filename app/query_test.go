package app

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// provedRange queries a range as a verifying client does: it uses only the parts of the response
// that the proof verifies.
func provedRange(a *App, request []byte) (entries []Entry, next []byte, err error) {
	res, err := a.Query(ctx, &abci.RequestQuery{Path: PathRange, Data: request, Prove: true})
	if err != nil {
		return nil, nil, err
	}
	if res.Code != 0 {
		return nil, nil, &tx.Error{Code: tx.Code(res.Code), Reason: res.Log}
	}
	var r RangeRequest
	var answer RangeResponse
	if err := errors.Join(r.Unmarshal(request), answer.Unmarshal(res.Value)); err != nil {
		return nil, nil, err
	}
	if ops := res.ProofOps.Ops; len(ops) != 2 || ops[0].Type != avlstar.OpRange || ops[1].Type != avlstar.OpMap {
		return nil, nil, fmt.Errorf("proof operators %v", ops)
	}
	kv := make([]avlstar.KV, len(answer.Entries))
	for i, e := range answer.Entries {
		kv[i] = avlstar.KV{Key: e.Key, Value: e.Value}
	}
	hash, err := appHash(a, res.Height)
	if err != nil {
		return nil, nil, err
	}
	proof := avlstar.RangeProof{Tree: res.ProofOps.Ops[0].Data, Map: res.ProofOps.Ops[1].Data}
	return answer.Entries, answer.Next, avlstar.VerifyRange(hash, r.Start, r.End, max(len(kv), 1), kv, answer.Next, proof)
}

func provedKey(a *App, key []byte, height int64) (value []byte, answered int64, err error) {
	res, err := a.Query(ctx, &abci.RequestQuery{Path: PathKey, Data: key, Height: height, Prove: true})
	if err != nil {
		return nil, 0, err
	}
	if res.Code != 0 {
		return nil, 0, &tx.Error{Code: tx.Code(res.Code), Reason: res.Log}
	}
	hash, err := appHash(a, res.Height)
	if err != nil {
		return nil, 0, err
	}
	if ops := res.ProofOps.Ops; len(ops) != 2 || ops[0].Type != avlstar.OpState || !bytes.Equal(ops[0].Key, key) || ops[1].Type != avlstar.OpMap ||
		string(ops[1].Key) != avlstar.MapKey {
		return nil, 0, fmt.Errorf("proof operators %v", ops)
	}
	if len(res.Value) > 0 {
		value = res.Value
	}
	proof := avlstar.Proof{State: res.ProofOps.Ops[0].Data, Map: res.ProofOps.Ops[1].Data}
	return value, res.Height, avlstar.VerifyProof(hash, key, value, proof)
}

// Queries read from each of the last pruning_keep_recent versions, with proofs of values and of
// absence.
func TestQueryRecentHeights(t *testing.T) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	for i := range uint64(7) {
		runBlock(t, a, sign(t, "alice", i, put("a", fmt.Sprint(i+1)), put(fmt.Sprintf("a%d", i), "x")))
	}
	for height := int64(4); height <= 7; height++ {
		value, answered, err := provedKey(a, []byte("a"), height)
		require.NoError(t, err)
		require.Equal(t, height, answered)
		require.Equal(t, fmt.Sprint(height), string(value))
		// It is written one block later.
		value, _, err = provedKey(a, []byte(fmt.Sprintf("a%d", height)), height)
		require.NoError(t, err)
		require.Nil(t, value)
	}
	value, answered, err := provedKey(a, NonceKey(account("alice")), 0)
	require.NoError(t, err)
	require.Equal(t, int64(7), answered)
	require.Equal(t, encodeUint64(7), value)
	for _, height := range []int64{-1, 1, 3, 8, 1 << 62} {
		_, _, err := provedKey(a, []byte("a"), height)
		require.ErrorIs(t, err, &tx.Error{Code: tx.CodeUnknownHeight})
		require.ErrorContains(t, err, "heights 4 to 7")
	}
}

// Reading everything page by page, with a proof that each page is complete, returns the state.
func TestQueryRange(t *testing.T) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	var operations []tx.Operation
	for i := range 200 {
		operations = append(operations, put(fmt.Sprintf("a%03d", i), strings.Repeat("v", i+1)))
	}
	runBlock(t, a, sign(t, "alice", 0, operations...))
	v := latest(t, a)
	for _, limit := range []uint32{1, 7, 100, 1000, 0} {
		var got []Entry
		for request := (RangeRequest{Limit: limit}); ; {
			data, err := request.Marshal()
			require.NoError(t, err)
			entries, next, err := provedRange(a, data)
			require.NoError(t, err)
			got = append(got, entries...)
			if next == nil {
				break
			}
			require.Len(t, entries, int(limit))
			request.Start = next
		}
		require.Len(t, got, int(v.Len()))
		for i, kv := range entries(t, v) {
			require.Equal(t, Entry{Key: kv.Key, Value: kv.Value}, got[i])
		}
	}
	for _, test := range []struct {
		request RangeRequest
		want    int
	}{
		{RangeRequest{Start: []byte("a1"), End: []byte("a2")}, 100},
		{RangeRequest{Start: []byte("b")}, 0},
		{RangeRequest{Start: []byte("a0001"), End: []byte("a0002")}, 0},
		// System keys: params, validator, admin, grant, its count, nonce.
		{RangeRequest{End: []byte{1}}, 6},
	} {
		data, err := test.request.Marshal()
		require.NoError(t, err)
		entries, next, err := provedRange(a, data)
		require.NoError(t, err)
		require.Nil(t, next)
		require.Len(t, entries, test.want)
	}
	for _, request := range []RangeRequest{
		{Start: []byte("b"), End: []byte("a")}, {Start: []byte("a"), End: []byte("a")}, {Start: make([]byte, avlstar.MaxKeyBytes+1)},
	} {
		data, err := request.Marshal()
		require.NoError(t, err)
		_, _, err = provedRange(a, data)
		require.ErrorIs(t, err, &tx.Error{Code: tx.CodeBadRequest})
	}
}

// However large the values are, the length of a response is limited; one entry always fits.
func TestQueryRangeBytes(t *testing.T) {
	a := startChain(t, &memoryStore{}, `{"open": true}`)
	for i := range 6 {
		runBlock(t, a, []byte(fmt.Sprintf("k%d=%s", i, strings.Repeat("v", avlstar.MaxValueBytes))))
	}
	data, err := (&RangeRequest{Start: []byte("k")}).Marshal()
	require.NoError(t, err)
	entries, next, err := provedRange(a, data)
	require.NoError(t, err)
	require.Len(t, entries, 1) // with their keys, two exceed 2 MiB
	require.Equal(t, "k1", string(next))
}
