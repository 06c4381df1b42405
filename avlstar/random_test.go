package avlstar

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/starling-kv/starling/internal/seeds"
)

// world is a version and everything that must agree with it: a map of the keys, the naive reference
// tree, and the content of a disk.
type world struct {
	v     *Version
	model map[string][]byte
	ref   *refNode
	disk  map[string]uint8 // key -> height of its inner node, written from NewInner only
}

func newWorld(t require.TestingT, chunkBytes uint64) *world {
	v, err := Empty(chunkBytes)
	require.NoError(t, err)
	return &world{v: v, model: map[string][]byte{}, disk: map[string]uint8{}}
}

// apply makes one block of changes in the version and in everything that must agree with it.
func (w *world) apply(t require.TestingT, changes map[string][]byte) {
	base := w.v
	var block []Change
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		value := changes[key]
		block = append(block, Change{[]byte(key), value})
		if value == nil {
			delete(w.model, key)
			delete(w.disk, key)
			w.ref = refDelete(w.ref, []byte(key))
		} else {
			w.model[key] = value
			w.ref = refPut(w.ref, []byte(key), value)
		}
	}
	slices.Reverse(block) // Apply takes any order
	w.v = mustApply(t, base, block...)
	for key, height := range w.v.NewInner(base) {
		w.disk[string(key)] = height
	}
}

// check compares all results of a version with the reference.
func (w *world) check(t require.TestingT) {
	requireInvariants(t, w.v)
	B := int(w.v.ChunkBytes())
	rootHash, appHash := w.v.Root().Hash, w.v.AppHash()
	require.Equal(t, w.ref.hash(), rootHash[:], "root")
	require.Equal(t, w.ref.stat(), w.v.Root().append(nil), "stat")
	require.Equal(t, w.ref.appHash(B), appHash[:], "app hash")
	require.Equal(t, w.ref.manifest(B), w.v.Manifest().Encode(), "manifest")
	for k, c := range w.ref.chunks(B) {
		got, err := w.v.Chunk(uint32(k))
		require.NoError(t, err)
		require.Equal(t, c.root.records(), got, "chunk %d", k)
	}
	require.Equal(t, uint64(len(w.model)), w.v.Len())
	w.checkDisk(t)
}

// checkDisk rebuilds the version from the data that was written to disk. There, the first leaf may
// have an old height.
func (w *world) checkDisk(t require.TestingT) {
	leaves := func(yield func(Leaf, error) bool) {
		for _, key := range slices.Sorted(maps.Keys(w.model)) {
			if !yield(Leaf{Key: []byte(key), Value: w.model[key], Height: w.disk[key]}, nil) {
				return
			}
		}
	}
	got, err := FromLeaves(w.v.ChunkBytes(), leaves)
	require.NoError(t, err)
	requireSame(t, w.v, got)
}

// checkReads compares the reads around key with the model.
func (w *world) checkReads(t require.TestingT, key, end []byte) {
	keys := slices.Sorted(maps.Keys(w.model))
	value, ok := mustGet(t, w.v, key)
	want, wantOK := w.model[string(key)]
	require.Equal(t, wantOK, ok)
	require.Equal(t, want, value)
	require.Equal(t, wantOK, mustHas(t, w.v, key))

	i := sort.SearchStrings(keys, string(key)+"\x00") // first key greater than key
	k, value, ok := mustFloor(t, w.v, key)
	require.Equal(t, i > 0, ok)
	if ok {
		require.Equal(t, keys[i-1], string(k))
		require.Equal(t, w.model[keys[i-1]], value)
	}
	for _, r := range [][2][]byte{{key, end}, {nil, end}, {key, nil}, {nil, nil}, {key, key}, {end, key}} {
		var want []string
		var sum uint64
		for _, k := range keys {
			if (r[0] == nil || k >= string(r[0])) && (r[1] == nil || k < string(r[1])) {
				want = append(want, k)
				sum += RecordBytes(len(k), len(w.model[k]))
			}
		}
		require.Equal(t, sum, mustRangeBytes(t, w.v, r[0], r[1]))
		var got []string
		for k, value := range mustAscend(t, w.v, r[0], r[1]) {
			got = append(got, string(k))
			require.Equal(t, w.model[string(k)], value)
		}
		require.Equal(t, want, got)
	}
}

// TestRapid compares small worlds with the reference after every block; rapid shrinks failing
// cases.
func TestRapid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.Uint64Range(1, 120).Draw(t, "B"))
		key := rapid.StringMatching("[abc]{1,3}")
		value := rapid.SliceOfN(rapid.Byte(), 1, 20)
		change := rapid.Custom(func(t *rapid.T) []byte {
			if rapid.Bool().Draw(t, "delete") {
				return nil
			}
			return value.Draw(t, "value")
		})
		for range rapid.IntRange(1, 8).Draw(t, "blocks") {
			w.apply(t, rapid.MapOfN(key, change, 0, 12).Draw(t, "block"))
			w.check(t)
			w.checkReads(t, []byte(key.Draw(t, "key")), []byte(key.Draw(t, "end")))
		}
		requireRoundTrip(t, w.v)
	})
}

