package rangestore

import (
	"bytes"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

const testChain = "test-chain"

func open(t testing.TB, fs vfs.FS, dir string, keys avlstar.KeyRange, m *Memory) *Store {
	t.Helper()
	s, err := Open(Options{
		Dir: dir, FS: fs, Keys: keys, ChainID: testChain, Memory: m, Failed: func(err error) { t.Error("failed:", err) },
		Logger: listErrors{log.NewNopLogger(), t},
	})
	require.NoError(t, err)
	return s
}

// listErrors is a logger that fails the test if a page list cannot be used.
type listErrors struct {
	log.Logger
	t testing.TB
}

func (l listErrors) Error(msg string, keyvals ...any) {
	if strings.Contains(msg, "page list") {
		l.t.Error(append([]any{msg}, keyvals...)...)
	}
}

func load(t testing.TB, s *Store) (int64, *avlstar.Partial) {
	t.Helper()
	height, p, ok, err := s.Load(t.Context(), func(uint64) {})
	require.NoError(t, err)
	require.True(t, ok)
	return height, p
}

func key(i int) []byte { return fmt.Appendf(nil, "key-%05d", i) }

// tree returns a tree with keys 0 to n-1.
func tree(t testing.TB, n int) *avlstar.Version {
	t.Helper()
	empty, err := avlstar.Empty(1000)
	require.NoError(t, err)
	defer empty.Release()
	var changes []avlstar.Change
	for i := range n {
		changes = append(changes, avlstar.Change{Key: key(i), Value: fmt.Appendf(nil, "value %d %s", i, strings.Repeat("v", i%50))})
	}
	v, err := empty.Apply(changes)
	require.NoError(t, err)
	t.Cleanup(v.Release)
	return v
}

// leavesOf returns the leaves of v in r. The height of the first leaf of the tree is not defined.
func leavesOf(t testing.TB, leaves iter.Seq2[avlstar.Leaf, error], r avlstar.KeyRange) (all []avlstar.Leaf) {
	t.Helper()
	for l, err := range leaves {
		require.NoError(t, err)
		if r.Contains(l.Key) {
			all = append(all, avlstar.Leaf{Key: bytes.Clone(l.Key), Value: bytes.Clone(l.Value), Height: l.Height})
		}
	}
	return all
}

func values(leaves []avlstar.Leaf) iter.Seq2[avlstar.Leaf, error] {
	return func(yield func(avlstar.Leaf, error) bool) {
		for _, l := range leaves {
			if !yield(l, nil) {
				return
			}
		}
	}
}

func create(t testing.TB, s *Store, height int64, v *avlstar.Version) {
	t.Helper()
	boundary, err := v.Boundary(s.keys)
	require.NoError(t, err)
	require.NoError(t, s.Create(height, v.Commitment(), boundary, values(leavesOf(t, v.Leaves(), s.keys))))
}

// replay returns p after a block, which made v from base, and the changes in r.
func replay(t testing.TB, p *avlstar.Partial, v, base *avlstar.Version, r avlstar.KeyRange, block []avlstar.Change) (*avlstar.Partial, []avlstar.Change) {
	t.Helper()
	u, err := v.UpdateOf(base, r, block)
	require.NoError(t, err)
	next, err := p.Replay(r, u)
	require.NoError(t, err)
	require.Equal(t, v.AppHash(), next.AppHash())
	return next, changesOf(u)
}

func changesOf(u avlstar.Update) (changes []avlstar.Change) {
	for _, c := range u.Changes {
		changes = append(changes, c.Change)
	}
	return changes
}

// requireSame compares all leaves of p, and proofs of random keys, with those of the full tree.
func requireSame(t testing.TB, rng *rand.Rand, v *avlstar.Version, p *avlstar.Partial, r avlstar.KeyRange) {
	t.Helper()
	require.Equal(t, v.Commitment(), p.Commitment())
	want := leavesOf(t, v.Leaves(), r)
	require.True(t, slices.EqualFunc(want, leavesOf(t, p.Leaves(r), r), func(a, b avlstar.Leaf) bool {
		return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) && a.Height == b.Height
	}), "other leaves")
	boundary, err := v.Boundary(r)
	require.NoError(t, err)
	got, err := p.Boundary(r)
	require.NoError(t, err)
	require.True(t, bytes.Equal(boundary, got), "another boundary proof")
	if len(want) > 0 {
		var some [][]byte
		for range 1 + rng.IntN(10) {
			some = append(some, want[rng.IntN(len(want))].Key)
		}
		requireProof(t, v, p, some)
	}
}

// requireProof compares a multiproof of keys.
func requireProof(t testing.TB, v *avlstar.Version, p *avlstar.Partial, keys [][]byte) {
	t.Helper()
	var wants []avlstar.Want
	for _, key := range keys {
		wants = append(wants, avlstar.Want{Key: key})
	}
	slices.SortFunc(wants, func(a, b avlstar.Want) int { return bytes.Compare(a.Key, b.Key) })
	want, err := v.Multiproof(wants, avlstar.Below{})
	require.NoError(t, err)
	got, err := p.Multiproof(wants, avlstar.Below{})
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "another multiproof of %d keys", len(keys))
}
