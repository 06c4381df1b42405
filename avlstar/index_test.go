package avlstar

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// testTags is the mask of tags with which all trees of tests get an index; 0: they get no index.
var testTags uint32

// fewTags makes most keys share their pairs with others, and many also share their tags.
const fewTags = 1<<31 | 1<<9 | 7

// indexAll gives all trees an index, until the test ends.
func indexAll(t *testing.T, tags uint32) {
	usual := testTags
	t.Cleanup(func() { testTags = usual })
	testTags = tags
}

func withIndex(v *Version) *Version {
	if testTags != 0 {
		v.EnableIndex()
		v.tree.mu.index.tags = testTags
	}
	return v
}

// requireIndex checks the index of a tree whose latest version is v. Each entry must name a leaf of
// v, occur once, and be where readers look for it.
func requireIndex(t require.TestingT, v *Version) {
	x := v.tree.mu.index
	if x == nil || v.tree.mu.alive[len(v.tree.mu.alive)-1].version != v {
		return
	}
	table, seen := x.table.Load(), map[ref]bool{}
	for p := range table.pairs {
		for side := range table.pair(p) {
			c := &table.pair(p)[side]
			require.Zero(t, c[0].Load()%2, "a cell is locked")
			for i := range cellSlots {
				n := ref(c[cellRefs+i].Load())
				if n == 0 {
					continue
				}
				require.False(t, seen[n], "a leaf has two entries")
				seen[n] = true
				key := v.key(n)
				require.Equal(t, n, v.findEqual(key), "a leaf that is not in v")
				tag := x.tag(key)
				require.Equal(t, tag, c[cellTags+i].Load())
				require.Equal(t, v.recordEpoch(n), c[cellBorn+i].Load())
				require.Contains(t, table.cells(tag), c)
				require.True(t, table.at(tag) == p || table.at(second(tag)) == p)
			}
		}
	}
	require.Len(t, seen, int(x.used.Load()))
}

// requireFound checks that reads, alone and together, find the keys that iteration yields, and
// nothing else.
func requireFound(t require.TestingT, v *Version) {
	if v.index == nil {
		return
	}
	var keys, values [][]byte
	for l := range mustLeaves(t, v) {
		keys, values = append(keys, bytes.Clone(l.Key)), append(values, bytes.Clone(l.Value))
	}
	for range 2 { // keys that are found by walking are entered
		for i, key := range keys {
			value, ok := mustGet(t, v, key)
			require.True(t, ok)
			require.Equal(t, values[i], value)
			require.False(t, mustHas(t, v, append(key, "absent"...)))
		}
		found := make([][]byte, len(keys))
		require.NoError(t, v.ViewMany(found, keys))
		for i := range keys {
			require.True(t, bytes.Equal(values[i], found[i]))
		}
	}
	requireIndex(t, v)
}

// TestStoriesWithIndex repeats other tests, which keep versions for long, give some up, and undo
// blocks, with an index. One of the indexes has no room for most keys.
func TestStoriesWithIndex(t *testing.T) {
	for _, tags := range []uint32{math.MaxUint32, fewTags} {
		for name, story := range map[string]func(*testing.T){
			"lifetimes": TestLifetimes, "rewind": TestRewind, "not latest": TestNotLatest, "readers": TestManyReaders,
			"undo": TestSlabGivenBackInUndo, "paged": TestPagedStory, "parallel": TestParallelIsInOrder, "aimed": TestAimedBlock,
		} {
			if underRace && tags == fewTags && name != "readers" && name != "parallel" {
				continue // the others differ only in what one goroutine finds
			}
			t.Run(fmt.Sprintf("%s, tags %x", name, tags), func(t *testing.T) {
				indexAll(t, tags)
				story(t)
			})
		}
	}
}

// random20 returns n puts of random keys of 20 bytes.
func random20(rnd *rand.Rand, n int) []Change {
	block := make([]Change, n)
	for i := range block {
		key := make([]byte, 20)
		binary.BigEndian.PutUint64(key, rnd.Uint64())
		binary.BigEndian.PutUint32(key[16:], uint32(i))
		block[i] = Change{key, key[:4]}
	}
	return block
}

// found returns the share of keys that the index finds without a walk.
func found(v *Version, block []Change) float64 {
	n := 0
	for _, c := range block {
		if v.index.find(v, c.Key, v.index.tag(c.Key)) != 0 {
			n++
		}
	}
	return float64(n) / float64(len(block))
}

