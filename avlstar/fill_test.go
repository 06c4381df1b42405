package avlstar

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// unlimited returns the Paging of a tree that is filled.
func unlimited(d *disk) Paging {
	return Paging{Pages: d, Budget: func() int64 { return 1 << 40 }}
}

// fromList rebuilds v, which d has, from its page list.
func fromList(t require.TestingT, v *Version, d *disk) *Version {
	again, err := FromPageList(v.ChunkBytes(), v.Len(), unlimited(d), pageListOf(t, v.PageList(nil)).pages(nil))
	require.NoError(t, err)
	return again
}

// startOf returns a tree from the page list of a random one with small pages, that tree, and the
// disk that has its pages.
func startOf(t *testing.T, rnd *rand.Rand, keys int) (v, plain *Version, d *disk) {
	t.Helper()
	smallPages(t, 500)
	plain = advance(t, mustEmpty(t, 1<<14), randomBlock(rnd, keys, 1<<30, 0, false)...)
	d = &disk{}
	d.store(t, plain)
	return fromList(t, plain, d), plain, d
}

// TestFill: a tree from a page list that is filled next to random blocks has their states, and ends
// with all nodes and no stub. Some versions are made twice, because the first one is given up.
func TestFill(t *testing.T) {
	usual := tune
	t.Cleanup(func() { tune = usual })
	rnd := seeds.Rand(t)
	ended, changed := 0, 0
	// Few blocks fill a small tree.
	for n := 0; n < scaled(30) || n < 300 && changed == 0; n++ {
		tune.pageBytes = []uint64{60, 200, 500, 2000}[rnd.IntN(4)]
		keys := 100 << rnd.IntN(6)
		plain := mustApply(t, mustEmpty(t, 1+rnd.Uint64N(1<<rnd.IntN(15))), randomBlock(rnd, keys, keys, 0, false)...)
		if !plain.HasPageList() {
			plain.Release()
			continue
		}
		d := &disk{}
		d.store(t, plain)
		v := fromList(t, plain, d)
		if rnd.IntN(2) == 0 {
			v.EnableIndex()
		}
		var (
			from   []byte
			full   bool
			rounds int
		)
		for ; v.partial; rounds++ {
			require.Less(t, rounds, 10_000)
			if rnd.IntN(4) > 0 {
				var err error
				from, full, err = v.Fill(from, rnd.Uint64N(1+plain.Root().Bytes/10), d.Page)
				require.NoError(t, err)
			}
			block := randomBlock(rnd, rnd.IntN(1+keys/20), 2*keys, []float64{0, 0.2, 0.9}[rnd.IntN(3)], false)
			if rnd.IntN(4) == 0 { // a block that is not decided
				gone, err := v.Apply(randomBlock(rnd, rnd.IntN(20), 2*keys, 0.5, false))
				require.NoError(t, err)
				gone.Release()
			}
			if full && rnd.IntN(2) == 0 {
				block = nil
			}
			v, plain = advance(t, v, block...), advance(t, plain, block...)
			require.Equal(t, plain.Commitment(), v.Commitment())
			require.True(t, !full || !v.partial, "the block after Fill says so has no stub")
			if rnd.IntN(4) == 0 {
				d.store(t, plain)
				v.Stored()
			}
		}
		ended++
		if rounds > 20 {
			changed++
		}
		require.Equal(t, plain.Len(), v.Len())
		require.Equal(t, plain.NumChunks(), v.NumChunks())
		reads := d.reads.Load()
		require.Equal(t, slices.Collect(mustLeaves(t, plain)), slices.Collect(mustLeaves(t, v)))
		for range 5 {
			block := randomBlock(rnd, keys/10, 2*keys, 0.3, false)
			v, plain = advance(t, v, block...), advance(t, plain, block...)
			require.Equal(t, plain.Commitment(), v.Commitment())
		}
		require.Equal(t, reads, d.reads.Load(), "everything is in memory")
		_, full, err := v.Fill(nil, 1, nil)
		require.NoError(t, err)
		require.True(t, full)
		plain.Release()
		v.Release()
	}
	require.Positive(t, ended)
	require.Positive(t, changed)
}

