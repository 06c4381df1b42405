package avlstar

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// requireViews compares ViewMany with View for present and absent keys, in any order and some of
// them more than once.
func requireViews(t *testing.T, rnd *rand.Rand, v *Version, block []Change) {
	t.Helper()
	var keys [][]byte
	for range rnd.IntN(3 * manyWalks) {
		switch key := []byte{byte(rnd.Uint32()), byte(rnd.Uint32())}; {
		case rnd.IntN(3) == 0 || len(block) == 0:
			keys = append(keys, key)
		default:
			keys = append(keys, block[rnd.IntN(len(block))].Key)
		}
	}
	values := make([][]byte, len(keys)+1)
	for i := range values {
		values[i] = []byte("from before")
	}
	var want error
	wanted := make([][]byte, len(keys))
	for i := range keys {
		var ok bool
		var err error
		wanted[i], ok, err = v.View(keys[i])
		require.Equal(t, ok, wanted[i] != nil)
		if want == nil {
			want = err
		}
	}
	err := v.ViewMany(values, keys)
	require.Equal(t, want, err)
	if err == nil {
		require.Equal(t, wanted, values[:len(keys)])
		for i, value := range values[:len(keys)] {
			if v.partial {
				break // it may be a copy
			}
			require.Equal(t, len(value), cap(value), "value %d", i)
		}
	}
	require.Equal(t, "from before", string(values[len(keys)]), "a value without a key")
}

// TestViewMany: ViewMany returns the results of View in all versions of random trees, also for keys
// with equal prefixes, for the empty tree, and for pages that are in memory, on disk, or
// unreadable.
func TestViewMany(t *testing.T) {
	smallPages(t, 300)
	rnd := seeds.Rand(t)
	for round := range scaled(40) {
		v := mustEmpty(t, 1+rnd.Uint64N(5000))
		f := &flaky{disk: &disk{}}
		if round%2 == 0 {
			v.EnablePaging(Paging{Pages: f, Budget: func() int64 { return int64(rnd.IntN(20_000)) }})
		}
		requireViews(t, rnd, v, nil)
		space := 1 << rnd.IntN(12)
		var all []Change
		for range 10 {
			scheme := rnd.IntN(5)
			block := randomBlock(rnd, rnd.IntN(200), space, 0.3, false)
			block = append(block, Change{schemeKey(rnd, scheme, space), []byte("value")})
			next, err := v.Apply(uniqueKeys(block))
			require.NoError(t, err)
			f.disk.store(t, next)
			next.Stored()
			all = append(all, block...)
			requireViews(t, rnd, v, all)
			v.Release()
			v = next
			requireViews(t, rnd, v, all)
		}
		f.disk.broken.Store(true)
		requireViews(t, rnd, v, all)
		v.Release()
	}
}

func TestViewManyWants(t *testing.T) {
	v := mustEmpty(t, 1000)
	require.NoError(t, v.ViewMany(nil, nil))
	require.Panics(t, func() { _ = v.ViewMany(nil, [][]byte{{1}}) }, "no room for a value")
	v.Release()
	require.Panics(t, func() { _ = v.ViewMany(nil, nil) })
}
