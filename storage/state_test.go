package storage

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/crc32c"
)

const smallMemTable = 64 << 10

// testOptions make automatic flushes rare, so that tests control them.
func testOptions(fs vfs.FS) Options {
	return Options{FS: fs, MemTableBytes: smallMemTable, FlushBlocks: 1 << 20, MaxLagBlocks: 1 << 20, FlushInterval: time.Hour}
}

// write writes a block and waits until it is durable.
func write(t *testing.T, s *Zone, b Block) {
	t.Helper()
	require.NoError(t, s.Write(b))
	require.NoError(t, s.Flush())
}

// keyHeight is an argument pair of an Owner's add.
type keyHeight struct {
	key    []byte
	height uint8
}

func each(heights ...keyHeight) iter.Seq2[[]byte, uint8] {
	return func(yield func([]byte, uint8) bool) {
		for _, h := range heights {
			if !yield(h.key, h.height) {
				return
			}
		}
	}
}

func appendRecord(b []byte, l record.Leaf) []byte {
	b = append(b, l.Height)
	b = append(binary.AppendUvarint(b, uint64(len(l.Key))), l.Key...)
	return append(binary.AppendUvarint(b, uint64(len(l.Value))), l.Value...)
}

func openZone(t *testing.T, fs vfs.FS) *Zone {
	t.Helper()
	s, err := Open("zone", testOptions(fs))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestRandomBlocksEqualTheModel(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := newRNG(seed)
			fs, m := vfs.NewMem(), emptyModel()
			s := openZone(t, fs)
			for height := int64(1); height <= 120; height++ {
				b := randomBlock(rng, m, height)
				require.NoError(t, s.Write(b))
				m = m.apply(b)
				if rng.IntN(10) == 0 {
					require.NoError(t, s.Close())
					s = openZone(t, fs)
				}
				if rng.IntN(5) == 0 {
					require.NoError(t, s.Flush())
					m.requireIn(t, s)
				}
			}
			require.NoError(t, s.Flush())
			m.requireIn(t, s)
			require.NoError(t, s.Reset())
			emptyModel().requireIn(t, s)
			require.NoError(t, s.Close())
			emptyModel().requireIn(t, openZone(t, fs))
		})
	}
}

// TestScanOrder: keys that are prefixes of others, and bytes at the edges of the ranges: the order
// on disk is key order.
func TestScanOrder(t *testing.T) {
	s := openZone(t, vfs.NewMem())
	var b Block
	var heights []keyHeight
	for i, key := range []string{"\xff\xff", "a", "", "ab", "\x00", "k", "h", "m", "\xff"} {
		b.Puts = append(b.Puts, record.Leaf{Key: []byte(key), Value: []byte(key + "!")})
		heights = append(heights, keyHeight{[]byte(key), uint8(i)})
	}
	b.Meta, b.Owner = testMeta(1), &owner{heights: each(heights...)}
	write(t, s, b)
	emptyModel().apply(b).requireIn(t, s)

	n := 0
	for range s.Scan() {
		if n++; n == 3 {
			break
		}
	}
	require.Equal(t, 3, n)
}

func TestScanRefusesAHeightWithoutLeaf(t *testing.T) {
	for _, orphan := range []string{"a", "k", "z"} {
		s := openZone(t, vfs.NewMem())
		write(t, s, Block{
			Meta: testMeta(1), Puts: []record.Leaf{{Key: []byte("b"), Value: []byte("1")}, {Key: []byte("l"), Value: []byte("1")}},
			Owner: &owner{heights: each(keyHeight{[]byte(orphan), 1}, keyHeight{[]byte("l"), 2})},
		})
		var last error
		for _, err := range s.Scan() {
			last = err
		}
		require.ErrorIs(t, last, ErrCorrupt, orphan)
	}
}

func TestWriteRefusals(t *testing.T) {
	s := openZone(t, vfs.NewMem())
	write(t, s, Block{Meta: testMeta(5), Puts: []record.Leaf{{Key: []byte("a"), Value: []byte("1")}}})
	want := read(t, s)
	for name, meta := range map[string]Meta{
		"same height": testMeta(5), "lower": testMeta(4), "zero": testMeta(0), "negative": testMeta(-1),
		"no hash":       {Height: 6, ChainID: "x"},
		"long chain id": {Height: 6, AppHash: []byte{1}, ChainID: string(make([]byte, 256))},
	} {
		require.Error(t, s.Write(Block{Meta: meta, Deletes: [][]byte{[]byte("a")}}), name)
	}
	want.requireIn(t, s)
	require.ErrorContains(t, s.Write(Block{Meta: testMeta(6), Puts: []record.Leaf{{Key: []byte("a")}}}), "empty value")
	want.requireIn(t, s)
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Write(Block{Meta: testMeta(6)}), ErrClosed)
	require.ErrorIs(t, s.Reset(), ErrClosed)
	_, err := s.BeginRestore(nil)
	require.ErrorIs(t, err, ErrClosed)
	for _, err := range s.Scan() {
		require.ErrorIs(t, err, ErrClosed)
	}
}

