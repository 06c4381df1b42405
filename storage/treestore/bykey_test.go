package treestore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
)

// keyStory is a chain of random blocks over a zone, with the contents, as a map, of each state in
// use.
type keyStory struct {
	rng    *rand.Rand
	fs     *vfs.MemFS
	cache  int64
	zone   *storage.Zone
	store  *Store
	height int64
	states map[int64]keyState // by height, including the current one
	keys   int
	reads  int64 // number of reads by key in closed zones
}

type keyState struct {
	v     *avlstar.Version
	model map[string]string
}

func (s *keyStory) open(t *testing.T) {
	zone, err := storage.Open("zone", storage.Options{
		FS: s.fs, FlushBlocks: 1 << 20, MaxLagBlocks: 1 << 20, FlushInterval: time.Hour, Generations: true, MemTableBytes: 256 << 10, CacheBytes: 1,
	})
	require.NoError(t, err)
	s.zone, s.store = zone, New(Options{Zone: zone, ChainID: testChain, Cache: sgc.New(s.cache)})
}

func (s *keyStory) close(t *testing.T) {
	s.reads += s.zone.Metrics().RecordReads
	if s.rng.IntN(2) == 0 { // versions may outlive the zone
		require.NoError(t, s.zone.Close())
	}
	for _, st := range s.states {
		st.v.Release()
	}
	require.NoError(t, s.zone.Close())
}

// begin commits the first state, with most of the keys.
func (s *keyStory) begin(t *testing.T, chunkBytes uint64) {
	empty, err := avlstar.Empty(chunkBytes)
	require.NoError(t, err)
	model := map[string]string{}
	var changes []avlstar.Change
	for i := range s.keys {
		if s.rng.IntN(3) > 0 {
			key := fmt.Sprintf("key-%05d", i)
			model[key] = strings.Repeat("v", 1+s.rng.IntN(60))
			changes = append(changes, avlstar.Change{Key: []byte(key), Value: []byte(model[key])})
		}
	}
	v, err := empty.Apply(changes)
	require.NoError(t, err)
	empty.Release()
	s.height, s.states = 1, map[int64]keyState{1: {v, model}}
	require.NoError(t, s.store.Commit(1, v, nil, changes))
}

func (s *keyStory) key() []byte { return fmt.Appendf(nil, "key-%05d", s.rng.IntN(s.keys)) }

// block returns random changes of a state, often deletions of neighbors.
func (s *keyStory) block(m map[string]string) (changes []avlstar.Change, next map[string]string) {
	next = maps.Clone(m)
	n := s.rng.IntN(1 + []int{2, 12, 60}[s.rng.IntN(3)])
	for range n {
		at := s.rng.IntN(s.keys)
		for i := range 1 + s.rng.IntN(3) {
			key := fmt.Sprintf("key-%05d", (at+i)%s.keys)
			if _, there := m[key]; there && s.rng.IntN(2) == 0 {
				delete(next, key)
			} else if s.rng.IntN(2) == 0 {
				next[key] = fmt.Sprintf("%d of %d, %s", s.rng.Int(), s.height, strings.Repeat("x", s.rng.IntN(40)))
			}
		}
	}
	for key := range m {
		if _, there := next[key]; !there {
			changes = append(changes, avlstar.Change{Key: []byte(key)})
		}
	}
	for key, value := range next {
		if m[key] != value {
			changes = append(changes, avlstar.Change{Key: []byte(key), Value: []byte(value)})
		}
	}
	slices.SortFunc(changes, func(a, b avlstar.Change) int { return bytes.Compare(a.Key, b.Key) })
	return changes, next
}

// commit makes the next block.
func (s *keyStory) commit(t *testing.T) {
	last := s.states[s.height]
	if s.rng.IntN(6) == 0 { // a block that is discarded
		changes, _ := s.block(last.model)
		v, err := last.v.Apply(changes)
		require.NoError(t, err)
		v.Release()
	}
	changes, model := s.block(last.model)
	v, err := last.v.Apply(changes)
	require.NoError(t, err)
	s.height++
	require.NoError(t, s.store.Commit(s.height, v, last.v, changes))
	s.states[s.height] = keyState{v, model}
}

