package archive

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/internal/spectest"
)

func TestWhatIsWrittenIsRead(t *testing.T) {
	random := seeds.Rand(t)
	for _, keys := range []int{0, 1, 2, 50, 3000} {
		for _, chunkBytes := range []uint64{1, 300, 4096, avlstar.MaxChunkBytes} {
			src := state(t, random, keys, chunkBytes)
			file := written(t, src, 1+random.IntN(4))
			h, chunks, err := readAll(file, src.v.AppHash())
			require.NoError(t, err, "%d keys, chunks of %d bytes", keys, chunkBytes)
			require.Equal(t, testChain, h.ChainID)
			require.EqualValues(t, testHeight, h.Height)
			require.Equal(t, src.Commitment(), h.Commitment)
			require.Equal(t, src.v.AppHash(), h.AppHash())
			require.Len(t, chunks, int(src.v.NumChunks()))
			for k, got := range chunks {
				want, err := src.v.Chunk(uint32(k))
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
		}
	}
}

// Compares the encoding with one made by hand, for a compressible and an incompressible chunk.
func TestFormat(t *testing.T) {
	v, err := avlstar.Empty(1)
	require.NoError(t, err)
	v, err = v.Apply([]avlstar.Change{{Key: []byte("a"), Value: bytes.Repeat([]byte("x"), 200)}, {Key: []byte("b"), Value: []byte("y")}})
	require.NoError(t, err)
	defer v.Release()
	file := written(t, source{v: v}, 2)
	u16, u32, u64 := binary.BigEndian.Uint16, binary.BigEndian.Uint32, binary.BigEndian.Uint64
	take := func(n int) (b []byte) { b, file = file[:n], file[n:]; return b }
	whole := len(file)
	require.Equal(t, "\x89STAR\r\n\x1a", string(take(8)))
	require.EqualValues(t, 1, u16(take(2)))
	require.EqualValues(t, 8+53+8+len(testChain), u16(take(2)))
	require.EqualValues(t, testHeight, u64(take(8)))
	require.Equal(t, v.Commitment().Encode(), take(53))
	manifest := v.Manifest().Encode()
	require.EqualValues(t, len(manifest), u64(take(8)))
	require.Equal(t, testChain, string(take(len(testChain))))
	take(4)
	require.Equal(t, manifest, take(len(manifest)))
	take(4)

	require.EqualValues(t, 1, take(1)[0])
	packed := take(int(u32(take(4))))
	take(4)
	d, err := zstd.NewReader(nil)
	require.NoError(t, err)
	got, err := d.DecodeAll(packed, nil)
	require.NoError(t, err)
	want, err := v.Chunk(0)
	require.NoError(t, err)
	require.Equal(t, want, got)

	require.EqualValues(t, 0, take(1)[0])
	want, err = v.Chunk(1)
	require.NoError(t, err)
	require.Equal(t, want, take(int(u32(take(4)))))
	take(4)

	require.Equal(t, "END\x1a", string(take(4)))
	require.EqualValues(t, 2, u32(take(4)))
	require.Equal(t, v.Root().Bytes, u64(take(8)))
	require.EqualValues(t, whole, u64(take(8)))
	require.Len(t, file, 4)
}

// TestSpecExample makes the file in docs/spec/archive.md.
func TestSpecExample(t *testing.T) {
	v, err := avlstar.Empty(16)
	require.NoError(t, err)
	v, err = v.Apply([]avlstar.Change{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("b"), Value: []byte("2")}})
	require.NoError(t, err)
	defer v.Release()
	spectest.Require(t, "archive.md", written(t, source{v: v}, 1))
}

func TestTheSameStateGivesTheSameBytes(t *testing.T) {
	src := state(t, seeds.Rand(t), 2000, 2048)
	want := written(t, src, 1)
	for workers := 2; workers < 6; workers++ {
		require.True(t, bytes.Equal(want, written(t, src, workers)), "%d workers", workers)
	}
}

func TestProgressOfWriting(t *testing.T) {
	src := state(t, seeds.Rand(t), 1000, 2048)
	var last uint64
	stats, err := Write(t.Context(), io.Discard, src, Options{ChainID: testChain, Progress: func(done, total uint64) {
		require.Greater(t, done, last)
		require.Equal(t, src.v.Root().Bytes, total)
		last = done
	}})
	require.NoError(t, err)
	require.Equal(t, src.v.Root().Bytes, last)
	require.Equal(t, stats.Bytes, last)
	require.Equal(t, src.v.NumChunks(), stats.Chunks)
}

