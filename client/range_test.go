package client

import (
	"fmt"
	"slices"
	"testing"

	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// TestRangeOptions reads pages forwards and in reverse, with values and without, all verified.
func TestRangeOptions(t *testing.T) {
	ctx, _, _, c := connected(t)
	var (
		ops  []tx.Operation
		want []string
	)
	for i := range 25 {
		want = append(want, fmt.Sprintf("k/%02d", i))
		ops = append(ops, tx.NewPut([]byte(want[i]), fmt.Appendf(nil, "value %d", i)))
	}
	_, err := c.Submit(ctx, append(ops, tx.NewPut([]byte("j"), []byte("x")), tx.NewPut([]byte("l"), []byte("x")))...)
	require.NoError(t, err)
	start := []byte("k/")
	reversed := slices.Clone(want)
	slices.Reverse(reversed)
	for _, limit := range []int{1, 5, 7, 100} {
		for name, test := range map[string]struct {
			options []ReadOption
			want    []string
		}{"keys": {[]ReadOption{KeysOnly()}, want}, "reverse": {[]ReadOption{Reverse()}, reversed}, "both": {[]ReadOption{Reverse(), KeysOnly()}, reversed}} {
			var got []string
			for kv, err := range c.Scan(ctx, start, PrefixEnd(start), append(test.options, Limit(limit))...) {
				require.NoError(t, err)
				got = append(got, string(kv.Key))
				require.Equal(t, name == "reverse", kv.Value != nil)
			}
			require.Equal(t, test.want, got, "%s, limit %d", name, limit)
		}
	}
	page, err := c.Range(ctx, start, nil, KeysOnly(), Reverse(), Limit(3))
	require.NoError(t, err)
	require.True(t, page.Verified)
	require.Equal(t, "k/23", string(page.Next))
	require.Equal(t, avlstar.KeyEntryOf([]byte("k/24"), []byte("value 24")), page.Keys[1])
	count, state, err := c.Count(ctx, start, PrefixEnd(start))
	require.NoError(t, err)
	require.Equal(t, 25, count)
	require.True(t, state.Verified)
	count, _, err = c.Count(ctx, []byte("x"), nil)
	require.NoError(t, err)
	require.Zero(t, count)
	// A range that ends with a page.
	var last []string
	for kv, err := range c.Scan(ctx, []byte("k/00"), []byte("k/02"), Reverse(), Limit(2)) {
		require.NoError(t, err)
		last = append(last, string(kv.Key))
	}
	require.Equal(t, []string{"k/01", "k/00"}, last)
}

// TestRangeOptionLies: answers in reverse and without values are proved like others.
func TestRangeOptionLies(t *testing.T) {
	ctx, _, node, c := connected(t)
	var ops []tx.Operation
	for _, k := range "abcdef" {
		ops = append(ops, tx.NewPut([]byte(string(k)), []byte("v")))
	}
	_, err := c.Submit(ctx, ops...)
	require.NoError(t, err)
	for _, r := range []app.RangeRequest{{KeysOnly: true}, {Reverse: true}, {KeysOnly: true, Reverse: true}} {
		for _, answer := range [][3]string{{"bd", ""}, {"bc", ""}, {"cd", ""}, {"bcde", ""}, {"bcd", "z"}, {"bcd", "a"}, {"bc", "d"}, {"cd", "b"}, {"bd", "b"}, {"d", "c"}, {"", "b"}, {"", ""}, {"bcd", "", "other"}} {
			node.lies(func(a any) error {
				if q, ok := a.(*ctypes.ResultABCIQuery); ok {
					var entries []avlstar.KV
					for _, k := range answer[0] {
						entries = append(entries, avlstar.KV{Key: []byte(string(k)), Value: []byte("v" + answer[2])})
					}
					q.Response.Value = encodeRange(r, entries, []byte(answer[1]))
				}
				return nil
			})
			var options []ReadOption
			if r.KeysOnly {
				options = append(options, KeysOnly())
			}
			if r.Reverse {
				options = append(options, Reverse())
			}
			page, err := c.Range(ctx, []byte("b"), []byte("e"), options...)
			require.ErrorIs(t, err, ErrUnproved, "%v %q gave %+v", r, answer, page)
		}
	}
}

// TestReverseScanEnds: without verification a node can return false entries, but cannot make a
// reverse scan loop forever.
func TestReverseScanEnds(t *testing.T) {
	ctx, _, node, c := connected(t)
	for _, next := range []string{"b", "z", ""} {
		calls := 0
		node.lies(func(a any) error {
			if q, ok := a.(*ctypes.ResultABCIQuery); ok {
				calls++
				q.Response.Value = encodeRange(app.RangeRequest{Reverse: true}, []avlstar.KV{{Key: []byte("b"), Value: []byte("v")}}, []byte(next))
			}
			return nil
		})
		for _, err := range c.Scan(ctx, []byte("a"), nil, Reverse(), Unverified()) {
			if err != nil {
				require.ErrorIs(t, err, ErrUnproved)
			}
		}
		require.LessOrEqual(t, calls, 8, next)
	}
}
