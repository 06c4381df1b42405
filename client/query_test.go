package client

import (
	"encoding/json"
	"math"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	cmtjson "github.com/cometbft/cometbft/libs/json"
	"github.com/cometbft/cometbft/proto/tendermint/crypto"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/stretchr/testify/require"
)

// TestQueryAnswer: answers are decoded as by CometBFT's own client.
func TestQueryAnswer(t *testing.T) {
	t.Parallel()
	for name, response := range map[string]abci.ResponseQuery{
		"nothing": {},
		"a value": {Key: []byte("k"), Value: []byte{0, 0xff, '"'}, Height: math.MaxInt64, Index: -1, Info: "<&>", Log: "a \"log\"\n"},
		"refused": {Code: math.MaxUint32, Codespace: "starling", Log: "no"},
		"proved": {Height: 7, ProofOps: &crypto.ProofOps{Ops: []crypto.ProofOp{
			{Type: "a", Key: []byte("key"), Data: []byte{1, 2, 3}}, {Type: "b"},
		}}},
		"an empty proof": {ProofOps: &crypto.ProofOps{}},
	} {
		b, err := cmtjson.Marshal(&ctypes.ResultABCIQuery{Response: response})
		require.NoError(t, err, name)
		var theirs ctypes.ResultABCIQuery
		require.NoError(t, cmtjson.Unmarshal(b, &theirs), name)
		var ours queryAnswer
		require.NoError(t, cmtjson.Unmarshal(b, &ours), name)
		require.Equal(t, theirs.Response.String(), ours.String(), "%s: %s", name, b)
		require.Equal(t, theirs.Response.ProofOps == nil, ours.ProofOps == nil, name)
	}
}

func FuzzQueryAnswer(f *testing.F) {
	f.Add([]byte(`{"response":{"code":3,"log":"l","index":"1","key":"aw==","value":"dg==","proofOps":{"ops":[{"type":"t","key":"","data":"AQ=="}]},"height":"9"}}`))
	f.Add([]byte(`{"response":{"height":9}}`))
	f.Add([]byte(`{"response":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var a queryAnswer
		if json.Unmarshal(b, &a) == nil && a.ProofOps != nil {
			require.LessOrEqual(t, len(a.ProofOps.Ops), len(b))
		}
	})
}