// Every flipped bit is detected and located.
func TestEveryBitCounts(t *testing.T) {
	src := state(t, seeds.Rand(t), 60, 900)
	file, hash := written(t, src, 1), src.v.AppHash()
	r, err := Open(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	c, err := r.Verify(hash)
	require.NoError(t, err)
	type part struct {
		name string
		end  int64
	}
	parts := []part{{"header", r.body}, {"manifest", int64(r.frames())}}
	for chunk, err := range c.Chunks() {
		require.NoError(t, err)
		parts = append(parts, part{chunkName(chunk.Index, src.v.NumChunks()), chunk.Offset + int64(frameHead+len(chunk.payload)+crcBytes)})
	}
	require.Greater(t, len(parts), 4)
	parts = append(parts, part{"trailer", int64(len(file))})
	at := int64(0)
	for _, p := range parts {
		begin := at
		for ; at < p.end; at++ {
			damaged := bytes.Clone(file)
			damaged[at] ^= 1 << (at % 8)
			_, _, err := readAll(damaged, hash)
			switch {
			case at < int64(len(magic)):
				require.ErrorIs(t, err, ErrNotArchive)
				continue
			// the header's length is wrong, and the file too short for it
			case at < int64(preludeBytes) && errors.Is(err, ErrTruncated):
				continue
			}
			require.ErrorIs(t, err, ErrDamaged, "byte %d of %s", at, p.name)
			var damage *DamageError
			require.ErrorAs(t, err, &damage)
			require.Equal(t, p.name, damage.Part, "byte %d", at)
			require.Equal(t, begin, damage.Offset)
		}
	}
}

func TestTruncated(t *testing.T) {
	src := state(t, seeds.Rand(t), 60, 900)
	file := written(t, src, 1)
	for n := range file {
		_, _, err := readAll(file[:n], src.v.AppHash())
		require.ErrorIs(t, err, ErrTruncated, "%d of %d bytes", n, len(file))
		require.NotErrorIs(t, err, ErrDamaged)
	}
}

func TestTrailingBytes(t *testing.T) {
	src := state(t, seeds.Rand(t), 60, 900)
	file := written(t, src, 1)
	for _, more := range [][]byte{{0}, make([]byte, 100), file} {
		_, _, err := readAll(append(bytes.Clone(file), more...), src.v.AppHash())
		if bytes.Equal(more, file) { // ends with a trailer of another file
			require.ErrorIs(t, err, ErrTrailing)
			continue
		}
		require.ErrorIs(t, err, ErrTrailing)
		require.ErrorContains(t, err, fmt.Sprintf("%d bytes after its end at byte offset %d", len(more), len(file)))
	}
	// Bytes inserted before a trailer that accounts for them.
	end := len(file) - int(trailerBytes)
	longer := append(bytes.Clone(file[:end]), 1, 2, 3)
	longer = append(longer, trailer{src.v.NumChunks(), src.v.Root().Bytes, uint64(len(file) + 3)}.encode()...)
	_, _, err := readAll(longer, src.v.AppHash())
	require.ErrorIs(t, err, ErrTrailing)
}

func TestOtherFiles(t *testing.T) {
	src := state(t, seeds.Rand(t), 60, 900)
	file, hash := written(t, src, 1), src.v.AppHash()
	_, _, err := readAll([]byte("PK\x03\x04 something else, and longer than a header"), hash)
	require.ErrorIs(t, err, ErrNotArchive)
	_, _, err = readAll(nil, hash)
	require.ErrorIs(t, err, ErrTruncated)

	// Transferred in text mode.
	_, _, err = readAll(bytes.ReplaceAll(file, []byte("\r\n"), []byte("\n")), hash)
	require.ErrorIs(t, err, ErrNotArchive)

	// Another state: only the header is read.
	other := state(t, seeds.Rand(t), 61, 900)
	_, _, err = readAll(file, other.v.AppHash())
	require.ErrorIs(t, err, ErrOtherState)
	require.ErrorContains(t, err, hash.String())

	// Another version with a longer header.
	for _, v := range []uint16{0, 2, 999} {
		b := binary.BigEndian.AppendUint16([]byte(magic), v)
		b = binary.BigEndian.AppendUint16(b, 500)
		b = append(appendCRC(append(b, make([]byte, 500)...)), file...)
		_, _, err = readAll(b, hash)
		require.ErrorIs(t, err, ErrVersion)
		require.ErrorContains(t, err, fmt.Sprintf("%d, want 1", v))
	}
}

// An attacker wrote the file: all checksums are right.
func TestHostileFrames(t *testing.T) {
	random := seeds.Rand(t)
	src := state(t, random, 400, 4000)
	hash := src.v.AppHash()
	honest := func(_ uint32, chunk []byte) (byte, []byte) {
		if packed := pack(chunk); len(packed) < len(chunk) {
			return compressed, packed
		}
		return stored, chunk
	}
	_, _, err := readAll(forge(src, honest), hash)
	require.NoError(t, err)
	bomb := make([]byte, maxChunk)
	hostile := map[string]func(k uint32, chunk []byte) (byte, []byte){
		"method":                func(_ uint32, chunk []byte) (byte, []byte) { return 2, chunk },
		"empty":                 func(uint32, []byte) (byte, []byte) { return compressed, nil },
		"stored, too short":     func(_ uint32, chunk []byte) (byte, []byte) { return stored, chunk[1:] },
		"stored, too long":      func(_ uint32, chunk []byte) (byte, []byte) { return stored, append(chunk, 0) },
		"stored, other bytes":   func(_ uint32, chunk []byte) (byte, []byte) { chunk[len(chunk)-1]++; return stored, chunk },
		"packed, too short":     func(_ uint32, chunk []byte) (byte, []byte) { return compressed, pack(chunk[1:]) },
		"packed, too long":      func(_ uint32, chunk []byte) (byte, []byte) { return compressed, pack(append(chunk, 0)) },
		"packed, no shorter":    func(_ uint32, chunk []byte) (byte, []byte) { return compressed, chunk },
		"no zstd":               func(_ uint32, chunk []byte) (byte, []byte) { return compressed, chunk[1:] },
		"bomb":                  func(uint32, []byte) (byte, []byte) { return compressed, pack(bomb) },
		"bomb of unknown size":  func(uint32, []byte) (byte, []byte) { return compressed, streamed(bomb) },
		"bomb in a second part": func(_ uint32, chunk []byte) (byte, []byte) { return compressed, append(pack(chunk), pack(bomb)...) },
		"skippable": func(uint32, []byte) (byte, []byte) {
			return compressed, []byte{0x50, 0x2A, 0x4D, 0x18, 4, 0, 0, 0, 1, 2, 3, 4}
		},
		"other chunk": func(k uint32, _ []byte) (byte, []byte) {
			other, _ := src.v.Chunk((k + 1) % src.v.NumChunks())
			return compressed, pack(other)
		},
		"lies about its size": func(_ uint32, chunk []byte) (byte, []byte) {
			p := pack(append(bytes.Clone(chunk), bomb[:1000]...), zstd.WithSingleSegment(true), zstd.WithEncoderCRC(false))
			// RFC 8878, section 3.1.1.1.4: two bytes, less 256
			binary.LittleEndian.PutUint16(p[5:], uint16(len(chunk)-256))
			return compressed, p
		},
	}
	var packs []uint32 // compressible chunks
	for k := range src.v.NumChunks() {
		chunk, err := src.v.Chunk(k)
		require.NoError(t, err)
		if len(pack(chunk)) < len(chunk)-100 {
			packs = append(packs, k)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(hostile)) {
		frame := hostile[name]
		t.Run(name, func(t *testing.T) {
			target := packs[random.IntN(len(packs))]
			file := forge(src, func(k uint32, chunk []byte) (byte, []byte) {
				if k == target {
					return frame(k, chunk)
				}
				return honest(k, chunk)
			})
			allocated := allocates(func() { _, _, err = readAll(file, hash) })
			require.ErrorIs(t, err, ErrDamaged)
			require.ErrorContains(t, err, chunkName(target, src.v.NumChunks()))
			require.Less(t, allocated, uint64(8<<20), "with the reader's own buffers")
		})
	}
}

// streamed compresses without a content size.
func streamed(data []byte) []byte {
	var out bytes.Buffer
	e, err := zstd.NewWriter(&out)
	if err != nil {
		panic(err)
	}
	_, _ = e.Write(data[:len(data)/2])
	_ = e.Flush()
	_, _ = e.Write(data[len(data)/2:])
	_ = e.Close()
	return out.Bytes()
}

func allocates(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A header with huge lengths in a sparse file.
func TestAHeaderThatClaimsMuch(t *testing.T) {
	h := Header{testChain, 1, avlstar.Commitment{ChunkBytes: 1, Chunks: 1 << 31, Root: avlstar.Stub{Stat: avlstar.Stat{Height: 40, Bytes: 1 << 40}}}, 70 << 31}
	head := h.encode()
	path := filepath.Join(t.TempDir(), "sparse")
	require.NoError(t, os.WriteFile(path, head, 0o600))
	size := int64(len(head)) + 70<<31 + crcBytes + 5*1<<20 + trailerBytes
	if err := os.Truncate(path, size); err != nil {
		t.Skipf("NOT RUN: no sparse files on this file system: %v", err)
	}
	allocated := allocates(func() {
		_, err := OpenFile(path)
		require.ErrorIs(t, err, ErrDamaged)
	})
	require.Less(t, allocated, uint64(4<<20))
}

func TestAChunkThatCannotBeRead(t *testing.T) {
	src := state(t, seeds.Rand(t), 400, 900)
	for name, bad := range map[string]func(k uint32, data []byte) ([]byte, error){
		"failure":      func(uint32, []byte) ([]byte, error) { return nil, errTest },
		"other length": func(_ uint32, data []byte) ([]byte, error) { return data[1:], nil },
	} {
		t.Run(name, func(t *testing.T) {
			src.bad = func(k uint32, data []byte) ([]byte, error) {
				if k == 3 {
					return bad(k, data)
				}
				return data, nil
			}
			path := filepath.Join(t.TempDir(), "file")
			_, err := WriteFile(t.Context(), path, false, src, Options{ChainID: testChain})
			require.ErrorContains(t, err, "chunk 3 of ")
			requireFiles(t, filepath.Dir(path))
		})
	}
}

func requireFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.ElementsMatch(t, want, names)
}

func TestWriteFile(t *testing.T) {
	src := state(t, seeds.Rand(t), 400, 900)
	dir := t.TempDir()
	path := filepath.Join(dir, "snapshot")
	require.NoError(t, os.WriteFile(path+partial, []byte("left by a kill, and longer than it will be"), 0o600))
	_, err := WriteFile(t.Context(), path, false, src, Options{ChainID: testChain})
	require.NoError(t, err)
	requireFiles(t, dir, "snapshot")
	first, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, written(t, src, 1), first)
	f, err := OpenFile(path)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	_, err = WriteFile(t.Context(), path, false, src, Options{ChainID: testChain})
	require.ErrorIs(t, err, ErrExists)
	requireFiles(t, dir, "snapshot")
	other := state(t, seeds.Rand(t), 40, 900)
	_, err = WriteFile(t.Context(), path, true, other, Options{ChainID: testChain})
	require.NoError(t, err)
	second, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, written(t, other, 1), second)

	// A folder is neither replaced nor created.
	_, err = WriteFile(t.Context(), dir, true, src, Options{ChainID: testChain})
	require.ErrorIs(t, err, ErrExists)
	_, err = WriteFile(t.Context(), filepath.Join(dir, "none", "file"), false, src, Options{ChainID: testChain})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = OpenFile(dir)
	require.Error(t, err)
	requireFiles(t, dir, "snapshot")
}

