package rootmulti

import (
	"bytes"
	"io"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/gogoproto/proto"
	"github.com/stretchr/testify/require"

	"cosmossdk.io/log/v2"
	snapshottypes "github.com/cosmos/cosmos-sdk/store/v2/snapshots/types"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/cosmos/store"
)

// items is a list of snapshot items that implements protoio.Writer and protoio.Reader, without
// compression or chunks.
type items struct{ of []*snapshottypes.SnapshotItem }

func (i *items) WriteMsg(m proto.Message) error {
	i.of = append(i.of, proto.Clone(m).(*snapshottypes.SnapshotItem))
	return nil
}

func (i *items) ReadMsg(m proto.Message) error {
	if len(i.of) == 0 {
		return io.EOF
	}
	b, err := i.of[0].Marshal()
	if err != nil {
		return err
	}
	i.of = i.of[1:]
	return m.(*snapshottypes.SnapshotItem).Unmarshal(b)
}

func (i *items) clone() (c []*snapshottypes.SnapshotItem) {
	for _, item := range i.of {
		c = append(c, proto.Clone(item).(*snapshottypes.SnapshotItem))
	}
	return c
}

// snapshotKeys are the keys of stores that have 1, 0 and many chunks in smallChunks.
var snapshotKeys = []*types.KVStoreKey{types.NewKVStoreKey("a"), types.NewKVStoreKey("empty"), types.NewKVStoreKey("many")}

// smallChunks returns a multi-store with small chunks, which is empty unless filled is true.
func smallChunks(t *testing.T, filled bool) *Store {
	t.Helper()
	s := NewStore(dbm.NewMemDB(), log.NewNopLogger(), Options{Dir: "starling", FS: vfs.NewMem(), ChunkBytes: 100})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for _, key := range snapshotKeys {
		s.MountStoreWithDB(key, store.Type, nil)
	}
	require.NoError(t, s.LoadLatestVersion())
	if filled {
		s.GetKVStore(snapshotKeys[0]).Set([]byte("key"), []byte("value"))
		for i := range 20 {
			s.GetKVStore(snapshotKeys[2]).Set([]byte{'k', byte(i)}, bytes.Repeat([]byte{byte(i)}, i))
		}
		s.Commit()
	}
	return s
}

func TestDamagedSnapshot(t *testing.T) {
	source := smallChunks(t, true)
	var good items
	require.NoError(t, source.Snapshot(1, &good))
	// The items are: store a, its manifest, a chunk; store empty, its manifest; store many, etc.
	const chunkOfA, empty, many, manifest, first = 2, 3, 5, 6, 7
	require.Equal(t, "empty", good.of[empty].GetStore().GetName())
	require.Equal(t, "many", good.of[many].GetStore().GetName())
	require.Greater(t, len(good.of), first+3)
	type list = []*snapshottypes.SnapshotItem
	for name, damage := range map[string]struct {
		do   func(list) list
		want string // part of the error; "": only the app hash detects the damage
	}{
		"a bit of a manifest": {func(l list) list {
			v := l[manifest].GetIAVL().Value
			v[len(v)-1] ^= 1
			return l
		}, "store \"many\""},
		"an empty manifest":  {func(l list) list { l[manifest].GetIAVL().Value = nil; return l }, "store \"many\""},
		"another store's":    {func(l list) list { l[manifest].GetIAVL().Value = l[1].GetIAVL().Value; return l }, "store \"many\", chunk 0"},
		"chunks of 1 MiB":    {func(l list) list { l[empty+1].GetIAVL().Value = emptyManifest(t); return l }, "chunk limit of 1048576 bytes, expected 100"},
		"a bit of a chunk":   {func(l list) list { l[first+1].GetIAVL().Value[9] ^= 4; return l }, "store \"many\", chunk 1"},
		"a chunk is cut off": {func(l list) list { v := l[first].GetIAVL(); v.Value = v.Value[:len(v.Value)-1]; return l }, "store \"many\", chunk 0"},
		"two chunks swapped": {func(l list) list {
			a, b := l[first].GetIAVL(), l[first+1].GetIAVL()
			a.Value, b.Value = b.Value, a.Value
			return l
		}, "store \"many\", chunk 0"},
		"two items swapped": {func(l list) list { l[first], l[first+1] = l[first+1], l[first]; return l }, "item 2, expected item 1"},
		"a chunk is twice":  {func(l list) list { return slices.Insert(l, first, l[first]) }, "item 1, expected item 2"},
		"a chunk too many": {func(l list) list {
			c := proto.Clone(l[chunkOfA]).(*snapshottypes.SnapshotItem)
			c.GetIAVL().Version++
			return slices.Insert(l, empty, c)
		}, "more than 1 chunks"},
		"no last chunk":    {func(l list) list { return l[:len(l)-1] }, "store \"many\""},
		"no manifest":      {func(l list) list { return slices.Delete(l, empty+1, empty+2) }, "store \"empty\" has no manifest"},
		"stores missing":   {func(l list) list { return l[:empty] }, "does not have Starling store"},
		"no store":         {func(list) list { return nil }, "does not have Starling store"},
		"a store is twice": {func(l list) list { return append(l, l[:empty]...) }, "store \"a\" is twice"},
		"no name":          {func(l list) list { return l[1:] }, "before store item"},
		"an unknown name":  {func(l list) list { l[0].GetStore().Name = "other"; return l }, "cannot import into non-IAVL store \"other\""},
		"nodes of IAVL":    {func(l list) list { l[chunkOfA].GetIAVL().Height = 0; return l }, "cannot import IAVL nodes"},
		"names exchanged": {func(l list) list {
			l[0].GetStore().Name, l[many].GetStore().Name = "many", "a"
			return l
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			target := smallChunks(t, false)
			_, err := target.Restore(1, snapshottypes.CurrentFormat, &items{damage.do(good.clone())})
			if damage.want == "" {
				require.NoError(t, err)
				require.NotEqual(t, source.LastCommitID(), target.LastCommitID())
				return
			}
			require.ErrorContains(t, err, damage.want)
			// Nothing was restored, and the undamaged snapshot is accepted.
			require.Zero(t, target.LastCommitID().Version)
			for _, key := range snapshotKeys {
				require.False(t, target.GetKVStore(key).Iterator(nil, nil).Valid())
			}
			_, err = target.Restore(1, snapshottypes.CurrentFormat, &items{good.clone()})
			require.NoError(t, err)
			require.Equal(t, source.LastCommitID(), target.LastCommitID())
		})
	}
}

func emptyManifest(t *testing.T) []byte {
	v, err := avlstar.Empty(avlstar.DefaultChunkBytes)
	require.NoError(t, err)
	defer v.Release()
	return v.Manifest().Encode()
}
