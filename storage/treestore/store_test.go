package treestore

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
)

// TestPagesOfABlockThatWasNotStoredStay: data that is not on disk stays in memory, even if memory
// is short: after the zone has failed, every key can still be read.
func TestPagesOfABlockThatWasNotStoredStay(t *testing.T) {
	failed := make(chan error, 1)
	zone, err := storage.Open("zone", storage.Options{
		FlushBlocks: 1, Failed: func(err error) { failed <- err },
		FS: errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".sst") {
				return syscall.ENOSPC
			}
			return nil
		})),
	})
	require.NoError(t, err)
	store := New(Options{Zone: zone, ChainID: testChain, Cache: sgc.New(1)})
	v, err := avlstar.Empty(1000)
	require.NoError(t, err)
	var changes []avlstar.Change
	for i := range 2000 {
		changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "key-%05d", i), Value: fmt.Appendf(nil, "%0100d", i)})
	}
	apply := func(changes []avlstar.Change) {
		next, err := v.Apply(changes)
		require.NoError(t, err)
		v.Release()
		v = next
	}
	apply(changes)
	require.NoError(t, store.Commit(1, v, nil, changes))
	require.ErrorIs(t, <-failed, storage.ErrDiskFull)
	require.NoError(t, zone.Close()) // by now every block was reported
	for i := range 50 {              // each evicts pages that have not changed for long
		apply([]avlstar.Change{{Key: []byte("key-00000"), Value: fmt.Append(nil, i)}})
	}
	for _, c := range changes[1:] {
		value, _, err := v.Get(c.Key)
		require.NoError(t, err)
		require.Equal(t, c.Value, value)
	}
	v.Release()
}

// TestWaitingBlocksHoldNoVersions: the tree keeps the version of one block for the zone, and that
// of the first block, whose changes are in its memory, but not those of all blocks that wait for
// the disk.
func TestWaitingBlocksHoldNoVersions(t *testing.T) {
	fs := vfs.NewMem()
	zone, err := storage.Open("zone", storage.Options{FS: fs, FlushBlocks: 1000, FlushInterval: time.Hour})
	require.NoError(t, err)
	store := New(Options{Zone: zone, ChainID: testChain})
	v, err := avlstar.Empty(1000)
	require.NoError(t, err)
	const blocks = 30
	var first *avlstar.Version
	for height := int64(1); height <= blocks; height++ {
		var changes []avlstar.Change
		for i := range 50 {
			changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "key-%05d", int64(i)*height), Value: fmt.Append(nil, height)})
		}
		next, err := v.Apply(changes)
		require.NoError(t, err)
		base := v
		if height == 1 {
			base, first = nil, next
		}
		require.NoError(t, store.Commit(height, next, base, changes))
		old := v
		old.Release()
		v = next
		require.Eventually(t, func() bool { return old == first || gone(old) }, 5*time.Minute, time.Millisecond, "height %d", height)
	}
	require.Equal(t, blocks, zone.Metrics().LagBlocks)
	require.LessOrEqual(t, v.Memory().Versions, 4)
	require.False(t, gone(first))
	require.NoError(t, zone.Close())
	require.True(t, gone(first))

	zone = openZone(t, fs)
	height, loaded, err := New(Options{Zone: zone, ChainID: testChain}).Load()
	require.NoError(t, err)
	require.EqualValues(t, blocks, height)
	require.Equal(t, v.AppHash(), loaded.AppHash())
	loaded.Release()
	require.NoError(t, zone.Close())
	v.Release()
	require.True(t, gone(v))
}

func gone(v *avlstar.Version) bool {
	if v.TryRetain() {
		v.Release()
		return false
	}
	return true
}

// TestLoadComparesTheAppHash: undamaged leaves with valid checksums that do not match the stored
// app hash are refused.
func TestLoadComparesTheAppHash(t *testing.T) {
	for _, cache := range []*sgc.Cache{nil, sgc.New(1 << 20)} {
		for value, right := range map[string]bool{"1": true, "2": false} {
			empty, err := avlstar.Empty(1000)
			require.NoError(t, err)
			v, err := empty.Apply([]avlstar.Change{{Key: []byte("key"), Value: []byte("1")}})
			require.NoError(t, err)
			hash := v.AppHash()
			zone := openZone(t, vfs.NewMem())
			require.NoError(t, zone.Write(storage.Block{
				Meta: storage.Meta{Height: 3, AppHash: hash[:], ChunkBytes: 1000, ChainID: testChain},
				Puts: []avlstar.Leaf{{Key: []byte("key"), Value: []byte(value)}},
			}))
			require.NoError(t, zone.Flush())
			height, loaded, err := New(Options{Zone: zone, ChainID: testChain, Cache: cache}).Load()
			if right {
				require.NoError(t, err)
				require.EqualValues(t, 3, height)
				loaded.Release()
			} else {
				require.ErrorIs(t, err, storage.ErrCorrupt)
				require.ErrorContains(t, err, "when it was stored")
				require.ErrorContains(t, err, "join again")
			}
			require.NoError(t, zone.Close())
			v.Release()
			empty.Release()
		}
	}
}

// TestIndex: with Options.Index, trees have an index, whether they begin with a first block or with
// a stored state.
func TestIndex(t *testing.T) {
	fs := vfs.NewMem()
	zone := openZone(t, fs)
	store := New(Options{Zone: zone, ChainID: testChain, Index: true})
	empty, err := avlstar.Empty(1000)
	require.NoError(t, err)
	one := []avlstar.Change{{Key: []byte("one"), Value: []byte("1")}}
	v, err := empty.Apply(one)
	require.NoError(t, err)
	require.NoError(t, store.Commit(1, v, nil, one))
	requireIndexed := func(v *avlstar.Version) {
		next, err := v.Apply([]avlstar.Change{{Key: []byte("two"), Value: []byte("2")}})
		require.NoError(t, err)
		for range 2 {
			value, _, err := next.Get([]byte("one"))
			require.NoError(t, err)
			require.Equal(t, "1", string(value))
		}
		require.Equal(t, uint64(1), next.Memory().Indexed, "before the read")
		require.Positive(t, next.Memory().IndexBytes)
		next.Release()
	}
	requireIndexed(v)
	v.Release()
	empty.Release()
	require.NoError(t, zone.Close())

	zone = openZone(t, fs)
	_, v, err = New(Options{Zone: zone, Index: true}).Load()
	require.NoError(t, err)
	requireIndexed(v)
	v.Release()
	require.NoError(t, zone.Close())
}