// Interrupted by ctx: the old file stays, and nothing of the new one remains.
func TestInterruptedWriting(t *testing.T) {
	src := state(t, seeds.Rand(t), 400, 900)
	dir := t.TempDir()
	path := filepath.Join(dir, "snapshot")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	for _, at := range []uint32{0, 5, src.v.NumChunks() - 1} {
		ctx, cancel := context.WithCancel(t.Context())
		src.bad = func(k uint32, data []byte) ([]byte, error) {
			if k == at {
				cancel()
			}
			return data, nil
		}
		_, err := WriteFile(ctx, path, true, src, Options{ChainID: testChain, workers: 3})
		require.ErrorIs(t, err, context.Canceled)
		requireFiles(t, dir, "snapshot")
		old, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "old", string(old))
	}
}

// The source is not used after Write has returned.
func TestWriteWaitsForItsWorkers(t *testing.T) {
	src := state(t, seeds.Rand(t), 400, 900)
	var mu sync.Mutex
	over := false
	src.bad = func(_ uint32, data []byte) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		require.False(t, over)
		return data, nil
	}
	for n := range 20 {
		over = false
		_, err := Write(t.Context(), &failing{left: n * 500}, src, Options{ChainID: testChain, workers: 4})
		require.ErrorIs(t, err, errTest)
		mu.Lock()
		over = true
		mu.Unlock()
	}
}

