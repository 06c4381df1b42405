package treestore

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/pages"
	"github.com/starling-kv/starling/storage/sgc"
)

// filling is a store with its state in memory that was loaded from the page list. failed has what
// it reported.
type filling struct {
	*chainOf
	fs     *vfs.MemFS
	zone   *storage.Zone
	store  *Store
	failed []error
}

func newFilling(t *testing.T) *filling {
	t.Helper()
	empty, err := avlstar.Empty(1 << 12)
	require.NoError(t, err)
	f := &filling{chainOf: &chainOf{rnd: seeds.Rand(t), v: empty}, fs: vfs.NewMem()}
	f.open(t)
	for range 20 {
		f.commit(t, f.store, 3000)
		f.zone.Trim(f.height, nil)
	}
	require.NoError(t, f.zone.Flush())
	require.Equal(t, 1, f.zone.Metrics().Generations, "no version of a new chain reads pages")
	require.False(t, f.store.Filling(), "everything is in memory")
	require.NoError(t, f.zone.Close())
	f.open(t)
	f.load(t, f.store)
	require.True(t, f.store.list.Known())
	require.True(t, f.store.Filling())
	synctest.Wait()
	return f
}

func (f *filling) open(t *testing.T) {
	t.Helper()
	var err error
	f.zone, err = storage.Open("zone", storage.Options{FS: f.fs, Generations: true, FlushBlocks: 3, CacheBytes: 1})
	require.NoError(t, err)
	f.store = New(Options{Zone: f.zone, ChainID: testChain, Cache: sgc.New(100_000), InMemory: true, Failed: func(err error) {
		f.failed = append(f.failed, err)
	}})
	f.store.fillBytes = 10_000
}

// block commits a small block, and waits for the filler.
func (f *filling) block(t *testing.T) {
	t.Helper()
	f.commit(t, f.store, 20)
	synctest.Wait()
}

// commitNothing commits a block that reads no page, and waits for the filler.
func (f *filling) commitNothing(t *testing.T) {
	t.Helper()
	next, err := f.v.Apply(nil)
	require.NoError(t, err)
	require.NoError(t, f.store.Commit(f.height+1, next, f.v, nil))
	f.v.Release()
	f.height, f.v = f.height+1, next
	synctest.Wait()
}

func (f *filling) close(t *testing.T) {
	t.Helper()
	f.v.Release()
	require.NoError(t, f.zone.Close())
}

// TestFill: a state in memory that was loaded from its page list comes into memory as blocks are
// made. Older versions can be read as long as they are in use, and then the states on disk that
// they needed are dropped.
func TestFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilling(t)
		old := f.v
		old.Retain()
		oldHeight := f.height
		for range 4 {
			f.block(t)
			require.True(t, f.store.Filling())
		}
		rounds := 0
		for ; f.store.Filling(); rounds++ {
			require.Less(t, rounds, 1000)
			f.block(t)
		}
		require.Greater(t, rounds, 10)
		f.block(t)
		require.Empty(t, slices.Collect(f.v.Stubs(nil)))

		f.zone.Trim(oldHeight, nil)
		for range 9 {
			f.block(t)
		}
		require.NoError(t, f.zone.Flush())
		require.NotEmpty(t, slices.Collect(old.Stubs(nil)))
		n := 0
		for _, err := range old.Leaves() {
			require.NoError(t, err)
			n++
		}
		require.EqualValues(t, old.Len(), n)
		old.Release()
		require.Greater(t, f.zone.Metrics().Generations, 3)
		f.zone.Trim(f.height, nil)
		f.block(t)
		require.NoError(t, f.zone.Flush())
		require.Equal(t, 1, f.zone.Metrics().Generations)

		require.Empty(t, f.failed)
		require.NoError(t, f.zone.Close())
		f.open(t)
		f.load(t, New(Options{Zone: f.zone, ChainID: testChain})) // from the leaves
		f.close(t)
	})
}

