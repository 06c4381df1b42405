package avlstar

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// naiveRange answers a range query by looking at every entry.
func naiveRange(kvs []KV, start, end []byte, limit int) (entries []KV, next []byte) {
	for _, e := range kvs {
		if bytes.Compare(e.Key, start) < 0 || len(end) != 0 && bytes.Compare(e.Key, end) >= 0 {
			continue
		}
		if len(entries) == limit {
			return entries, e.Key
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func keysOf(entries []KV) (keys []KeyEntry) {
	for _, e := range entries {
		keys = append(keys, KeyEntryOf(e.Key, e.Value))
	}
	return keys
}

func TestRangesOfRandomStates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, kvs := drawState(t)
		bound := rapid.OneOf(rapid.StringMatching(`[a-e]{0,4}`), rapid.SampledFrom([]string{"", "\x00", "\xff"}))
		for range 5 {
			start, end := []byte(bound.Draw(t, "start")), []byte(bound.Draw(t, "end"))
			limit := rapid.SampledFrom([]int{1, 2, 3, 10, math.MaxInt}).Draw(t, "limit")
			if bytes.Compare(start, end) >= 0 {
				end = nil
			}
			want, wantNext := naiveRange(kvs, start, end, limit)
			got, next, p, err := v.ProveRange(start, end, limit)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Equal(t, wantNext, next)
			require.NoError(t, VerifyRange(v.AppHash(), start, end, limit, got, next, p))
			// A server may stop early: with a greater limit, the proof is still valid.
			if limit < math.MaxInt {
				require.NoError(t, VerifyRange(v.AppHash(), start, end, limit+1, got, next, p))
			}
			// An incomplete response is refused.
			lies := map[string][]KV{"one more": append(slices.Clone(got), KV{[]byte("ddddd"), []byte("v")})}
			if len(got) > 0 {
				i := rapid.IntRange(0, len(got)-1).Draw(t, "victim")
				lies["one less"] = slices.Delete(slices.Clone(got), i, i+1)
				lies["another value"] = slices.Clone(got)
				lies["another value"][i].Value = append([]byte("x"), got[i].Value...)
			}
			for what, entries := range lies {
				require.ErrorIs(t, VerifyRange(v.AppHash(), start, end, limit, entries, next, p), ErrInvalidProof, what)
			}
			keys := keysOf(got)
			require.NoError(t, VerifyKeys(v.AppHash(), start, end, limit, keys, next, p))
			if len(keys) > 0 {
				i := rapid.IntRange(0, len(keys)-1).Draw(t, "damaged")
				for _, damage := range []func(k *KeyEntry){
					func(k *KeyEntry) { k.Key = append(bytes.Clone(k.Key), 0) }, func(k *KeyEntry) { k.ValueBytes++ },
					func(k *KeyEntry) { k.ValueBytes = -1 }, func(k *KeyEntry) { k.ValueHash[31] ^= 1 },
				} {
					damaged := slices.Clone(keys)
					damage(&damaged[i])
					require.ErrorIs(t, VerifyKeys(v.AppHash(), start, end, limit, damaged, next, p), ErrInvalidProof)
				}
				require.ErrorIs(t, VerifyKeys(v.AppHash(), start, end, limit, slices.Delete(keys, i, i+1), next, p), ErrInvalidProof)
			}
		}
	})
}

// A client that continues from next sees every entry once.
func TestRangePages(t *testing.T) {
	v := stateOf(t, 50, 23)
	for limit := 1; limit < 25; limit++ {
		var all []KV
		var next []byte
		for {
			entries, n, p, err := v.ProveRange(next, nil, limit)
			require.NoError(t, err)
			require.NoError(t, VerifyRange(v.AppHash(), next, nil, limit, entries, n, p))
			all = append(all, entries...)
			if next = n; next == nil {
				break
			}
		}
		var want []KV
		for key, value := range mustAscend(t, v, nil, nil) {
			want = append(want, KV{key, value})
		}
		require.Equal(t, want, all)
	}
}

// TestRangeShapes checks all ranges of small trees: every start and end at and between leaves,
// every limit.
func TestRangeShapes(t *testing.T) {
	for n := range 9 {
		v := stateOf(t, 30, n)
		var bounds [][]byte
		for i := range 2*n + 2 {
			bounds = append(bounds, fmt.Appendf(nil, "k%02d", i))
		}
		for _, start := range append([][]byte{nil}, bounds...) {
			for _, end := range append([][]byte{nil}, bounds...) {
				for limit := 1; limit <= n+1; limit++ {
					entries, next, p, err := v.ProveRange(start, end, limit)
					if end != nil && bytes.Compare(start, end) >= 0 {
						require.ErrorContains(t, err, "start must be below end")
						require.ErrorIs(t, VerifyRange(v.AppHash(), start, end, limit, nil, nil, p), ErrInvalidProof)
						continue
					}
					require.NoError(t, err)
					require.NoError(t, VerifyRange(v.AppHash(), start, end, limit, entries, next, p),
						"%d leaves, [%q, %q), limit %d", n, start, end, limit)
				}
			}
		}
	}
}

func TestRangeOfEmptyTree(t *testing.T) {
	v := stateOf(t, 50, 0)
	entries, next, p, err := v.ProveRange(nil, nil, 1)
	require.NoError(t, err)
	require.Nil(t, entries)
	require.Nil(t, next)
	require.Nil(t, p.Tree)
	require.NoError(t, VerifyRange(v.AppHash(), nil, nil, 1, nil, nil, p))

	entry := []KV{{[]byte("k"), []byte("v")}}
	require.ErrorContains(t, VerifyRange(v.AppHash(), nil, nil, 1, entry, nil, p), "no tree, but entries")
	full := stateOf(t, 50, 1)
	require.ErrorContains(t, VerifyRange(full.AppHash(), nil, nil, 1, nil, nil, RangeProof{Map: full.proveMap()}), "not empty")
}

func TestRangeRefusesQuestions(t *testing.T) {
	v := stateOf(t, 50, 5)
	for _, limit := range []int{0, -1, math.MinInt} {
		_, _, _, err := v.ProveRange(nil, nil, limit)
		require.ErrorContains(t, err, "limit")
		require.ErrorIs(t, VerifyRange(v.AppHash(), nil, nil, limit, nil, nil, RangeProof{}), ErrInvalidProof)
	}
}

// TestDamagedRangeProofs damages every byte of both operators, for ranges with all kinds of ends in
// trees of a few shapes.
func TestDamagedRangeProofs(t *testing.T) {
	for _, n := range []int{0, 1, 2, 7} {
		v := stateOf(t, 50, n)
		for _, q := range []struct {
			start, end string
			limit      int
		}{{"", "", 99}, {"a", "b", 99}, {"x", "y", 99}, {"k00", "k01", 9}, {"k03", "k08", 9}, {"k03", "", 2}, {"", "k05", 1}, {"k05", "k06", 1}} {
			start, end := []byte(q.start), []byte(q.end)
			entries, next, p, err := v.ProveRange(start, end, q.limit)
			require.NoError(t, err)
			for what, b := range damages(p.Tree) {
				if VerifyRange(v.AppHash(), start, end, q.limit, entries, next, RangeProof{b, p.Map}) == nil {
					t.Fatalf("%d leaves, %v, tree, %s: accepted", n, q, what)
				}
			}
			for what, b := range damages(p.Map) {
				if VerifyRange(v.AppHash(), start, end, q.limit, entries, next, RangeProof{p.Tree, b}) == nil {
					t.Fatalf("%d leaves, %v, map, %s: accepted", n, q, what)
				}
			}
		}
	}
}