// TestIndexGrows: the index has nearly all keys of a tree that was made by blocks, at every size,
// and takes 22 bytes for each.
func TestIndexGrows(t *testing.T) {
	rnd := seeds.Rand(t)
	v, all := mustEmpty(t, DefaultChunkBytes), []Change(nil)
	v.EnableIndex()
	for range 60 {
		block := random20(rnd, 2000)
		all = append(all, block...)
		v = advance(t, v, block...)
		require.Greater(t, found(v, all), 0.96)
		require.LessOrEqual(t, 128*int(v.index.table.Load().pairs), max(minPairs*128, 24*len(all)))
	}
	requireIndex(t, v)
	for i := range all {
		all[i].Value = nil
	}
	v = advance(t, v, all[1:]...)
	require.Equal(t, int64(1), v.index.used.Load())
	v.Release()
}

// TestIndexOfLoadedTree: reads enter the leaves that they find by walking.
func TestIndexOfLoadedTree(t *testing.T) {
	rnd := seeds.Rand(t)
	all := random20(rnd, 20_000)
	made := advance(t, mustEmpty(t, DefaultChunkBytes), all...)
	v, err := FromLeaves(DefaultChunkBytes, made.Leaves())
	require.NoError(t, err)
	v.EnableIndex()
	v.EnableIndex() // changes nothing
	old := v
	v = mustApply(t, v, Change{[]byte("one"), []byte("more")})
	require.Zero(t, found(v, all))
	require.Nil(t, old.index, "it may be in use by others")
	requireFound(t, v)
	require.Greater(t, found(v, all), 0.95)
	// The hash is seeded at random: these have an entry, and there is room for the new key.
	all = slices.DeleteFunc(all, func(c Change) bool { return found(v, []Change{c}) == 0 })
	two := []byte("two")
	room := func(key []byte) bool {
		cells := v.index.table.Load().cells(v.index.tag(key))
		return slices.ContainsFunc(cells[:], func(c *cell) bool { return c.slot(0) >= 0 })
	}
	for i := 0; !room(two); i++ {
		two = fmt.Appendf(nil, "two %d", i)
	}
	// Readers of an older version do not enter their leaves.
	next := mustApply(t, v, Change{Key: all[0].Key})
	require.Zero(t, found(next, all[:1]))
	requireFound(t, v)
	require.Zero(t, found(next, all[:1]))
	require.False(t, mustHas(t, next, all[0].Key))
	require.True(t, mustHas(t, v, all[0].Key))
	next.Release()
	// When a version is undone, its entries are removed, and leaves that died in it are found
	// again.
	next = mustApply(t, v, Change{all[1].Key, []byte("other")}, Change{two, []byte("new")})
	require.Equal(t, 1.0, found(next, []Change{all[1], {Key: two}}))
	next.Release()
	next = mustApply(t, v, Change{[]byte("three"), []byte("new")})
	require.Equal(t, 1.0, found(next, all[:2]))
	require.Zero(t, found(next, []Change{{Key: two}}))
	requireFound(t, next)
}

// TestIndexIsFull: keys for which there is no room are found by walking.
func TestIndexIsFull(t *testing.T) {
	rnd := seeds.Rand(t)
	indexAll(t, 1<<31) // two tags
	v, content := mustEmpty(t, DefaultChunkBytes), model{}
	for range 30 {
		block := randomBlock(rnd, 1+rnd.IntN(300), 500, 0.4, false)
		content.apply(block)
		v = advance(t, v, block...)
		require.LessOrEqual(t, v.index.used.Load(), int64(20))
		content.requireContent(t, v)
		requireFound(t, v)
	}
	require.Positive(t, v.index.used.Load())
}

// TestIndexWithFailingDisk: a block that fails does not change the index.
func TestIndexWithFailingDisk(t *testing.T) {
	rnd := seeds.Rand(t)
	smallPages(t, 300)
	indexAll(t, math.MaxUint32)
	paging := pagingStory{disk: &disk{}, rnd: rnd}
	v, content := mustEmpty(t, 3000), model{}
	paging.enable(v)
	failed := 0
	for range scaled(200) {
		block := randomBlock(rnd, 1+rnd.IntN(60), 400, 0.3, false)
		paging.disk.broken.Store(rnd.IntN(2) == 0)
		next, err := v.Apply(block)
		paging.disk.broken.Store(false)
		if err != nil {
			failed++
			content.requireContent(t, v)
			continue
		}
		content.apply(block)
		v.Release()
		v = next
		requireFound(t, v)
		paging.after(t, v)
	}
	require.Positive(t, failed)
}

