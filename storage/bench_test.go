package storage

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

const benchKeys = 200_000

// benchKey returns one of benchKeys keys of 20 bytes in random order. Keys with consecutive numbers
// are far apart.
func benchKey(n uint64) []byte {
	key := make([]byte, 20)
	binary.BigEndian.PutUint64(key, (n%benchKeys)*0x9E3779B97F4A7C15)
	return key
}

// benchBlock returns a block that puts 1,000 leaves with values of 100 bytes and changes the
// heights of 10,000 inner nodes.
func benchBlock(height int64, value []byte) Block {
	b := Block{Meta: testMeta(height)}
	for i := range uint64(1000) {
		b.Puts = append(b.Puts, record.Leaf{Key: benchKey(uint64(height)*1000 + i), Value: value})
	}
	ownerOf(&b).heights = func(yield func([]byte, uint8) bool) {
		for i := range uint64(10_000) {
			if !yield(b.Puts[i%1000].Key, uint8(1+i%20)) {
				return
			}
		}
	}
	return b
}

// takenOf returns a block as seen by a flush.
func takenOf(b Block) *waiting {
	w := &waiting{Block: b}
	new(Zone).take(w)
	return w
}

func benchZone(b *testing.B, opts Options) *Zone {
	var keys [][]byte
	for n := range uint64(benchKeys) {
		keys = append(keys, benchKey(n))
	}
	return benchRestored(b, opts, keys, newRNG(1))
}

// benchRestored returns a zone with a settled state of height 1: these keys, which it sorts, with
// random values of 100 bytes.
func benchRestored(b *testing.B, opts Options, keys [][]byte, rng *rand.Rand) *Zone {
	s, err := Open(b.TempDir(), opts)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	r, err := s.BeginRestore(nil)
	require.NoError(b, err)
	slices.SortFunc(keys, slices.Compare)
	for run := range slices.Chunk(keys, 5000) {
		var leaves []record.Leaf
		for i, k := range run {
			leaves = append(leaves, record.Leaf{Key: k, Value: randomBytes(rng, 100), Height: uint8(i%18) + 1})
		}
		require.NoError(b, addLeaves(r, RunID(run[0]), leaves))
	}
	require.NoError(b, r.Commit(testMeta(1)))
	<-s.Settled()
	return s
}

func BenchmarkWrite(b *testing.B) {
	s := benchZone(b, Options{FlushBlocks: 1 << 30, FlushBytes: 1 << 50, FlushInterval: 1 << 60})
	block := benchBlock(1, make([]byte, 100))
	height := int64(1)
	for b.Loop() {
		height++
		block.Meta.Height = height
		if err := s.Write(block); err != nil {
			b.Fatal(err)
		}
		if height%50 == 0 {
			b.StopTimer()
			require.NoError(b, s.Flush())
			b.StartTimer()
		}
	}
}

// BenchmarkFlush flushes 50 blocks of 1,000 operations.
func BenchmarkFlush(b *testing.B) {
	s := benchZone(b, Options{FlushBlocks: 1 << 30, FlushBytes: 1 << 50})
	height := int64(1)
	for b.Loop() {
		b.StopTimer()
		var blocks []Block
		for range 50 {
			height++
			blocks = append(blocks, benchBlock(height, make([]byte, 100)))
		}
		b.StartTimer()
		for _, block := range blocks {
			if err := s.Write(block); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.Flush(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMerge(b *testing.B) {
	var blocks []Block
	for height := range int64(50) {
		blocks = append(blocks, benchBlock(height+1, make([]byte, 100)))
	}
	for b.Loop() {
		m := newMerger()
		for _, block := range blocks {
			m.add(takenOf(block))
		}
		if len(m.sorted()) != 50_000 {
			b.Fatal(len(m.changes))
		}
	}
}

// BenchmarkPage reads pages of 25 leaves, from Pebble's cache or from files.
func BenchmarkPage(b *testing.B) {
	for name, cache := range map[string]int64{"cached": 64 << 20, "from files": 256 << 10} {
		b.Run(name, func(b *testing.B) {
			s := benchZone(b, Options{CacheBytes: cache, Generations: true})
			var keys [][]byte
			size := uint64(0) // size of a record: all have the same
			for l, err := range s.Scan() {
				require.NoError(b, err)
				keys = append(keys, bytes.Clone(l.Key))
				size = uint64(1 + 1 + len(l.Key) + 1 + len(l.Value))
			}
			rng := newRNG(1)
			for b.Loop() {
				at := rng.IntN(len(keys) - 26)
				if err := s.Page(keys[at], keys[at+25], 25*size, func([]byte) bool { return true }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkScan(b *testing.B) {
	s := benchZone(b, Options{})
	for b.Loop() {
		n := 0
		for _, err := range s.Scan() {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n != benchKeys {
			b.Fatal(n)
		}
	}
	b.ReportMetric(float64(b.N)*benchKeys/b.Elapsed().Seconds(), "leaves/s")
	b.ReportAllocs()
}
