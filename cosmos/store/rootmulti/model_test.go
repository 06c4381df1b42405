package rootmulti

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"cosmossdk.io/log/v2"
	pruningtypes "github.com/cosmos/cosmos-sdk/store/v2/pruning/types"
	"github.com/cosmos/cosmos-sdk/store/v2/snapshots"
	snapshottypes "github.com/cosmos/cosmos-sdk/store/v2/snapshots/types"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/cosmos/store"
)

// model is a multi-store with two Starling stores and an IAVL store, and the maps that the stores
// must equal at each version.
type model struct {
	t    *rapid.T
	db   *dbm.MemDB
	fs   *vfs.MemFS
	ms   *Store
	open []*Store // all open multi-stores, closed at the end

	keys    []types.StoreKey
	pruning pruningtypes.PruningOptions
	now     []map[string]string   // current content, by store
	then    [][]map[string]string // index: version − 1
	hashes  [][]byte              // index: version − 1
	blocks  [][]writes            // index: version − 1
	block   []writes              // writes since the last commit
	pruned  int64                 // versions up to this one may be pruned
}

// writes is a group of changes that are written together.
type writes []op

type op struct {
	store      int
	key, value []byte // nil: deleted
}

func (b writes) write(m *model) {
	cached := m.ms.CacheMultiStore()
	for _, o := range b {
		if o.value == nil {
			cached.GetKVStore(m.keys[o.store]).Delete(o.key)
		} else {
			cached.GetKVStore(m.keys[o.store]).Set(o.key, o.value)
		}
	}
	cached.Write()
}

func (m *model) mount() *Store {
	ms := NewStore(m.db, log.NewNopLogger(), Options{Dir: "starling", FS: m.fs, ChunkBytes: 300, PinEvery: 5, flushBlocks: 3})
	m.open = append(m.open, ms)
	ms.SetPruning(m.pruning)
	ms.MountStoreWithDB(m.keys[0], store.Type, nil)
	ms.MountStoreWithDB(m.keys[1], types.StoreTypeIAVL, nil)
	ms.MountStoreWithDB(m.keys[2], store.Type, nil)
	return ms
}

func (m *model) version() int64 { return int64(len(m.then)) }

func (m *model) back(version int64) {
	m.then, m.hashes, m.blocks, m.block = m.then[:version], m.hashes[:version], m.blocks[:version], nil
	m.now = []map[string]string{{}, {}, {}}
	if version > 0 {
		m.now = cloneAll(m.then[version-1])
	}
}

func cloneAll(of []map[string]string) (c []map[string]string) {
	for _, one := range of {
		c = append(c, maps.Clone(one))
	}
	return c
}

func (m *model) load() {
	m.ms = m.mount()
	require.NoError(m.t, m.ms.LoadLatestVersion())
	m.back(m.version())
	require.Equal(m.t, m.version(), m.ms.LatestVersion())
	m.check()
}

// check compares the stores with the maps, with forward and reverse iterators.
func (m *model) check() {
	for i, key := range m.keys {
		checkKV(m.t, m.ms.GetKVStore(key), m.now[i])
	}
	if m.version() > 0 {
		require.Equal(m.t, m.hashes[m.version()-1], m.ms.LastCommitID().Hash)
	}
}

func checkKV(t *rapid.T, s types.KVStore, want map[string]string) {
	sorted := slices.Sorted(maps.Keys(want))
	bounds := func() []byte {
		if len(sorted) == 0 || rapid.Bool().Draw(t, "open") {
			return nil
		}
		return []byte(rapid.SampledFrom(sorted).Draw(t, "bound"))
	}
	start, end := bounds(), bounds()
	var in []string
	for _, k := range sorted {
		if (start == nil || k >= string(start)) && (end == nil || k < string(end)) {
			in = append(in, k)
		}
	}
	for _, ascending := range []bool{true, false} {
		it := s.Iterator(start, end)
		if !ascending {
			it = s.ReverseIterator(start, end)
			slices.Reverse(in)
		}
		var got []string
		for ; it.Valid(); it.Next() {
			got = append(got, string(it.Key()))
			require.Equal(t, want[string(it.Key())], string(it.Value()))
		}
		require.NoError(t, it.Close())
		require.Equal(t, in, got)
	}
	for k, v := range want {
		require.True(t, s.Has([]byte(k)))
		require.Equal(t, []byte(v), s.Get([]byte(k)))
	}
}

var (
	drawKey   = rapid.SliceOfN(rapid.ByteRange(0, 3), 1, 3)
	drawValue = rapid.SliceOfN(rapid.ByteRange(0, 2), 0, 40)
)

func (m *model) change(t *rapid.T) {
	var b writes
	for range rapid.IntRange(1, 20).Draw(t, "changes") {
		o := op{store: rapid.IntRange(0, len(m.keys)-1).Draw(t, "store"), key: drawKey.Draw(t, "key")}
		if rapid.IntRange(0, 3).Draw(t, "what") == 0 {
			delete(m.now[o.store], string(o.key))
		} else {
			o.value = drawValue.Draw(t, "value")
			m.now[o.store][string(o.key)] = string(o.value)
		}
		b = append(b, o)
	}
	b.write(m)
	m.block = append(m.block, b)
}

func (m *model) commit(t *rapid.T) {
	hash := m.ms.WorkingHash()
	id := m.ms.Commit()
	m.then, m.hashes = append(m.then, cloneAll(m.now)), append(m.hashes, id.Hash)
	m.blocks, m.block = append(m.blocks, m.block), nil
	require.Equal(t, hash, id.Hash)
	require.Equal(t, m.version(), id.Version)
	if m.pruning.Interval > 0 && uint64(m.version())%m.pruning.Interval == 0 {
		m.pruned = max(m.pruned, m.version()-1-int64(m.pruning.KeepRecent))
	}
}

