package treestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
)

const testChain = "test-chain"

func tree(t *testing.T, keys int) *avlstar.Version {
	t.Helper()
	v, err := avlstar.Empty(1000)
	require.NoError(t, err)
	var changes []avlstar.Change
	for i := range keys {
		changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "key-%05d", i), Value: fmt.Appendf(nil, "value %d", i)})
	}
	next, err := v.Apply(changes)
	require.NoError(t, err)
	v.Release()
	t.Cleanup(next.Release)
	return next
}

func openZone(t *testing.T, fs vfs.FS) *storage.Zone {
	t.Helper()
	zone, err := storage.Open("zone", storage.Options{FS: fs})
	require.NoError(t, err)
	return zone
}

func write(t *testing.T, target statesync.Target, v *avlstar.Version, m *avlstar.Manifest, chunks ...uint32) {
	t.Helper()
	for _, k := range chunks {
		data, err := v.Chunk(k)
		require.NoError(t, err)
		c, err := m.VerifyChunk(k, data)
		require.NoError(t, err)
		require.NoError(t, target.Write(k, c))
	}
}

// TestTargetAsserts: only the Restorer knows which chunks are written: a second Write is refused by
// name, until Forget.
func TestTargetAsserts(t *testing.T) {
	v := tree(t, 300)
	m := v.Manifest()
	require.Greater(t, len(m.Entries), 3)
	zone := openZone(t, vfs.NewMem())
	target := New(Options{Zone: zone, ChainID: testChain}).JoinTarget(JoinOptions{})
	require.Error(t, target.Forget(0), "no restore is under way")
	require.Nil(t, target.Stored(0))
	require.NoError(t, target.Abort())

	require.NoError(t, target.Continue(7, m))
	require.NoError(t, target.Forget(1), "there is no such chunk")
	write(t, target, v, m, 0, 1)
	data, err := v.Chunk(1)
	require.NoError(t, err)
	require.Equal(t, data, target.Stored(1))
	require.Nil(t, target.Stored(2))
	c, err := m.VerifyChunk(1, data)
	require.NoError(t, err)
	require.ErrorIs(t, target.Write(1, c), storage.ErrRunExists)
	require.NoError(t, target.Forget(1))
	require.Nil(t, target.Stored(1))
	require.NoError(t, target.Write(1, c))
	require.NoError(t, target.Abort())
	require.NoError(t, zone.Close())
}

// TestResume: a restore interrupted by a crash resumes with the undamaged chunks. A damaged chunk
// is removed and written again.
func TestResume(t *testing.T) {
	v := tree(t, 300)
	m := v.Manifest()
	dir := filepath.Join(t.TempDir(), "zone")
	open := func() *storage.Zone {
		zone, err := storage.Open(dir, storage.Options{})
		require.NoError(t, err)
		return zone
	}
	zone := open()
	target := New(Options{Zone: zone, ChainID: testChain}).JoinTarget(JoinOptions{})
	r, err := statesync.ContinueRestore(t.Context(), target, 7, m, nil)
	require.NoError(t, err)
	for k := range uint32(3) {
		data, err := v.Chunk(k)
		require.NoError(t, err)
		_, err = r.Accept(k, data)
		require.NoError(t, err)
	}
	r.Leave()
	require.NoError(t, zone.Close())

	damageOne(t, dir)
	zone = open()
	height, unfinished, ok := Unfinished(zone)
	require.True(t, ok)
	require.EqualValues(t, 7, height)
	require.Equal(t, m, unfinished)
	store := New(Options{Zone: zone, ChainID: testChain})
	looked := 0
	r, err = statesync.ContinueRestore(t.Context(), store.JoinTarget(JoinOptions{}), 7, m, func(done int) { looked = done })
	require.NoError(t, err)
	require.Equal(t, len(m.Entries), looked)
	require.Equal(t, len(m.Entries)-2, r.Missing())
	for k := range v.NumChunks() {
		data, err := v.Chunk(k)
		require.NoError(t, err)
		_, err = r.Accept(k, data)
		require.NoError(t, err)
	}
	restored, err := r.Commit()
	require.NoError(t, err)
	restored.Release()
	height, loaded, err := store.Load()
	require.NoError(t, err)
	require.EqualValues(t, 7, height)
	require.Equal(t, v.AppHash(), loaded.AppHash())
	loaded.Release()
	require.NoError(t, zone.Close())
}

