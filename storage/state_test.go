package storage

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

const smallMemTable = 64 << 10

func open(t *testing.T, fs vfs.FS) *State {
	t.Helper()
	s, err := Open("zone", Options{FS: fs, memTableBytes: smallMemTable})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestRandomBatchesEqualTheModel(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := newRNG(t, seed)
			fs, m := vfs.NewMem(), emptyModel()
			s := open(t, fs)
			for height := int64(1); height <= 120; height++ {
				b := randomBatch(rng, m, height)
				require.NoError(t, s.Write(b))
				m = m.apply(b)
				if rng.IntN(10) == 0 {
					require.NoError(t, s.Close())
					s = open(t, fs)
				}
				if rng.IntN(5) == 0 {
					m.requireIn(t, s)
				}
			}
			m.requireIn(t, s)
			require.NoError(t, s.Reset())
			emptyModel().requireIn(t, s)
			require.NoError(t, s.Close())
			emptyModel().requireIn(t, open(t, fs))
		})
	}
}

// A key that is the beginning of another, and bytes at the edges of the ranges: order on disk is order of keys.
func TestScanOrder(t *testing.T) {
	s := open(t, vfs.NewMem())
	var b Batch
	for i, key := range []string{"\xff\xff", "a", "", "ab", "\x00", "k", "h", "m", "\xff"} {
		b.Puts = append(b.Puts, Leaf{Key: []byte(key), Value: []byte(key + "!")})
		b.Heights = append(b.Heights, Height{[]byte(key), uint8(i)})
	}
	b.Meta = testMeta(1)
	require.NoError(t, s.Write(b))
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
		s := open(t, vfs.NewMem())
		require.NoError(t, s.Write(Batch{
			Meta: testMeta(1), Puts: []Leaf{{Key: []byte("b")}, {Key: []byte("l")}},
			Heights: []Height{{[]byte(orphan), 1}, {[]byte("l"), 2}},
		}))
		var last error
		for _, err := range s.Scan() {
			last = err
		}
		require.ErrorIs(t, last, ErrCorrupt, orphan)
	}
}

func TestWriteRefusals(t *testing.T) {
	s := open(t, vfs.NewMem())
	require.NoError(t, s.Write(Batch{Meta: testMeta(5), Puts: []Leaf{{Key: []byte("a"), Value: []byte("1")}}}))
	want := read(t, s)
	for name, meta := range map[string]Meta{
		"same height": testMeta(5), "lower": testMeta(4), "zero": testMeta(0), "negative": testMeta(-1),
		"no hash":       {Height: 6, ChainID: "x"},
		"long chain id": {Height: 6, AppHash: []byte{1}, ChainID: string(make([]byte, 256))},
	} {
		require.Error(t, s.Write(Batch{Meta: meta, Deletes: [][]byte{[]byte("a")}}), name)
	}
	want.requireIn(t, s)
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Write(Batch{Meta: testMeta(6)}), ErrClosed)
	require.ErrorIs(t, s.Reset(), ErrClosed)
	_, err := s.BeginRestore()
	require.ErrorIs(t, err, ErrClosed)
	for _, err := range s.Scan() {
		require.ErrorIs(t, err, ErrClosed)
	}
}

func TestRestore(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs)
	require.NoError(t, s.Write(Batch{Meta: testMeta(3), Puts: []Leaf{{Key: []byte("old"), Value: []byte("1")}}}))

	want := restored()
	r, err := s.BeginRestore()
	require.NoError(t, err)
	emptyModel().requireIn(t, s)
	require.ErrorIs(t, s.Write(Batch{Meta: testMeta(4)}), ErrRestoring)
	var wg sync.WaitGroup
	for piece := range slices.Chunk(want.list(), 7) {
		wg.Go(func() { require.NoError(t, r.Add(slices.Values(piece))) })
	}
	wg.Wait()
	emptyModel().requireIn(t, s)
	require.Error(t, r.Commit(Meta{}))
	require.NoError(t, r.Commit(want.meta))
	want.requireIn(t, s)
	require.ErrorIs(t, r.Commit(want.meta), ErrClosed)
	require.ErrorIs(t, r.Add(slices.Values(want.list())), ErrClosed)
	require.NoError(t, r.Abort(), "does nothing any more")
	want.requireIn(t, s)
	require.NoError(t, s.Close())
	s = open(t, fs)
	want.requireIn(t, s)

	// Aborted; then one that another one takes over from.
	r, err = s.BeginRestore()
	require.NoError(t, err)
	require.NoError(t, r.Add(slices.Values(want.list())))
	require.NoError(t, r.Abort())
	require.ErrorIs(t, r.Add(slices.Values(want.list())), ErrClosed)
	emptyModel().requireIn(t, s)
	require.NoError(t, s.Write(Batch{Meta: testMeta(1)}))
	model{meta: testMeta(1)}.requireIn(t, s)

	first, err := s.BeginRestore()
	require.NoError(t, err)
	require.NoError(t, first.Add(slices.Values([]Leaf{{Key: []byte("first")}})))
	second, err := s.BeginRestore()
	require.NoError(t, err)
	require.ErrorIs(t, first.Add(slices.Values([]Leaf{{Key: []byte("late")}})), ErrClosed)
	require.NoError(t, first.Abort())
	require.NoError(t, second.Add(slices.Values(want.list())))
	require.NoError(t, second.Commit(want.meta))
	want.requireIn(t, s)

	// Killed half-way.
	r, err = s.BeginRestore()
	require.NoError(t, err)
	require.NoError(t, r.Add(slices.Values(want.list())))
	require.NoError(t, s.Close())
	s = open(t, fs)
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

func TestMetaEncoding(t *testing.T) {
	m := testMeta(1 << 40)
	b := m.encode()
	got, err := decodeMeta(b)
	require.NoError(t, err)
	require.Equal(t, m, got)
	for i := range b {
		for bit := range 8 {
			damaged := slices.Clone(b)
			damaged[i] ^= 1 << bit
			_, err := decodeMeta(damaged)
			require.ErrorIs(t, err, errMetaForm)
		}
		_, err := decodeMeta(b[:i])
		require.ErrorIs(t, err, errMetaForm)
	}
	_, err = decodeMeta(append(slices.Clone(b), 0))
	require.ErrorIs(t, err, errMetaForm)
}

func FuzzDecodeMeta(f *testing.F) {
	f.Add(testMeta(9).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeMeta(b); err == nil {
			require.Equal(t, b, m.encode())
		}
	})
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
			s := open(t, fs)
			require.NoError(t, s.db.Set([]byte{kindMeta}, c.value, pebble.Sync))
			require.NoError(t, s.Close())
			for range 2 { // the failed Open has let go of the lock
				_, err := Open("zone", Options{FS: fs})
				require.ErrorIs(t, err, c.want)
				require.ErrorContains(t, err, "zone")
				require.ErrorContains(t, err, "starlingd unsafe-reset-all")
			}
		})
	}
}

func TestOpenRefusesADamagedDatabase(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{})
	require.NoError(t, err)
	require.NoError(t, s.Write(Batch{Meta: testMeta(1), Puts: []Leaf{{Key: []byte("a"), Value: []byte("1")}}}))
	require.NoError(t, s.db.Flush())
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

	// A folder that cannot be made is another matter.
	file := vfs.Default.PathJoin(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Open(vfs.Default.PathJoin(file, "zone"), Options{})
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrLocked)
}