func TestRestore(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	write(t, s, Block{Meta: testMeta(3), Puts: []record.Leaf{{Key: []byte("old"), Value: []byte("1")}}})

	want := restored()
	r, err := s.BeginRestore(nil)
	require.NoError(t, err)
	emptyModel().requireIn(t, s)
	require.ErrorIs(t, s.Write(Block{Meta: testMeta(4)}), ErrRestoring)
	var wg sync.WaitGroup
	for piece := range slices.Chunk(want.list(), 7) {
		wg.Go(func() { require.NoError(t, addLeaves(r, RunID(piece[0].Key), piece)) })
	}
	wg.Wait()
	emptyModel().requireIn(t, s)
	require.Error(t, r.Commit(Meta{}))
	require.NoError(t, r.Commit(want.meta))
	want.requireIn(t, s)
	require.ErrorIs(t, r.Commit(want.meta), ErrClosed)
	require.ErrorIs(t, addLeaves(r, "all", want.list()), ErrClosed)
	require.NoError(t, r.Abort(), "has no effect any more")
	want.requireIn(t, s)
	require.NoError(t, s.Close())
	s = openZone(t, fs)
	want.requireIn(t, s)

	// Aborted, and then one that is replaced by another.
	r, err = s.BeginRestore(nil)
	require.NoError(t, err)
	require.NoError(t, addLeaves(r, "all", want.list()))
	require.NoError(t, r.Abort())
	require.ErrorIs(t, addLeaves(r, "all", want.list()), ErrClosed)
	emptyModel().requireIn(t, s)
	write(t, s, Block{Meta: testMeta(1)})
	model{meta: testMeta(1)}.requireIn(t, s)

	first, err := s.BeginRestore(nil)
	require.NoError(t, err)
	require.NoError(t, addLeaves(first, "1", []record.Leaf{{Key: []byte("first"), Value: []byte("1")}}))
	second, err := s.BeginRestore(nil)
	require.NoError(t, err)
	require.ErrorIs(t, addLeaves(first, "2", []record.Leaf{{Key: []byte("late"), Value: []byte("1")}}), ErrClosed)
	require.NoError(t, first.Abort())
	require.NoError(t, addLeaves(second, "all", want.list()))
	require.NoError(t, second.Commit(want.meta))
	want.requireIn(t, s)

	// Killed half-way.
	r, err = s.BeginRestore(nil)
	require.NoError(t, err)
	require.NoError(t, addLeaves(r, "all", want.list()))
	require.NoError(t, s.Close())
	s = openZone(t, fs)
	emptyModel().requireIn(t, s)
	it, err := s.db.NewIter(nil)
	require.NoError(t, err)
	require.False(t, it.First(), "nothing is left on disk")
	require.NoError(t, it.Close())
}

// restored is a state larger than a restore's batch.
func restored() model {
	m := emptyModel()
	m.meta = testMeta(77)
	m.meta.Restored = true
	value := string(make([]byte, 50<<10))
	for i := range 120 {
		key := fmt.Sprintf("new %03d", i)
		m.leaves[key] = value
		m.heights[key] = uint8(i % 9)
		if i%9 == 0 {
			delete(m.heights, key)
		}
	}
	return m
}

func TestOpenRefusesUnreadableMeta(t *testing.T) {
	newer := testMeta(1).encode()
	newer = append(newer[:0:0], newer...)
	newer[0] = FormatVersion + 1
	for _, c := range []struct {
		name  string
		value []byte
		want  error
	}{
		{"garbage", []byte("garbage"), ErrCorrupt},
		{"empty", nil, ErrCorrupt},
		{"newer", resum(newer), ErrNewerFormat},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := vfs.NewMem()
			s := openZone(t, fs)
			require.NoError(t, s.db.Set([]byte{kindMeta}, c.value, pebble.NoSync))
			require.NoError(t, s.db.Flush())
			require.NoError(t, s.Close())
			for range 2 { // the failed Open must release the lock
				_, err := Open("zone", Options{FS: fs})
				require.ErrorIs(t, err, c.want)
				require.ErrorContains(t, err, "zone")
				if errors.Is(c.want, ErrNewerFormat) {
					require.ErrorContains(t, err, "layout 2, this program knows up to 1: use the starlingd that wrote it")
				}
				require.ErrorContains(t, err, "starlingd unsafe-reset-all")
			}
		})
	}
}

func TestOpenRefusesADamagedDatabase(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{})
	require.NoError(t, err)
	write(t, s, Block{Meta: testMeta(1), Puts: []record.Leaf{{Key: []byte("a"), Value: []byte("1")}}})
	require.NoError(t, s.Close())
	tables, err := vfs.Default.List(dir)
	require.NoError(t, err)
	for _, name := range tables {
		if path := vfs.Default.PathJoin(dir, name); len(name) > 4 && name[len(name)-4:] == ".sst" {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			for i := range data {
				data[i] ^= 0x55
			}
			require.NoError(t, os.WriteFile(path, data, 0o600))
		}
	}
	_, err = Open(dir, Options{})
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, dir)
}

const lockDirVariable = "STARLING_TEST_LOCK_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(lockDirVariable); dir != "" {
		os.Exit(holdLock(dir))
	}
	os.Exit(m.Run())
}

// holdLock is the other process of TestOneProcessOnly.
func holdLock(dir string) int {
	s, err := Open(dir, Options{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("open")
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	_ = s.Close()
	return 0
}

func TestOneProcessOnly(t *testing.T) {
	dir := t.TempDir()
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), lockDirVariable+"="+dir)
	stdin, err := other.StdinPipe()
	require.NoError(t, err)
	stdout, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "open\n", line)

	_, err = Open(dir, Options{})
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, dir)
	require.NoError(t, stdin.Close())
	require.NoError(t, other.Wait())

	s, err := Open(dir, Options{})
	require.NoError(t, err)
	_, err = Open(dir, Options{}) // twice in this process
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, s.Close())

	// A folder that cannot be created causes another error.
	file := vfs.Default.PathJoin(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Open(vfs.Default.PathJoin(file, "zone"), Options{})
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrLocked)
}

// resum recomputes the checksum of an encoded meta that was altered on purpose.
func resum(b []byte) []byte {
	body := b[:len(b)-4]
	return binary.BigEndian.AppendUint32(slices.Clone(body), crc32c.Sum(body))
}