// TestRandom performs the operations of a node in random order. Each version must hold what was
// written, whatever happened since, and the app hash must be a function of the history.
func TestRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{t: t, db: dbm.NewMemDB(), fs: vfs.NewCrashableMem(), now: []map[string]string{{}, {}, {}}}
		m.pruning = rapid.SampledFrom([]pruningtypes.PruningOptions{
			pruningtypes.NewPruningOptions(pruningtypes.PruningNothing), pruningtypes.NewCustomPruningOptions(2, 4), pruningtypes.NewCustomPruningOptions(8, 3),
		}).Draw(t, "pruning")
		for _, name := range []string{"a", "b", "longer name"} {
			m.keys = append(m.keys, types.NewKVStoreKey(name))
		}
		defer func() {
			for _, ms := range m.open {
				require.NoError(t, ms.Close())
			}
		}()
		m.load()
		t.Repeat(map[string]func(*rapid.T){
			"":       func(*rapid.T) {},
			"change": m.change,
			"commit": m.commit,
			"blocks": func(t *rapid.T) {
				for range rapid.IntRange(1, 8).Draw(t, "blocks") {
					m.change(t)
					m.commit(t)
				}
			},
			"check": func(*rapid.T) { m.checkWorking() },
			"restart": func(t *rapid.T) {
				require.NoError(t, m.ms.Close())
				m.load()
			},
			"kill": func(t *rapid.T) {
				seed := rapid.Uint64().Draw(t, "seed")
				m.fs = m.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "unsynced"), RNG: rand.New(rand.NewPCG(seed, 0))})
				m.load()
			},
			"past": func(t *rapid.T) {
				if m.version() == 0 {
					t.Skip()
				}
				v := rapid.Int64Range(1, m.version()).Draw(t, "version")
				past, err := m.ms.CacheMultiStoreWithVersion(v)
				if err != nil {
					return // pruned, or committed before a restart
				}
				for i, key := range m.keys {
					checkKV(t, past.GetKVStore(key), m.then[v-1][i])
				}
			},
			"again": func(t *rapid.T) { m.again(t) },
			"roll back": func(t *rapid.T) {
				if m.version() == 0 {
					t.Skip()
				}
				v := rapid.Int64Range(max(1, m.version()-12), m.version()).Draw(t, "version")
				if err := m.ms.RollbackToVersion(v); err != nil {
					require.True(t, v <= m.pruned || m.pruned > 0, "version %d of %d, pruned %d: %v", v, m.version(), m.pruned, err)
					require.NoError(t, m.ms.Close())
					m.load()
					return
				}
				m.back(v)
				m.check()
			},
			"snapshot": func(t *rapid.T) { m.snapshot(t) },
		})
	})
}

// checkWorking is check without the comparison of the root, which is still the last commit's.
func (m *model) checkWorking() {
	for i, key := range m.keys {
		checkKV(m.t, m.ms.GetKVStore(key), m.now[i])
	}
}

// again loads a past version and commits the blocks after it again.
func (m *model) again(t *rapid.T) {
	if m.version() < 2 {
		t.Skip()
	}
	v, last := rapid.Int64Range(max(1, m.version()-6), m.version()).Draw(t, "version"), m.version()
	if err := m.ms.LoadVersion(v); err != nil {
		require.True(t, m.pruned > 0, "version %d of %d: %v", v, m.version(), err)
		require.NoError(t, m.ms.Close())
		m.load()
		return
	}
	m.block = nil
	m.now = cloneAll(m.then[v-1])
	for i, key := range m.keys {
		checkKV(t, m.ms.GetKVStore(key), m.now[i])
	}
	for at := v + 1; at <= last; at++ {
		for _, b := range m.blocks[at-1] {
			b.write(m)
		}
		require.Equal(t, m.hashes[at-1], m.ms.Commit().Hash, "version %d", at)
	}
	m.now = cloneAll(m.then[last-1])
	m.check()
}

func (m *model) snapshot(t *rapid.T) {
	if m.version() == 0 {
		t.Skip()
	}
	into := &model{t: t, db: dbm.NewMemDB(), fs: vfs.NewMem(), keys: m.keys, pruning: m.pruning}
	into.ms = into.mount()
	m.open = append(m.open, into.ms)
	require.NoError(t, into.ms.LoadLatestVersion())
	height := uint64(m.version())
	chunks := make(chan io.ReadCloser, 100)
	failed := make(chan error, 1)
	go func() {
		w := snapshots.NewStreamWriter(chunks)
		err := m.ms.Snapshot(height, w)
		w.Close()
		failed <- err
	}()
	r, err := snapshots.NewStreamReader(chunks)
	require.NoError(t, err)
	_, err = into.ms.Restore(height, snapshottypes.CurrentFormat, r)
	require.NoError(t, <-failed)
	require.NoError(t, err)
	require.Equal(t, m.ms.LastCommitID(), into.ms.LastCommitID())
	for i, key := range m.keys {
		checkKV(t, into.ms.GetKVStore(key), m.then[height-1][i])
	}
	require.NoError(t, into.ms.Close())
	again := into.mount()
	m.open = append(m.open, again)
	require.NoError(t, again.LoadLatestVersion())
	require.Equal(t, m.ms.LastCommitID(), again.LastCommitID())
	again.GetKVStore(m.keys[0]).Set([]byte("k"), []byte(fmt.Sprint(height)))
	require.False(t, bytes.Equal(m.hashes[height-1], again.Commit().Hash))
}
