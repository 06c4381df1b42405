package avlstar

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// This helper fetches the missing nodes of wants from full and grafts them into p, until nothing is
// missing. It returns how often it asked.
func fetchLacking(t require.TestingT, full *Version, p *Partial, wants []Want) (after *Partial, rounds int) {
	for ; ; rounds++ {
		lacking, held := p.Version().Missing(wants)
		require.Equal(t, len(lacking) > 0, len(held) > 0)
		if len(held) == 0 {
			return p, rounds
		}
		b, err := full.Multiproof(lacking, Below{Depth: math.MaxInt, Held: held})
		next, done, err := p.Graft(mustDecodeMultiproof(t, b, err))
		require.NoError(t, err)
		require.Positive(t, done.Inner+done.Leaves, "the missing nodes are not those that it requests: %v", lacking)
		p.Release()
		p = next
	}
}

// TestLacks: the wants of missing nodes are those that reads and single deletions need, and nothing
// more is needed once there are none.
func TestLacks(t *testing.T) {
	rnd := seeds.Rand(t)
	most := 0
	for range scaled(30) {
		n := 1 << rnd.IntN(9)
		full := randomState(t, rnd, n)
		salt, odds := byte(rnd.Uint32()), byte(rnd.Uint32())
		sparse := func() *Partial {
			p, err := full.Prune(func(s Subtree) bool { return s.Hash[0]^salt < odds })
			require.NoError(t, err)
			return p
		}
		for range 20 {
			p := sparse()
			key, end := randomKey(rnd, 2*n), randomKey(rnd, 2*n)
			if bytes.Compare(key, end) > 0 {
				key, end = end, key
			}
			read := func(want Want, do func(v *Version) error) {
				if err := do(p.Version()); err != nil {
					var missing *MissingNodeError
					require.ErrorAs(t, err, &missing)
					lacking, held := p.Version().Missing([]Want{want})
					require.NotEmpty(t, lacking)
					require.Contains(t, held, missing.Node.Hash)
				}
				var rounds int
				p, rounds = fetchLacking(t, full, p, []Want{want})
				most = max(most, rounds)
				require.NoError(t, do(p.Version()))
			}
			read(Want{Key: key}, func(v *Version) error {
				got, ok, err := v.View(key)
				if err == nil {
					want, wantOK := mustGet(t, full, key)
					require.Equal(t, wantOK, ok)
					require.True(t, bytes.Equal(want, got))
				}
				return err
			})
			p.Release()
			p = sparse()
			read(Want{Range: true, Key: key, After: end}, func(v *Version) error {
				for _, err := range v.Ascend(key, end) {
					if err != nil {
						return err
					}
				}
				return nil
			})
			p.Release()
			p = sparse()
			read(Want{Key: key, Next: true}, func(v *Version) error {
				_, _, err := v.above(key)
				return err
			})
			p.Release()
			p, _ = fetchLacking(t, full, sparse(), []Want{{Key: key, Deleted: true}})
			next, err := p.Apply([]Change{{Key: key}})
			require.NoError(t, err)
			want := mustApply(t, full, Change{Key: key})
			require.Equal(t, want.Commitment(), next.Commitment())
			want.Release()
		}
	}
	require.LessOrEqual(t, most, 3)
	v := stateOf(t, 50, 20)
	lacking, held := v.Missing([]Want{{Key: []byte("k04")}, {Range: true}})
	require.Empty(t, lacking)
	require.Empty(t, held)
}

// TestMissingKeyLeadsThere: the key in a read's error leads to the stub that the error names, so
// that the path to the key opens that stub.
func TestMissingKeyLeadsThere(t *testing.T) {
	rnd := seeds.Rand(t)
	met := 0
	for range scaled(50) {
		n := 2 << rnd.IntN(7)
		full := randomState(t, rnd, n)
		p, err := full.Prune(func(s Subtree) bool { return s.Hash[0] < 60 })
		require.NoError(t, err)
		v := p.Version()
		check := func(err error) {
			var missing *MissingNodeError
			if !errors.As(err, &missing) {
				require.NoError(t, err)
				return
			}
			met++
			at, n := v.locate(missing.Key, false)
			require.Zero(t, n)
			require.Equal(t, missing.Node, at.Stub)
		}
		for range 50 {
			key, end := randomKey(rnd, 2*n), randomKey(rnd, 2*n)
			_, _, err := v.View(key)
			check(err)
			_, err = v.RangeBytes(key, nil)
			check(err)
			_, err = v.below(key)
			check(err)
			for _, below := range []bool{false, true} {
				_, _, _, err = v.ViewFloor(key, below)
				check(err)
				var missing *MissingNodeError
				if errors.As(err, &missing) && !mustHas(t, full, key) {
					require.Equal(t, key, missing.Key) // not a key of 4 KiB
				}
			}
			for _, err := range v.Ascend(key, end) {
				check(err)
			}
			if bytes.Compare(key, end) < 0 {
				_, _, _, err = v.ProveRange(key, end, 10)
				check(err)
			}
		}
	}
	require.NotZero(t, met)
}