// check reads keys of every state in use, by key and from pages.
func (s *keyStory) check(t *testing.T, reads int) {
	for height, st := range s.states {
		for range reads {
			requireKey(t, height, st, s.key())
		}
	}
}

// requireKey may be called by any goroutine.
func requireKey(t *testing.T, height int64, st keyState, key []byte) {
	want, there := st.model[string(key)]
	value, ok, err := st.v.ByKey().Get(key)
	if err != nil || ok != there || string(value) != want {
		t.Errorf("%s at height %d by its key: %q, %t, %v; want %q, %t", key, height, value, ok, err, want, there)
	}
	value, ok, err = st.v.Get(key)
	if err != nil || ok != there || string(value) != want {
		t.Errorf("%s at height %d from its page: %q, %t, %v; want %q, %t", key, height, value, ok, err, want, there)
	}
}

// drop releases random states up to a random height, like a node.
func (s *keyStory) drop() {
	oldest := s.height - int64(s.rng.IntN(25))
	var pinned []int64
	for height, st := range s.states {
		switch {
		case height >= oldest:
		case s.rng.IntN(4) == 0:
			pinned = append(pinned, height)
		default:
			st.v.Release()
			delete(s.states, height)
		}
	}
	s.zone.Trim(oldest, pinned)
}

// restart loads the durable state, after a shutdown or a power loss.
func (s *keyStory) restart(t *testing.T, models map[int64]map[string]string) {
	crashed := s.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: s.rng})
	s.close(t)
	if s.rng.IntN(2) == 0 {
		s.fs = crashed
	}
	s.open(t)
	height, v, err := s.store.Load()
	require.NoError(t, err)
	s.height, s.states = height, map[int64]keyState{height: {v, models[height]}}
}

// TestDeletions: a key of the state that a later block deleted does not belong to later versions,
// whatever followed.
func TestDeletions(t *testing.T) {
	d := &deletions{after: 3}
	key, other := []byte("key"), []byte("other")
	d.add(5, [][]byte{key})
	d.add(9, [][]byte{key, other}) // it was put again in between
	for height := int64(3); height <= 10; height++ {
		require.Equal(t, height >= 5, d.upTo(height, key), "height %d", height)
		require.Equal(t, height >= 9, d.upTo(height, other), "height %d", height)
	}
}

// TestNoRecordsOfAnUnknownPast: a store that has seen neither the state nor the blocks since cannot
// know what they deleted, so it gives no records.
func TestNoRecordsOfAnUnknownPast(t *testing.T) {
	s := &keyStory{rng: seeds.Rand(t), fs: vfs.NewCrashableMem(), keys: 400, cache: 1}
	s.open(t)
	s.begin(t, 300)
	require.NoError(t, s.zone.Flush())
	s.restart(t, map[int64]map[string]string{1: s.states[1].model})
	s.store = New(Options{Zone: s.zone, ChainID: testChain, Cache: sgc.New(1)})
	for s.states[s.height].v == s.states[1].v { // a block may change nothing
		s.commit(t)
	}
	s.check(t, 50)
	st := s.states[s.height]
	before := s.zone.Metrics().RecordReads
	for range 100 {
		requireKey(t, s.height, st, s.key())
	}
	require.Equal(t, before, s.zone.Metrics().RecordReads)
	s.close(t)
}

// TestReadsByKeyEqualTheModel: reads by key equal the model and reads of verified pages at every
// height in use, with flushes, evicted pages, discarded blocks, trimmed states and restarts.
func TestReadsByKeyEqualTheModel(t *testing.T) {
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	rng := seeds.Rand(t)
	total := int64(0)
	for round := range rounds {
		s := &keyStory{rng: rng, fs: vfs.NewCrashableMem(), keys: 50 + rng.IntN(1500)}
		s.cache = []int64{1, 1, 100_000}[rng.IntN(3)]
		s.open(t)
		s.begin(t, uint64([]int{150, 400, 2000}[rng.IntN(3)]))
		models := map[int64]map[string]string{1: s.states[1].model}
		require.NoError(t, s.zone.Flush())
		for i := range 120 {
			s.commit(t)
			models[s.height] = s.states[s.height].model
			if rng.IntN(4) == 0 {
				require.NoError(t, s.zone.Flush())
			}
			if rng.IntN(3) == 0 {
				s.drop()
			}
			if rng.IntN(50) == 0 {
				s.restart(t, models)
			}
			if i%8 == 7 {
				s.check(t, 20)
			}
			if t.Failed() {
				t.Fatalf("round %d, block %d", round, i)
			}
		}
		s.close(t)
		total += s.reads
	}
	require.Positive(t, total, "no record was read by key")
}

