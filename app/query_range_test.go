package app

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// queryProved queries a range with a proof, and verifies it as a client would.
func queryProved(t *testing.T, a *App, r RangeRequest) *RangeResponse {
	t.Helper()
	res, err := a.Query(ctx, &abci.RequestQuery{Path: PathRange, Data: must(r.Marshal()), Prove: true})
	require.NoError(t, err)
	require.Zero(t, res.Code, res.Log)
	answer := new(RangeResponse)
	require.NoError(t, answer.Unmarshal(res.Value))
	hash, err := appHash(a, res.Height)
	require.NoError(t, err)
	var keys []avlstar.KeyEntry
	for _, e := range answer.Entries {
		k := avlstar.KeyEntryOf(e.Key, e.Value)
		if r.KeysOnly {
			require.Empty(t, e.Value)
			k = avlstar.KeyEntry{Key: e.Key, ValueBytes: int(e.ValueBytes), ValueHash: avlstar.Hash(e.ValueHash)}
		} else {
			require.Zero(t, e.ValueBytes)
			require.Empty(t, e.ValueHash)
		}
		keys = append(keys, k)
	}
	start, next := r.Start, answer.Next
	if r.Reverse {
		if slices.Reverse(keys); len(next) > 0 {
			start, next = next, nil
			require.Equal(t, keys[0].Key, start)
		}
	}
	proof := avlstar.RangeProof{Tree: res.ProofOps.Ops[0].Data, Map: res.ProofOps.Ops[1].Data}
	require.Equal(t, string(start), string(res.ProofOps.Ops[0].Key))
	require.NoError(t, avlstar.VerifyKeys(hash, start, r.End, MaxRangeEntries, keys, next, proof))
	return answer
}

// Page by page, forwards and in reverse, with values and without: each page is proved, and together
// they are the range.
func TestQueryRangeOptions(t *testing.T) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	var operations []tx.Operation
	for i := range 60 {
		operations = append(operations, put(fmt.Sprintf("a%03d", i), strings.Repeat("v", i+1)))
	}
	runBlock(t, a, sign(t, "alice", 0, operations...))
	all := entries(t, latest(t, a))
	for _, bounds := range [][2]string{{"", ""}, {"a", ""}, {"a01", "a02"}, {"a010", "a0195"}, {"", "a005"}, {"b", ""}, {"a0001", "a0002"}} {
		start, end := []byte(bounds[0]), []byte(bounds[1])
		var want []string
		for _, kv := range all {
			if bytes.Compare(kv.Key, start) >= 0 && (len(end) == 0 || bytes.Compare(kv.Key, end) < 0) {
				want = append(want, string(kv.Key))
			}
		}
		for _, limit := range []uint32{1, 7, 0} {
			for _, keysOnly := range []bool{false, true} {
				for _, reverse := range []bool{false, true} {
					var got []string
					r := RangeRequest{Start: start, End: end, Limit: limit, KeysOnly: keysOnly, Reverse: reverse}
					for {
						answer := queryProved(t, a, r)
						for _, e := range answer.Entries {
							got = append(got, string(e.Key))
						}
						if len(answer.Next) == 0 {
							break
						}
						if reverse {
							r.End = answer.Next
						} else {
							r.Start = answer.Next
						}
					}
					if reverse {
						slices.Reverse(got)
					}
					require.Equal(t, want, got, "%+v", r)
				}
			}
		}
	}
}

// Without values a response has more entries, but the values that are read for it are bounded too.
func TestQueryKeysOfLargeValues(t *testing.T) {
	a := startChain(t, &memoryStore{}, `{"open": true}`)
	const values = MaxHashedBytes/avlstar.MaxValueBytes + 3
	for i := range values {
		runBlock(t, a, []byte(fmt.Sprintf("k%02d=%s", i, strings.Repeat("v", avlstar.MaxValueBytes))))
	}
	for _, reverse := range []bool{false, true} {
		answer := queryProved(t, a, RangeRequest{Start: []byte("k"), KeysOnly: true, Reverse: reverse})
		require.Len(t, answer.Entries, MaxHashedBytes/avlstar.MaxValueBytes)
		require.NotEmpty(t, answer.Next)
		answer = queryProved(t, a, RangeRequest{Start: []byte("k"), Reverse: reverse})
		require.Len(t, answer.Entries, 1) // with their keys, two exceed 2 MiB
	}
}

// A field that a node does not know is refused, never ignored.
func TestQueryRangeOfUnknownOptions(t *testing.T) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	runBlock(t, a)
	good := must((&RangeRequest{Start: []byte("a"), Limit: 5, Reverse: true}).Marshal())
	for name, data := range map[string][]byte{
		"an option":            protowire.AppendVarint(protowire.AppendTag(slices.Clone(good), 6, protowire.VarintType), 1),
		"an option of bytes":   protowire.AppendBytes(protowire.AppendTag(slices.Clone(good), 99, protowire.BytesType), []byte("x")),
		"a default written":    append(slices.Clone(good), 4<<3, 0),
		"the start once more":  append(slices.Clone(good), 1<<3|2, 1, 'a'),
		"reverse that is no 1": {5 << 3, 2},
	} {
		res, err := a.Query(ctx, &abci.RequestQuery{Path: PathRange, Data: data})
		require.NoError(t, err)
		require.Equal(t, uint32(tx.CodeBadRequest), res.Code, name)
		require.Contains(t, res.Log, "that this node does not know", name)
	}
}