// TestPagedJoinBeforeItIsSettled: a paged state is built, read, and changed by a block before its
// tables exist.
func TestPagedJoinBeforeItIsSettled(t *testing.T) {
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	zone, err := storage.Open("zone", storage.Options{Generations: true, FS: errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && filepath.Base(filepath.Dir(op.Path)) == "ingest" {
			<-held
		}
		return nil
	}))})
	require.NoError(t, err)
	defer release()
	store := New(Options{Zone: zone, ChainID: testChain, Cache: sgc.New(1)})
	want := tree(t, 2000)
	r, err := statesync.ContinueRestore(t.Context(), store.JoinTarget(JoinOptions{}), 7, want.Manifest(), nil)
	require.NoError(t, err)
	for k := range want.NumChunks() {
		data, err := want.Chunk(k)
		require.NoError(t, err)
		_, err = r.Accept(k, data)
		require.NoError(t, err)
	}
	v, err := r.Commit()
	require.NoError(t, err)
	defer v.Release()
	settled := zone.Settled()
	require.Equal(t, changesOf(t, want), changesOf(t, v))
	change := []avlstar.Change{{Key: []byte("key-00007")}, {Key: []byte("key-00008"), Value: []byte("new")}}
	next, err := v.Apply(change)
	require.NoError(t, err)
	defer next.Release()
	require.NoError(t, store.Commit(8, next, v, change))
	require.Equal(t, changesOf(t, want), changesOf(t, v))
	require.EqualValues(t, 7, store.Durable())
	select {
	case <-settled:
		require.FailNow(t, "settled without its tables")
	default:
	}
	release()
	<-settled
	require.NoError(t, zone.Flush())
	require.EqualValues(t, 8, store.Durable())
	require.Equal(t, changesOf(t, want), changesOf(t, v))
	height, loaded, err := store.Load()
	require.NoError(t, err)
	require.EqualValues(t, 8, height)
	require.Equal(t, next.AppHash(), loaded.AppHash())
	loaded.Release()
	require.NoError(t, zone.Close())
}

// damageOne flips a bit in one file of an interrupted restore.
func damageOne(t *testing.T, dir string) {
	t.Helper()
	done := errors.New("done")
	err := filepath.WalkDir(filepath.Join(dir, "restore"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".runs" {
			return err
		}
		flipBit(t, path)
		return done
	})
	require.ErrorIs(t, err, done)
}

// TestStore: a stored state is read back, page by page if there is a cache, and is refused on
// another chain.
func TestStore(t *testing.T) {
	for _, cache := range []*sgc.Cache{nil, sgc.New(64 << 10)} {
		t.Run(fmt.Sprint("paged ", cache != nil), func(t *testing.T) {
			fs := vfs.NewMem()
			zone := openZone(t, fs)
			o := Options{Zone: zone, ChainID: testChain, Cache: cache}
			store := New(o)
			height, none, err := store.Load()
			require.NoError(t, err)
			require.Zero(t, height)
			require.Nil(t, none)
			base := tree(t, 2000)
			require.NoError(t, store.Commit(1, base, nil, changesOf(t, base)))
			next, err := base.Apply([]avlstar.Change{{Key: []byte("key-00007")}, {Key: []byte("new"), Value: []byte("v")}})
			require.NoError(t, err)
			require.NoError(t, store.Commit(2, next, base, []avlstar.Change{{Key: []byte("key-00007")}, {Key: []byte("new"), Value: []byte("v")}}))
			require.NoError(t, zone.Flush())
			require.EqualValues(t, 2, store.Durable())
			height, v, err := store.Load()
			require.NoError(t, err)
			require.EqualValues(t, 2, height)
			require.Equal(t, next.AppHash(), v.AppHash())
			v.Release()
			next.Release()

			o.ChainID = "another"
			_, _, err = New(o).Load()
			require.ErrorIs(t, err, app.ErrOtherChain)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			meta, _ := zone.Meta()
			_, err = Recompute(ctx, meta, zone.Scan(), func(uint64) {})
			require.ErrorIs(t, err, context.Canceled)
			v, err = Recompute(t.Context(), meta, zone.Scan(), func(uint64) {})
			require.NoError(t, err)
			v.Release()
			meta.AppHash[0]++
			_, err = Recompute(t.Context(), meta, zone.Scan(), func(uint64) {})
			require.ErrorIs(t, err, ErrNotTheState)
			require.NoError(t, zone.Close())
		})
	}
}

func changesOf(t *testing.T, v *avlstar.Version) (changes []avlstar.Change) {
	t.Helper()
	for l, err := range v.Leaves() {
		require.NoError(t, err)
		changes = append(changes, avlstar.Change{Key: bytes.Clone(l.Key), Value: bytes.Clone(l.Value)})
	}
	return changes
}

func flipBit(t *testing.T, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	raw[20] ^= 4
	require.NoError(t, os.WriteFile(path, raw, 0o600))
}
