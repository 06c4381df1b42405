package rootmulti

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"cosmossdk.io/log/v2"
	snapshottypes "github.com/cosmos/cosmos-sdk/store/v2/snapshots/types"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/cosmos/store"
)

const vectorsFile = "../testdata/snapshots.json"

var update = flag.Bool("update", false, "write "+vectorsFile)

// hexBytes is encoded as a hexadecimal string in JSON.
type hexBytes []byte

func (b hexBytes) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(b)), nil }

func (b *hexBytes) UnmarshalText(text []byte) (err error) {
	*b, err = hex.DecodeString(string(text))
	return err
}

// vector is a multi-store and its snapshot (docs/spec/cosmosstore.md#snapshots).
type vector struct {
	Name       string        `json:"name"`
	Height     int64         `json:"height"` // height of the only commit
	ChunkBytes uint64        `json:"chunk_bytes"`
	Stores     []vectorStore `json:"stores"`
	AppHash    hexBytes      `json:"app_hash"`
	Items      []hexBytes    `json:"items"` // SnapshotItem messages, without length prefixes
}

type vectorStore struct {
	Name   string        `json:"name"`
	Root   hexBytes      `json:"root"`
	Leaves []vectorEntry `json:"leaves"`
}

type vectorEntry struct {
	Key   hexBytes `json:"key"`
	Value hexBytes `json:"value"` // the application's value, not the stored form
}

func vectors() []vector {
	var many []vectorEntry
	for i := range 12 {
		many = append(many, vectorEntry{hexBytes{'k', byte(i)}, hexBytes(strings.Repeat(string(rune('a'+i)), i))})
	}
	return []vector{
		{Name: "an empty store", Height: 1, ChunkBytes: 1 << 20, Stores: []vectorStore{{Name: "empty", Leaves: []vectorEntry{}}}},
		{Name: "values that are empty or begin with 00", Height: 7, ChunkBytes: 1 << 20, Stores: []vectorStore{
			{Name: "s", Leaves: []vectorEntry{{hexBytes("a"), hexBytes{}}, {hexBytes("b"), hexBytes{0, 1}}, {hexBytes("c"), hexBytes{1}}}}}},
		{Name: "stores of none, one and many chunks", Height: 300, ChunkBytes: 100, Stores: []vectorStore{
			{Name: "a", Leaves: []vectorEntry{{hexBytes("key"), hexBytes("value")}}}, {Name: "empty", Leaves: []vectorEntry{}}, {Name: "many", Leaves: many}}},
	}
}

// mount returns an empty multi-store for a vector.
func (v *vector) mount(t *testing.T) *Store {
	s := NewStore(dbm.NewMemDB(), log.NewNopLogger(), Options{Dir: "starling", FS: vfs.NewMem(), ChunkBytes: v.ChunkBytes})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for _, of := range v.Stores {
		s.MountStoreWithDB(types.NewKVStoreKey(of.Name), store.Type, nil)
	}
	require.NoError(t, s.LoadLatestVersion())
	return s
}

// fill computes the other fields from the leaves, with the code under test.
func (v *vector) fill(t *testing.T) {
	s := v.mount(t)
	require.NoError(t, s.SetInitialVersion(v.Height))
	for _, of := range v.Stores {
		for _, leaf := range of.Leaves {
			s.GetStoreByName(of.Name).(types.KVStore).Set(leaf.Key, leaf.Value)
		}
	}
	v.AppHash, v.Items = s.Commit().Hash, nil
	for i, of := range v.Stores {
		v.Stores[i].Root = s.GetStoreByName(of.Name).(types.CommitKVStore).LastCommitID().Hash
	}
	var taken items
	require.NoError(t, s.Snapshot(uint64(v.Height), &taken))
	for _, item := range taken.of {
		b, err := item.Marshal()
		require.NoError(t, err)
		v.Items = append(v.Items, b)
	}
}

func TestSnapshotVectors(t *testing.T) {
	made := vectors()
	for i := range made {
		made[i].fill(t)
	}
	b, err := json.MarshalIndent(made, "", " ")
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(vectorsFile, append(b, '\n'), 0o644))
	}
	file, err := os.ReadFile(vectorsFile)
	require.NoError(t, err)
	require.Equal(t, string(file), string(b)+"\n", "go test ./rootmulti -run Vectors -update writes the file")
	var all []vector
	require.NoError(t, json.Unmarshal(file, &all))
	require.Len(t, all, 3)
	for _, v := range all {
		t.Run(v.Name, func(t *testing.T) {
			var from items
			for _, b := range v.Items {
				var item snapshottypes.SnapshotItem
				require.NoError(t, item.Unmarshal(b))
				require.NoError(t, from.WriteMsg(&item))
			}
			s := v.mount(t)
			_, err := s.Restore(uint64(v.Height), snapshottypes.CurrentFormat, &from)
			require.NoError(t, err)
			require.Equal(t, types.CommitID{Version: v.Height, Hash: v.AppHash}, s.LastCommitID())
			for _, of := range v.Stores {
				restored := s.GetStoreByName(of.Name).(types.CommitKVStore)
				require.Equal(t, []byte(of.Root), restored.LastCommitID().Hash)
				it, got := restored.Iterator(nil, nil), []vectorEntry{}
				for ; it.Valid(); it.Next() {
					got = append(got, vectorEntry{it.Key(), it.Value()})
				}
				require.NoError(t, it.Close())
				require.Equal(t, of.Leaves, got)
			}
		})
	}
}