// TestRandomBlocks grows and shrinks larger trees with blocks of very different sizes and mixtures.
func TestRandomBlocks(t *testing.T) {
	rnd := seeds.Rand(t)
	for _, chunkBytes := range []uint64{1, 40, 200, 1000, 1 << 20} {
		t.Run(fmt.Sprint(chunkBytes), func(t *testing.T) {
			w := newWorld(t, chunkBytes)
			deletes := 0.2
			for range 60 {
				if rnd.IntN(10) == 0 {
					deletes = []float64{0.05, 0.2, 0.5, 0.9, 1}[rnd.IntN(5)]
				}
				block := map[string][]byte{}
				for range rnd.IntN(1 << rnd.IntN(7)) {
					key := fmt.Sprintf("%0*d", 1+rnd.IntN(3), rnd.IntN(200))
					if rnd.Float64() < deletes {
						block[key] = nil
					} else {
						block[key] = bytes.Repeat([]byte{byte(rnd.Uint32())}, 1+rnd.IntN(1<<rnd.IntN(9)))
					}
				}
				w.apply(t, block)
				w.check(t)
				w.checkReads(t, fmt.Append(nil, rnd.IntN(200)), fmt.Append(nil, rnd.IntN(200)))
			}
			requireRoundTrip(t, w.v)
		})
	}
}

// TestNewInnerFurtherBack checks that with an older base, or none, the result still includes all
// changed nodes.
func TestNewInnerFurtherBack(t *testing.T) {
	rnd := seeds.Rand(t)
	w := newWorld(t, 100)
	bases := []*Version{nil, w.v}
	for range 30 {
		block := map[string][]byte{}
		for range 20 {
			block[fmt.Sprint(rnd.IntN(300))] = []byte{1}
			block[fmt.Sprint(rnd.IntN(300))] = nil
		}
		w.apply(t, block)
		for _, base := range bases {
			heights := map[string]uint8{}
			if base != nil {
				for l := range mustLeaves(t, base) {
					heights[string(l.Key)] = l.Height
				}
			}
			for key, height := range w.v.NewInner(base) {
				heights[string(key)] = height
			}
			first := true
			for l := range mustLeaves(t, w.v) {
				if !first {
					require.Equal(t, l.Height, heights[string(l.Key)])
				}
				first = false
			}
		}
		bases = append(bases, w.v)
	}
}

func TestOldVersionsStay(t *testing.T) {
	rnd := seeds.Rand(t)
	w := newWorld(t, 100)
	var versions []*Version
	var hashes []Hash
	var leaves [][]Leaf
	for range 40 {
		block := map[string][]byte{}
		for range 20 {
			block[fmt.Sprint(rnd.IntN(100))] = fmt.Append(nil, rnd.Uint64())
			block[fmt.Sprint(rnd.IntN(100))] = nil
		}
		w.apply(t, block)
		versions, hashes = append(versions, w.v), append(hashes, w.v.AppHash())
		leaves = append(leaves, slices.Collect(mustLeaves(t, w.v)))
		// A version that followed it and was released has no effect.
		mustApply(t, w.v, Change{[]byte("5"), []byte("fork")}, Change{Key: []byte("50")}).Release()
	}
	for i, v := range versions {
		requireInvariants(t, v)
		require.Equal(t, hashes[i], v.AppHash())
		require.Equal(t, leaves[i], slices.Collect(mustLeaves(t, v)))
	}
}

// TestConcurrentReaders reads old versions while new ones are made, under the race detector.
func TestConcurrentReaders(t *testing.T) {
	v, err := Empty(300)
	require.NoError(t, err)
	versions := make(chan *Version)
	done := make(chan struct{})
	const readers = 4
	for range readers {
		go func() {
			defer func() { done <- struct{}{} }()
			for v := range versions {
				var sum uint64
				for l := range mustLeaves(t, v) {
					sum += RecordBytes(len(l.Key), len(l.Value))
					mustHas(t, v, l.Key)
				}
				if sum != v.Root().Bytes || sum != mustRangeBytes(t, v, nil, nil) {
					t.Errorf("%d bytes read, the root has %d", sum, v.Root().Bytes)
				}
				if _, err := VerifyManifest(v.Manifest().Encode(), v.AppHash()); err != nil {
					t.Error(err)
				}
				for k := range v.NumChunks() {
					if _, err := v.Chunk(k); err != nil {
						t.Error(err)
					}
				}
			}
		}()
	}
	for i := range 60 {
		var block []Change
		for j := range 50 {
			block = append(block, Change{fmt.Appendf(nil, "%d", (i*37+j*13)%400), fmt.Append(nil, i)})
		}
		v = mustApply(t, v, slices.CompactFunc(block, func(a, b Change) bool { return bytes.Equal(a.Key, b.Key) })...)
		for range 2 { // two readers of the same version, so that they race for its manifest
			versions <- v
		}
	}
	close(versions)
	for range readers {
		<-done
	}
}

// collect2 returns the first values of a Seq2, as slices.Collect does for a Seq.
func collect2[K, V any](seq iter.Seq2[K, V]) (keys []K) {
	for k := range seq {
		keys = append(keys, k)
	}
	return keys
}
