package dsmbench

import (
	"bytes"
	"context"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/appstore"
)

var small = spec{Keys: 3000, Signers: 50, Transfers: 40, Seed: 5}

// The changes with which sizes are measured are those that an application makes from the signed
// transactions, and no transaction fails.
func TestBlocksAreWhatAnApplicationMakesOfThem(t *testing.T) {
	g := newGenerator(small)
	state, err := newState(g, func(int) {})
	require.NoError(t, err)
	expected, err := newState(newGenerator(small), func(int) {})
	require.NoError(t, err)
	a, err := app.New(app.Options{Store: &appstore.Memory{First: state, Height: firstHeight}, ChainID: chainID})
	require.NoError(t, err)
	deleted := 0
	for n := range 60 {
		b := g.next(n >= 10)
		txs, err := g.sign(b)
		require.NoError(t, err)
		res, err := a.FinalizeBlock(context.Background(), &abci.RequestFinalizeBlock{Height: int64(firstHeight + 1 + n), Txs: txs})
		require.NoError(t, err)
		for _, r := range res.TxResults {
			require.Zero(t, r.Code, r.Log)
		}
		next, err := expected.Apply(b.changes)
		require.NoError(t, err)
		expected.Release()
		expected = next
		hash := expected.AppHash()
		require.Equal(t, hash[:], res.AppHash, "block %d", n)
		_, err = a.Commit(context.Background(), &abci.RequestCommit{})
		require.NoError(t, err)
		for _, c := range b.changes {
			if c.Value == nil {
				deleted++
			}
		}
	}
	require.Positive(t, deleted)
	require.InDelta(t, small.Keys, float64(expected.Len()), 200, "accounts are created and deleted at the same rate")
}

// A validator with a part of the tree reaches the same states, and its multiproofs contain what was
// requested.
func TestReceiverFollows(t *testing.T) {
	g := newGenerator(small)
	v, err := newState(g, func(int) {})
	require.NoError(t, err)
	for _, retain := range []int{0, 3, 7} {
		r, err := newReceiver(v, retain, 3)
		require.NoError(t, err)
		require.NoError(t, r.check(v))
		at := v
		at.Retain()
		fetched := 0
		for range 12 {
			b := g.next(true)
			n, err := r.fetch(at, b.wants(true))
			require.NoError(t, err)
			_, held := r.p.Version().Missing(b.wants(true))
			require.Empty(t, held)
			more, err := r.apply(at, b.changes)
			require.NoError(t, err)
			fetched += n + more
			next, err := at.Apply(b.changes)
			require.NoError(t, err)
			at.Release()
			at = next
			require.NoError(t, r.check(at))
		}
		require.Positive(t, fetched)
		r.p.Release()
		at.Release()
		g = newGenerator(small)
	}
	v.Release()
}

func TestEvenRanges(t *testing.T) {
	v, err := newState(newGenerator(small), func(int) {})
	require.NoError(t, err)
	defer v.Release()
	for _, n := range []int{1, 2, 7, 16} {
		ranges, err := evenRanges(v, n)
		require.NoError(t, err)
		require.Len(t, ranges, n)
		counts := make([]int, n)
		for l, err := range v.Leaves() {
			require.NoError(t, err)
			in := 0
			for i, r := range ranges {
				if r.tree().Contains(l.Key) {
					counts[i]++
					in++
				}
			}
			require.Equal(t, 1, in)
		}
		for _, c := range counts {
			require.InDelta(t, float64(v.Len())/float64(n), float64(c), float64(n)+1)
		}
	}
}

// The raw bytes of a path are the images of the inner nodes above a leaf, and the leaf.
func TestRawBytes(t *testing.T) {
	v, err := avlstar.Empty(avlstar.DefaultChunkBytes)
	require.NoError(t, err)
	var changes []avlstar.Change
	for i := range 8 { // height 3
		changes = append(changes, avlstar.Change{Key: []byte{'k', byte(i)}, Value: []byte("value")})
	}
	next, err := v.Apply(changes)
	require.NoError(t, err)
	n, err := rawBytes(next, changes[5].Key)
	require.NoError(t, err)
	require.Equal(t, 3*(imageBytes+keyBytes)+int(avlstar.RecordBytes(2, 5)), n)
	n, err = rawBytes(next, []byte("absent"))
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestAges(t *testing.T) {
	require.Equal(t, []int{0, 1, 2, 4, 5, 8, 16, 32}, (&Options{Window: 32}).ages())
	require.Equal(t, []int{0, 1}, (&Options{Window: 1}).ages())
	require.Equal(t, []int{0, 1, 2, 4, 5}, (&Options{Window: 5}).ages())
}

// More retention and more accounts both mean fewer stale transactions. A tree to its leaves, or
// without any levels, is the limit: none is stale, or all are.
func TestStale(t *testing.T) {
	share := map[int][]StaleRow{}
	for _, keys := range []int{3000, 30_000} {
		s := small
		s.Keys = keys
		rows, err := stale(t.Context(), s, 4, []int{0, 4, 8, 16}, func() {})
		require.NoError(t, err)
		require.Len(t, rows, 4)
		require.Equal(t, StaleRow{Keys: keys, Depth: 0, StaleRate: 1}, rows[0])
		for i := range rows[1:] {
			require.LessOrEqual(t, rows[i+1].StaleRate, rows[i].StaleRate)
		}
		share[keys] = rows
	}
	require.Zero(t, share[3000][3].StaleRate, "the whole tree")
	require.Less(t, share[30_000][2].StaleRate, share[3000][2].StaleRate)
}

func TestPrintStale(t *testing.T) {
	var out bytes.Buffer
	(&Result{Stale: []StaleRow{{2000, 0, 1}, {2000, 8, 0.5}, {10_000, 0, 1}, {10_000, 8, 0.125}}}).printStale(&out)
	require.Equal(t, `
stale after a block    r 0    r 8
2,000 accounts       1.000  0.500
10,000 accounts      1.000  0.125
`, out.String())
}