// TestWhole: the whole state can be had while the tree is being filled, and blocks can follow the
// version before it.
func TestWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilling(t)
		for range 3 {
			f.block(t)
		}
		disk := f.store.pages.Zone
		f.store.pages.Zone = broken{storage.ErrNoPage}
		_, err := f.store.Whole(t.Context(), f.v)
		require.ErrorIs(t, err, storage.ErrNoPage)
		f.store.pages.Zone = disk
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = f.store.Whole(ctx, f.v)
		require.ErrorIs(t, err, context.Canceled)

		whole, err := f.store.Whole(t.Context(), f.v)
		require.NoError(t, err)
		require.Equal(t, f.v.Commitment(), whole.Commitment())
		f.store.pages.Zone = broken{storage.ErrNoPage}
		require.Empty(t, slices.Collect(whole.Stubs(nil)))
		n := 0
		for _, err := range whole.Leaves() {
			require.NoError(t, err)
			n++
		}
		require.EqualValues(t, f.v.Len(), n)
		whole.Release()

		f.store.pages.Zone = disk
		require.True(t, f.store.Filling())
		for i := 0; f.store.Filling(); i++ {
			require.Less(t, i, 1000)
			f.block(t)
		}
		f.block(t)
		again, err := f.store.Whole(t.Context(), f.v)
		require.NoError(t, err)
		require.Same(t, f.v, again)
		again.Release()
		require.Empty(t, f.failed)
		f.close(t)
	})
}

// broken is a disk whose pages cannot be read.
type broken struct{ err error }

func (b broken) Page(_, _ []byte, _ uint64, _ func(records []byte) bool) error { return b.err }

// TestFillFindsDamage: the filler reports damage on disk that no reader meets, once, and stops.
func TestFillFindsDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilling(t)
		damage := fmt.Errorf("a table is %w", storage.ErrCorrupt)
		f.store.pages.Zone = broken{damage}
		for range 3 {
			f.commitNothing(t)
			require.Len(t, f.failed, 1)
			require.ErrorIs(t, f.failed[0], damage)
			require.True(t, f.store.Filling())
		}
		f.close(t)
	})
}

// flaky finds every third page missing.
type flaky struct {
	*storage.Zone
	n int
}

func (r *flaky) Page(first, after []byte, size uint64, accept func(records []byte) bool) error {
	if r.n++; r.n%3 == 0 {
		return storage.ErrNoPage
	}
	return r.Zone.Page(first, after, size, accept)
}

// TestFillProgresses: pages that are missing once each are not damage.
func TestFillProgresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilling(t)
		f.store.pages.Zone = &flaky{Zone: f.zone}
		for i := 0; f.store.Filling(); i++ {
			require.Less(t, i, 1000)
			f.commitNothing(t)
		}
		require.Empty(t, f.failed)
		f.close(t)
	})
}

// TestFillWithLongPauses: the longer the pause before a block, the more is read after it, within
// limits.
func TestFillWithLongPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilling(t)
		f.block(t) // takes the pages that the start read
		for _, c := range []struct {
			pause time.Duration
			pages uint64
		}{{0, 1}, {500 * time.Millisecond, 1}, {3 * time.Second, 3}, {time.Hour, 8}} {
			bubble.Sleep(c.pause)
			was := f.store.filler.Load().read
			f.commitNothing(t)
			read := f.store.filler.Load().read - was
			require.GreaterOrEqual(t, read, c.pages*f.store.fillBytes, c.pause)
			require.Less(t, read, c.pages*f.store.fillBytes+10_000, c.pause)
		}
		f.close(t)
	})
}

// TestFillEnds: a store that is closed while it fills reads no more.
func TestFillEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilling(t)
		f.block(t)
		f.store.Close()
		r := &flaky{Zone: f.zone}
		f.store.pages.Zone = r
		f.commitNothing(t)
		require.Zero(t, r.n)
		f.close(t)
	})
}

// TestFillMissingPage: a page that is missing once may have been replaced by a later block. If it
// is missing from several versions in turn, the state is damaged.
func TestFillMissingPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilling(t)
		f.block(t)
		for range 5 {
			f.store.pages.Zone = broken{storage.ErrNoPage}
			for range pages.ScrubTries - 1 {
				f.commitNothing(t)
			}
			f.store.pages.Zone = f.zone
			f.commitNothing(t)
		}
		require.Empty(t, f.failed)
		f.store.pages.Zone = broken{storage.ErrNoPage}
		for range pages.ScrubTries {
			require.Empty(t, f.failed)
			f.commitNothing(t)
		}
		require.Len(t, f.failed, 1)
		require.ErrorIs(t, f.failed[0], storage.ErrCorrupt)
		require.ErrorContains(t, f.failed[0], "unsafe-reset-all")
		f.close(t)
	})
}