// failing is a writer that fails after left bytes.
type failing struct{ left int }

func (f *failing) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errTest
	}
	return len(b), nil
}

func TestTwoWriters(t *testing.T) {
	src := state(t, seeds.Rand(t), 100, 900)
	path := filepath.Join(t.TempDir(), "snapshot")
	src.bad = func(k uint32, data []byte) ([]byte, error) {
		if k == 0 {
			_, err := WriteFile(t.Context(), path, false, source{v: src.v}, Options{ChainID: testChain})
			require.ErrorIs(t, err, ErrExists)
			require.ErrorContains(t, err, "being written")
		}
		return data, nil
	}
	_, err := WriteFile(t.Context(), path, false, src, Options{ChainID: testChain})
	require.NoError(t, err)
	requireFiles(t, filepath.Dir(path), "snapshot")
}

func TestRefusedHeaders(t *testing.T) {
	src := state(t, seeds.Rand(t), 100, 900)
	for _, chain := range []string{"", string(make([]byte, 51))} {
		_, err := Write(t.Context(), io.Discard, src, Options{ChainID: chain})
		require.ErrorContains(t, err, "chain id")
	}
	for name, h := range map[string]Header{
		"height":   {testChain, 0, src.Commitment(), 100},
		"chain":    {"", 1, src.Commitment(), 100},
		"manifest": {testChain, 1, src.Commitment(), 1 << 40},
	} {
		b := append(h.encode(), make([]byte, 1000)...)
		_, err := Open(bytes.NewReader(b), int64(len(b)))
		require.ErrorIs(t, err, ErrDamaged, name)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(written(f, fuzzSource(), 1))
	f.Add(forge(fuzzSource(), func(_ uint32, chunk []byte) (byte, []byte) { return stored, chunk }))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, file []byte) {
		r, err := Open(bytes.NewReader(file), int64(len(file)))
		if err != nil {
			requireTyped(t, err)
			return
		}
		_, err = r.Verify(avlstar.Hash{})
		require.ErrorIs(t, err, ErrOtherState)
		c, err := r.Verify(r.Header().AppHash())
		if err != nil {
			requireTyped(t, err)
			return
		}
		n := 0
		for chunk, err := range c.Chunks() {
			if err != nil {
				requireTyped(t, err)
				return
			}
			require.EqualValues(t, n, chunk.Index)
			n++
			data, err := chunk.Data()
			if err != nil {
				requireTyped(t, err)
				return
			}
			require.EqualValues(t, c.Manifest.Entries[chunk.Index].Root.Bytes, len(data))
		}
		require.Len(t, c.Manifest.Entries, n)
	})
}