// TestReadsByKeyBesideBlocks does the same with readers concurrent to blocks, for the race
// detector.
func TestReadsByKeyBesideBlocks(t *testing.T) {
	rng := seeds.Rand(t)
	s := &keyStory{rng: rng, fs: vfs.NewCrashableMem(), keys: 400, cache: 20_000}
	s.open(t)
	s.begin(t, 300)
	var readers sync.WaitGroup
	for range 60 {
		s.commit(t)
		for height, st := range s.states {
			st.v.Retain()
			var keys [][]byte
			for range 10 {
				keys = append(keys, s.key())
			}
			readers.Go(func() {
				for _, key := range keys {
					requireKey(t, height, st, key)
				}
				st.v.Release()
			})
		}
		if rng.IntN(3) == 0 {
			require.NoError(t, s.zone.Flush())
		}
		if rng.IntN(3) == 0 {
			readers.Wait()
			s.drop() // blocks while a reader uses the states
		}
	}
	readers.Wait()
	s.close(t)
}

// TestReadsByKeyOfADamagedDisk: on a disk that damages data, a read by key is right or an error:
// never another value, and never absence.
func TestReadsByKeyOfADamagedDisk(t *testing.T) {
	rng := seeds.Rand(t)
	s := &keyStory{rng: rng, fs: vfs.NewCrashableMem(), keys: 3000, cache: 1}
	s.open(t)
	v := tree(t, s.keys)
	model := map[string]string{}
	for _, c := range changesOf(t, v) {
		model[string(c.Key)] = string(c.Value)
	}
	v.Retain()
	s.height, s.states = 1, map[int64]keyState{1: {v, model}}
	require.NoError(t, s.store.Commit(1, v, nil, changesOf(t, v)))
	for range 5 {
		require.NoError(t, s.zone.Flush())
		s.commit(t)
	}
	require.NoError(t, s.zone.Flush())
	// Otherwise a later compaction might remove tables.
	require.NoError(t, s.zone.Compact(t.Context(), nil))
	s.restart(t, map[int64]map[string]string{s.height: s.states[s.height].model})
	told := 0
	s.store.pages.Failed = func(error) { told++ }
	names, err := s.fs.List("zone")
	require.NoError(t, err)
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".sst") })
	require.NotEmpty(t, names)
	st, failed, rounds := s.states[s.height], 0, 300
	if testing.Short() {
		rounds = 100
	}
	for range rounds {
		restore := damage(t, s.fs, "zone/"+names[rng.IntN(len(names))], rng)
		for range 20 {
			key := s.key()
			want, there := st.model[string(key)]
			value, ok, err := st.v.ByKey().Get(key)
			if err != nil {
				failed++
				require.ErrorIs(t, err, storage.ErrCorrupt)
				var at *avlstar.PageError
				require.ErrorAs(t, err, &at)
				continue
			}
			require.Equal(t, there, ok, "%s", key)
			require.Equal(t, want, string(value))
		}
		restore()
	}
	require.Positive(t, failed)
	require.Equal(t, failed, told, "each is reported, so that the node stops")
	s.close(t)
}

// damage flips bits of a file, and returns a function that flips them back.
func damage(t *testing.T, fs vfs.FS, path string, rng *rand.Rand) (restore func()) {
	file, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if errors.Is(err, os.ErrNotExist) {
		return func() {} // a compaction has removed it
	}
	require.NoError(t, err)
	info, err := file.Stat()
	require.NoError(t, err)
	if info.Size() == 0 { // a crash has left it; the database will remove it
		return func() { require.NoError(t, file.Close()) }
	}
	at, bits := rng.Int64N(info.Size()), byte(1+rng.IntN(255))
	flip := func() {
		b := make([]byte, 1)
		_, err := file.ReadAt(b, at)
		require.NoError(t, err)
		b[0] ^= bits
		_, err = file.WriteAt(b, at)
		require.NoError(t, err)
	}
	flip()
	return func() {
		flip()
		require.NoError(t, file.Close())
	}
}
