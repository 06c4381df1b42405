package avlstar

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestReadAhead reads keys, present and absent, in windows. Each page is read from the disk once,
// reads return the usual results, and a window takes no more memory than it may.
func TestReadAhead(t *testing.T) {
	smallPages(t, 2000)
	rnd := seeds.Rand(t)
	d := &disk{}
	full := advance(t, mustEmpty(t, 1<<20), randomBlock(rnd, 10_000, 1<<30, 0, false)...)
	d.store(t, full)
	paging := Paging{Pages: d, Budget: func() int64 { return 0 }}
	v, err := FromLeavesPaged(1<<20, paging, full.Leaves())
	require.NoError(t, err)

	var keys [][]byte
	for _, l := range d.generations[0] {
		keys = append(keys, l.Key, append(slices.Clone(l.Key), 0))
	}
	rnd.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	windows := 0
	for at := 0; at < len(keys); windows++ {
		from := at
		require.True(t, v.ReadAhead(func(yield func([]byte) bool) {
			for at < len(keys) {
				at++
				if !yield(keys[at-1]) {
					return
				}
			}
		}))
		require.Greater(t, at, from)
		bytes := 0
		for _, page := range *v.tree.paging.ahead.Load() {
			bytes += page.Size()
		}
		require.Less(t, bytes, 2*minAhead)
		before := d.reads.Load()
		for _, key := range keys[from:at] {
			value, ok, err := v.View(key)
			require.NoError(t, err)
			want, there, err := full.View(key)
			require.NoError(t, err)
			require.Equal(t, there, ok)
			require.Equal(t, want, value)
		}
		require.Equal(t, before, d.reads.Load(), "every page was there")
	}
	require.Greater(t, windows, 2)

	// A page that cannot be read ahead is an error when it is needed. ForgetAhead frees the pages.
	v.ForgetAhead()
	d.broken.Store(true)
	require.True(t, v.ReadAhead(slices.Values(keys[:10])))
	_, _, err = v.View(keys[0])
	require.ErrorIs(t, err, errBroken)
	d.broken.Store(false)
	_, _, err = v.View(keys[0])
	require.NoError(t, err)

	require.False(t, full.ReadAhead(func(func([]byte) bool) { t.Error("a tree in memory needs no key") }))
	full.ForgetAhead()
}