func fuzzSource() source {
	v, err := avlstar.Empty(64)
	if err == nil {
		v, err = v.Apply([]avlstar.Change{
			{Key: []byte("a"), Value: bytes.Repeat([]byte("x"), 200)}, {Key: []byte("b"), Value: []byte("y")}, {Key: []byte("c"), Value: []byte("z")},
		})
	}
	if err != nil {
		panic(err)
	}
	return source{v: v}
}

func requireTyped(t *testing.T, err error) {
	t.Helper()
	for _, typed := range []error{ErrNotArchive, ErrVersion, ErrTruncated, ErrTrailing, ErrDamaged} {
		if errors.Is(err, typed) {
			return
		}
	}
	t.Fatalf("not one of our errors: %v", err)
}

// FuzzFrame writes any payload of chunk 0 with right checksums.
func FuzzFrame(f *testing.F) {
	src := fuzzSource()
	chunk, err := src.v.Chunk(0)
	require.NoError(f, err)
	f.Add(byte(stored), chunk)
	f.Add(byte(compressed), pack(chunk))
	f.Add(byte(compressed), streamed(chunk))
	f.Add(byte(compressed), pack(chunk, zstd.WithSingleSegment(true), zstd.WithEncoderCRC(false)))
	f.Fuzz(func(t *testing.T, method byte, payload []byte) {
		file := forge(src, func(k uint32, chunk []byte) (byte, []byte) {
			if k == 0 {
				return method, payload
			}
			return stored, chunk
		})
		_, chunks, err := readAll(file, src.v.AppHash())
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged)
			return
		}
		require.Equal(t, chunk, chunks[0])
	})
}
