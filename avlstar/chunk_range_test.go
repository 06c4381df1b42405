package avlstar

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// requireRanges compares random ranges of all chunks with the chunks.
func requireRanges(t *testing.T, rnd *rand.Rand, v *Version) {
	t.Helper()
	for k, chunk := range encodeChunks(t, v) {
		n := uint64(len(chunk))
		check := func(from, to uint64) {
			got, err := v.ChunkRange(uint32(k), from, to)
			require.NoError(t, err)
			require.Equal(t, chunk[from:to], got, "chunk %d, [%d, %d) of %d", k, from, to, n)
		}
		check(0, n)
		check(0, 0)
		check(n, n)
		check(0, 1)
		check(n-1, n)
		for range 20 {
			from := rnd.Uint64N(n + 1)
			check(from, from+rnd.Uint64N(n-from+1))
			check(from, min(n, from+rnd.Uint64N(30)))
		}
		_, err := v.ChunkRange(uint32(k), 0, n+1)
		require.Error(t, err)
		_, err = v.ChunkRange(uint32(k), 2, 1)
		require.Error(t, err)
		_, err = v.ChunkRange(uint32(k), 1<<63, 1)
		require.Error(t, err)
	}
	_, err := v.ChunkRange(v.NumChunks(), 0, 0)
	require.Error(t, err)
}

func TestChunkRangeIsPartOfTheChunk(t *testing.T) {
	rnd := seeds.Rand(t)
	for _, maxValue := range []int{1, 40, 3000} {
		for _, leaves := range []int{1, 2, 3, 50, 2000} {
			requireRanges(t, rnd, cutTree(t, rnd, 16<<10, leaves, maxValue))
		}
	}
	requireRanges(t, rnd, cutTree(t, rnd, 64<<10, 12_000, 20))
}

// A range reads only the pages on disk in which it lies.
func TestChunkRangeReadsItsPagesOnly(t *testing.T) {
	smallPages(t, 1000)
	rnd := seeds.Rand(t)
	d := &disk{}
	v := mustEmpty(t, 1<<14)
	v.EnablePaging(Paging{Pages: d, Budget: func() int64 { return 0 }})
	v = advance(t, v, randomBlock(rnd, 5_000, 1<<30, 0, false)...)
	d.store(t, v)
	v.Stored()
	v = age(t, v)
	requireRanges(t, rnd, v)
	pages := 0
	for k, e := range v.Manifest().Entries {
		for range 20 {
			before := d.reads.Load()
			from := rnd.Uint64N(e.Root.Bytes)
			_, err := v.ChunkRange(uint32(k), from, from+1)
			require.NoError(t, err)
			reads := int(d.reads.Load() - before)
			require.LessOrEqual(t, reads, 1)
			pages += reads
		}
	}
	require.NotZero(t, pages)
	d.broken.Store(true)
	broken := 0
	for k, e := range v.Manifest().Entries {
		if _, err := v.ChunkRange(uint32(k), 0, e.Root.Bytes); err != nil {
			require.ErrorIs(t, err, errBroken)
			broken++
		}
	}
	require.NotZero(t, broken)
}

// A range takes only the memory of its own bytes, however long the chunk is.
func TestChunkRangeAllocatesItsOwnBytesOnly(t *testing.T) {
	v := cutTree(t, seeds.Rand(t), 1<<20, 20_000, 40)
	e := v.Manifest().Entries[0]
	require.Greater(t, e.Root.Bytes, uint64(200_000))
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		b, err := v.ChunkRange(0, e.Root.Bytes/2, e.Root.Bytes/2+1)
		if err != nil || cap(b) > 64 {
			panic("more than was asked for")
		}
	}), 1.0)
}
