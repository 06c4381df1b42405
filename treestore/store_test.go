package treestore

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
)

// What a disk has not taken stays in memory, however little there is of it: after the zone has
// failed, every key can still be read.
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
	require.NoError(t, zone.Close()) // every block was reported by now
	for i := range 50 {              // each lets go of what has not changed for long
		apply([]avlstar.Change{{Key: []byte("key-00000"), Value: fmt.Append(nil, i)}})
	}
	for _, c := range changes[1:] {
		value, _, err := v.Get(c.Key)
		require.NoError(t, err)
		require.Equal(t, c.Value, value)
	}
	v.Release()
}

// Leaves that are whole, under right checksums, but not those of the app hash beside them: nothing
// is made of them.
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