// TestViewFloor compares ViewFloor with a linear search.
func TestViewFloor(t *testing.T) {
	rnd := seeds.Rand(t)
	for _, n := range []int{0, 1, 2, 40, 500} {
		v := mustEmpty(t, 100)
		if n > 0 {
			v = randomState(t, rnd, n)
		}
		for range 300 {
			key, below := randomKey(rnd, 2*n+1), rnd.IntN(2) == 0
			var want, wantValue []byte
			for kv, err := range v.Ascend(nil, nil) {
				require.NoError(t, err)
				if c := bytes.Compare(kv.Key, key); c < 0 || c == 0 && !below {
					want, wantValue = kv.Key, kv.Value
				}
			}
			k, value, ok, err := v.ViewFloor(key, below)
			require.NoError(t, err)
			require.Equal(t, want != nil, ok)
			require.True(t, bytes.Equal(want, k) && bytes.Equal(wantValue, value), "%x below=%t: %x, not %x", key, below, k, want)
		}
	}
}

// TestPartialAsVersion: methods without an error result are correct on a partial tree, or safe.
func TestPartialAsVersion(t *testing.T) {
	full := stateOf(t, 50, 40)
	_, ok := full.Partial()
	require.False(t, ok)
	n, ok := full.Count()
	require.True(t, ok)
	require.EqualValues(t, 40, n)

	p, err := NewPartial(full.Commitment())
	require.NoError(t, err)
	v := p.Version()
	_, ok = v.Partial()
	require.True(t, ok)
	_, ok = v.Count()
	require.False(t, ok)
	require.Equal(t, full.Root(), v.Root())
	require.Equal(t, full.AppHash(), v.AppHash())
	require.Equal(t, full.NumChunks(), v.NumChunks())
	v.Warm([][]byte{[]byte("k04"), nil})
	require.False(t, v.ReadAhead(nil))
	for range v.NewInner(nil) {
		require.Fail(t, "an inner node that is not there")
	}
	requireMissing := func(err error) {
		t.Helper()
		require.ErrorAs(t, err, new(*MissingNodeError))
	}
	_, err = v.TryManifest()
	requireMissing(err)
	_, err = v.Chunk(0)
	requireMissing(err)
	_, err = v.ChunkRange(0, 0, 1)
	requireMissing(err)
	_, err = v.Cut(MinCutBytes)
	if full.Root().Bytes > MinCutBytes {
		requireMissing(err)
	}
	_, err = v.CutChunk(0, MinCutBytes)
	requireMissing(err)
	require.Panics(t, func() { v.Manifest() })

	// One chunk, of which only the root's hash is present.
	small := stateOf(t, 1<<20, 40)
	if p, err = NewPartial(small.Commitment()); err != nil {
		t.Fatal(err)
	}
	m, err := p.Version().TryManifest()
	require.NoError(t, err)
	require.Equal(t, small.Manifest(), m)
	_, err = p.Version().Chunk(0)
	requireMissing(err)
	_, err = p.Version().ChunkRange(0, 0, 1)
	requireMissing(err)
}

func TestJustBelow(t *testing.T) {
	require.Nil(t, justBelow(nil))
	require.Nil(t, justBelow([]byte{0}))
	require.Equal(t, []byte{0}, justBelow([]byte{0, 0}))
	require.Equal(t, append([]byte{0}, bytes.Repeat([]byte{0xff}, MaxKeyBytes-1)...), justBelow([]byte{1}))
	longest := bytes.Repeat([]byte{7}, MaxKeyBytes)
	require.Equal(t, append(bytes.Repeat([]byte{7}, MaxKeyBytes-1), 6), justBelow(longest))
}

// ChunkKeys returns the first keys whose hashes are in the manifest, even where chunks are stubs; a
// missing upper node is reported.
func TestChunkKeys(t *testing.T) {
	v := stateOf(t, 50, 60)
	m := v.Manifest()
	require.Greater(t, len(m.Entries), 4)
	pruned, err := v.Prune(func(s Subtree) bool { return isSmall(s.Stat, v.chunkBytes) })
	require.NoError(t, err)
	for _, v := range []*Version{v, pruned.Version()} {
		keys, err := v.ChunkKeys()
		require.NoError(t, err)
		require.Len(t, keys, len(m.Entries)-1)
		for k, key := range keys {
			require.Equal(t, m.Entries[k+1].FirstKeyHash, Hash(sha256.Sum256(key)))
		}
	}
	root, err := v.Prune(func(s Subtree) bool { return s.First != nil && !isSmall(s.Stat, v.chunkBytes) })
	require.NoError(t, err)
	_, err = root.Version().ChunkKeys()
	var missing *MissingNodeError
	require.ErrorAs(t, err, &missing)
	require.NotEmpty(t, missing.Key)
}