// TestIndexOfMany reads versions of all ages in several goroutines, while a writer makes others,
// deletes and puts the same few keys again, and gives some versions up.
func TestIndexOfMany(t *testing.T) {
	for _, tags := range []uint32{math.MaxUint32, fewTags} {
		t.Run(fmt.Sprintf("tags %x", tags), func(t *testing.T) {
			indexAll(t, tags)
			rnd := seeds.Rand(t)
			// The writer retains a version for each task, and a reader releases what it has read.
			type task struct {
				v       *Version
				content model
				seed    uint64
			}
			tasks := make(chan task, 64)
			var readers sync.WaitGroup
			for range 4 {
				readers.Go(func() {
					for s := range tasks {
						rnd := rand.New(rand.NewPCG(s.seed, 3))
						keys := make([][]byte, 64)
						for i := range keys {
							keys[i] = randomKey(rnd, 60)
						}
						values := make([][]byte, len(keys))
						if err := s.v.ViewMany(values, keys); err != nil {
							t.Error(err)
						}
						for i, key := range keys {
							value, ok, err := s.v.View(key)
							want, present := s.content[string(key)]
							if err != nil || ok != present || !bytes.Equal(value, want) || !bytes.Equal(values[i], want) {
								t.Errorf("key %x of version %d: %x and %x, want %x", key, s.v.epoch, value, values[i], want)
							}
						}
						s.v.Release()
					}
				})
			}
			v, content := mustEmpty(t, 2000), model{}
			var held []task
			for range scaled(600) {
				p := &pins{rnd: rnd}
				p.fork(t, v)
				block := randomBlock(rnd, 1+rnd.IntN(100), 60, 0.4, false)
				content.apply(block)
				v = advance(t, v, block...)
				v.Retain()
				held = append(held, task{v: v, content: maps.Clone(content)})
				for i := range held {
					held[i].v.Retain()
					tasks <- task{held[i].v, held[i].content, rnd.Uint64()}
				}
				if len(held) > 6 {
					i := rnd.IntN(len(held))
					held[i].v.Release()
					held = append(held[:i], held[i+1:]...)
				}
			}
			close(tasks)
			readers.Wait()
			for _, h := range held {
				h.v.Release()
			}
			requireFound(t, v)
		})
	}
}

// BenchmarkIndex compares reads and blocks of 1,000 changes of a tree of a million keys with and
// without an index.
func BenchmarkIndex(b *testing.B) {
	for _, indexed := range []bool{false, true} {
		v := mustEmpty(b, DefaultChunkBytes)
		if indexed {
			v.EnableIndex()
		}
		for i := range 100 {
			load := make([]Change, 10_000)
			for j := range load {
				load[j] = Change{benchKey(uint64(i*len(load) + j)), benchValue(0)}
			}
			v = advance(b, v, load...)
		}
		keys := func(from uint64) [][]byte {
			rnd := rand.New(rand.NewPCG(1, from))
			keys := make([][]byte, 1<<16)
			for i := range keys {
				keys[i] = benchKey(from + rnd.Uint64N(1_000_000))
			}
			return keys
		}
		present, absent, values := keys(0), keys(1_000_000), make([][]byte, 256)
		name := map[bool]string{false: " by walking", true: " by the index"}[indexed]
		for kind, keys := range map[string][][]byte{"get": present, "absent": absent} {
			b.Run(kind+name, func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					_, _, _ = v.View(keys[i%len(keys)])
				}
			})
		}
		b.Run("many"+name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				at := i % (len(present) / len(values)) * len(values)
				_ = v.ViewMany(values, present[at:at+len(values)])
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(values)), "ns/key")
		})
		rnd, x := rand.New(rand.NewPCG(1, 2)), uint64(0)
		b.Run("apply"+name, func(b *testing.B) {
			for b.Loop() {
				changes := make([]Change, 1000)
				for i := range changes {
					x++
					changes[i] = Change{benchKey(rnd.Uint64N(1_100_000)), benchValue(x)}
				}
				v = advance(b, v, uniqueKeys(changes)...)
			}
		})
		v.Release()
	}
}