// TestFillReadsEachPageOnce: Fill continues where it ended, waits until an Apply has taken what it
// read, and returns the error of a page at which it can try again.
func TestFillReadsEachPageOnce(t *testing.T) {
	v, plain, d := startOf(t, seeds.Rand(t), 2_000)
	pages := int64(len(slices.Collect(v.Stubs(nil))))

	next, full, err := v.Fill(nil, 2000, d.Page)
	require.NoError(t, err)
	require.False(t, full)
	require.NotNil(t, next)
	read := d.reads.Load()
	require.GreaterOrEqual(t, read, int64(4))
	again, full, err := v.Fill(next, 2000, d.Page)
	require.NoError(t, err)
	require.False(t, full)
	require.Equal(t, next, again)
	require.Equal(t, read, d.reads.Load())

	v = advance(t, v) // takes them, and makes another version of the same state
	require.Equal(t, uint64(read), v.Memory().Loaded)
	d.broken.Store(true)
	again, full, err = v.Fill(next, 2000, d.Page)
	require.ErrorIs(t, err, errBroken)
	var at *PageError
	require.ErrorAs(t, err, &at)
	require.Equal(t, next, at.Page.First)
	require.False(t, full)
	require.Equal(t, next, again)
	d.broken.Store(false)
	for next != nil {
		next, full, err = v.Fill(next, 2000, d.Page)
		require.NoError(t, err)
		require.False(t, full)
		v = advance(t, v)
	}
	require.Equal(t, pages, d.reads.Load()-1)
	require.True(t, v.partial)
	_, full, err = v.Fill(nil, 2000, d.Page)
	require.NoError(t, err)
	require.True(t, full)
	v = advance(t, v)
	require.False(t, v.partial)
	require.Equal(t, plain.Commitment(), v.Commitment())
	require.Equal(t, plain.Memory().InnerNodes, v.Memory().InnerNodes-v.Memory().Held)
	v.Release()
	plain.Release()
}

// TestFillLimits: Fill reads at least one page, and fails if the pages did not fit into the tree.
func TestFillLimits(t *testing.T) {
	v, plain, d := startOf(t, seeds.Rand(t), 300)
	next, full, err := v.Fill(nil, 0, d.Page)
	require.NoError(t, err)
	require.False(t, full)
	require.NotNil(t, next)
	require.EqualValues(t, 1, d.reads.Load())
	v = advance(t, v)
	require.NotEmpty(t, slices.Collect(v.Stubs(nil)))

	v.tree.paging.tooLarge.Store(true)
	again, full, err := v.Fill(next, 1, d.Page)
	require.ErrorIs(t, err, ErrTooLarge)
	require.False(t, full)
	require.Equal(t, next, again)
	v.Release()
	plain.Release()
}

// TestFillAndGoBack: if the version that has no stubs is given up, the one before has stubs again.
func TestFillAndGoBack(t *testing.T) {
	rnd := seeds.Rand(t)
	v, plain, d := startOf(t, rnd, 300)
	block := randomBlock(rnd, 10, 1<<30, 0, false)
	_, _, err := v.Fill(nil, 1<<30, d.Page)
	require.NoError(t, err)
	next := mustApply(t, v, block...)
	_, full, err := next.Fill(nil, 1<<30, d.Page)
	require.NoError(t, err)
	require.True(t, full)
	next.Release()

	again := mustApply(t, v, block...)
	require.True(t, again.partial)
	require.NotEmpty(t, slices.Collect(again.Stubs(nil)))
	want := mustApply(t, plain, block...)
	require.Equal(t, want.Commitment(), again.Commitment())
	for _, v := range []*Version{again, v, want, plain} {
		v.Release()
	}
}
