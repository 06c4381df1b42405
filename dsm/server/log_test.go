package server_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/dsm/server/disktest"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage/seglog"
)

const smallFile = 4 << 10

func logOptions(fsys vfs.FS) server.LogOptions {
	return server.LogOptions{FS: fsys, Dir: path.Join(disktest.Dir, "log"), Label: []byte("chain, range"), FileBytes: smallFile}
}

func newLogFS(t testing.TB) *disktest.CrashFS {
	t.Helper()
	return disktest.NewCrashFS(t, rand.New(rand.NewPCG(0, 0)), 0)
}

func openLog(t testing.TB, fsys vfs.FS) *server.Log {
	t.Helper()
	l, err := server.OpenLog(logOptions(fsys))
	require.NoError(t, err)
	return l
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// entries returns the updates of a log above a height.
func entries(t testing.TB, l *server.Log, above int64) (all [][]byte) {
	t.Helper()
	next := int64(0)
	for e, err := range l.Since(above) {
		require.NoError(t, err)
		if next != 0 {
			require.Equal(t, next, e.Height)
		}
		next = e.Height + 1
		all = append(all, e.Update)
	}
	return all
}

// Random appends, truncations and reopenings behave like a list.
func TestLogModel(t *testing.T) {
	rng := seeds.Rand(t)
	fsys := newLogFS(t)
	l := openLog(t, fsys)
	first := 1 + rng.Int64N(1000)
	var all [][]byte // from first
	next := func() int64 { return first + int64(len(all)) }
	truncated := 0
	for range 600 {
		switch op := rng.IntN(20); {
		case op == 0:
			require.NoError(t, l.Close())
			l = openLog(t, fsys)
			require.Equal(t, seglog.Torn{}, l.Torn())
		case op == 1 && len(all) > 0:
			below := first + rng.Int64N(int64(len(all)))
			before := l.Bytes()
			require.NoError(t, l.Truncate(below))
			oldest, newest, ok := l.Heights()
			require.True(t, ok)
			require.Equal(t, next()-1, newest)
			require.LessOrEqual(t, oldest, below+1)
			if l.Bytes() < before {
				truncated++
			}
			all, first = all[oldest-first:], oldest
		case op == 2:
			above := first - 1 + rng.Int64N(int64(len(all))+1)
			require.Equal(t, append([][]byte{}, all[above-first+1:]...), append([][]byte{}, entries(t, l, above)...))
		case op == 3:
			require.ErrorIs(t, l.Append(next()+1, []byte("x")), gapUnlessEmpty(len(all)))
			if len(all) == 0 {
				first, all = first+1, [][]byte{[]byte("x")}
			}
		default:
			update := randomBytes(rng, rng.IntN(1000))
			require.NoError(t, l.Append(next(), update))
			all = append(all, update)
		}
	}
	require.Positive(t, truncated)
	require.NoError(t, l.Reset())
	_, _, ok := l.Heights()
	require.False(t, ok)
	require.NoError(t, l.Append(7, []byte("again")))
	require.Equal(t, [][]byte{[]byte("again")}, entries(t, l, 0))
	require.NoError(t, l.Close())
}

func sorted(names []string) []string {
	return slices.Sorted(slices.Values(names))
}

func gapUnlessEmpty(n int) error {
	if n == 0 {
		return nil
	}
	return server.ErrGap
}

// After a crash before any change of the file system, the log has every update above the last
// truncation whose Append had returned, and possibly the one in progress.
func TestLogCrash(t *testing.T) {
	const updates, first = 24, 100
	seed := seeds.New(t)
	rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // it must be reproducible
	var all [][]byte
	for i := range updates {
		size := rng.IntN(1500)
		if i%2 == 1 { // spans several blocks, of which some survive
			size = 20_000
		}
		all = append(all, randomBytes(rng, size))
	}
	run := func(c *disktest.CrashFS) {
		l := openLog(t, c)
		for i, update := range all {
			require.NoError(t, l.Append(first+int64(i), update))
			c.Done.Add(1)
			if i%6 == 5 {
				require.NoError(t, l.Truncate(first+int64(i)-4))
			}
			if i == 13 {
				require.NoError(t, l.Close())
				l = openLog(t, c)
			}
		}
		require.NoError(t, l.Close())
	}
	torn := 0
	disktest.AtEachChange(t, seed, 1, run, func(t *testing.T, c *disktest.CrashFS) {
		l := openLog(t, c.Left)
		if l.Torn().Bytes > 0 {
			torn++
		}
		oldest, newest, ok := l.Heights()
		if !ok {
			require.Zero(t, c.Confirmed)
			newest = first - 1
		} else {
			require.LessOrEqual(t, oldest, max(first, first+c.Confirmed-4))
			require.Contains(t, []int64{c.Confirmed, c.Confirmed + 1}, newest-first+1)
			require.Equal(t, all[oldest-first:newest-first+1], entries(t, l, oldest-1))
		}
		require.NoError(t, l.Append(newest+1, []byte("next"))) // overwrites the torn record
		require.NoError(t, l.Close())
		l = openLog(t, c.Left)
		require.Equal(t, [][]byte{[]byte("next")}, entries(t, l, newest))
		require.NoError(t, l.Close())
	})
	require.Positive(t, torn)
}

// threeFiles returns a log of three files, the paths of the files, and the next height.
func threeFiles(t *testing.T) (fsys vfs.FS, paths []string, next int64) {
	t.Helper()
	fsys = newLogFS(t)
	l := openLog(t, fsys)
	for next = 1; ; next++ {
		require.NoError(t, l.Append(next, bytes.Repeat([]byte{byte(next)}, 700)))
		dir := logOptions(fsys).Dir
		names, err := fsys.List(dir)
		require.NoError(t, err)
		if _, newest, _ := l.Heights(); len(names) == 1+3 && newest%6 == 4 {
			require.NoError(t, l.Close())
			for _, name := range sorted(names)[:3] { // LABEL follows
				paths = append(paths, path.Join(dir, name))
			}
			return fsys, paths, next + 1
		}
	}
}

// A changed byte is damage if updates follow it; the error names file and offset. In the
// last update it cannot be distinguished from an unsynced write, so the update is cut off.
func TestLogDamaged(t *testing.T) {
	rng := seeds.Rand(t)
	fsys, paths, next := threeFiles(t)
	for i, name := range paths {
		whole := readFile(t, fsys, name)
		for range 150 {
			at := rng.IntN(len(whole))
			b := bytes.Clone(whole)
			b[at] ^= 1 << rng.IntN(8)
			writeFile(t, fsys, name, b)
			l, err := server.OpenLog(logOptions(fsys))
			if err == nil {
				_, newest, ok := l.Heights()
				require.True(t, ok)
				require.Equal(t, 2, i, "a byte of %s", name)
				require.Equal(t, next-2, newest)
				require.Positive(t, l.Torn().Bytes)
				require.NoError(t, l.Close())
				continue
			}
			require.ErrorIs(t, err, server.ErrDamaged)
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, err, "record at ")
		}
		writeFile(t, fsys, name, whole)
	}
	whole := readFile(t, fsys, paths[0])
	require.NoError(t, fsys.Remove(paths[1]))
	_, err := server.OpenLog(logOptions(fsys))
	require.ErrorIs(t, err, server.ErrDamaged)
	require.ErrorContains(t, err, paths[1]+" is missing")
	writeFile(t, fsys, paths[0], whole[:len(whole)-1])
	_, err = server.OpenLog(logOptions(fsys))
	require.ErrorIs(t, err, server.ErrDamaged)
	o := logOptions(fsys)
	o.Label = []byte("another  one")
	_, err = server.OpenLog(o)
	require.ErrorIs(t, err, server.ErrOther)
}

// Bytes that a client puts into an update are never taken for a record, even if they are a record
// of another log.
func TestLogForged(t *testing.T) {
	fsys, paths, next := threeFiles(t)
	l := openLog(t, fsys)
	inside := readFile(t, fsys, paths[2])
	for range 3 {
		require.NoError(t, l.Append(next, inside))
		next++
	}
	require.NoError(t, l.Close())
	names, err := fsys.List(logOptions(fsys).Dir)
	require.NoError(t, err)
	last := path.Join(logOptions(fsys).Dir, sorted(names)[len(names)-2]) // LABEL follows
	whole := readFile(t, fsys, last)
	for cut := 1; cut < 2900; cut += 50 {
		writeFile(t, fsys, last, whole[:len(whole)-cut])
		l := openLog(t, fsys)
		_, newest, _ := l.Heights()
		require.Equal(t, next-2, newest)
		require.NoError(t, l.Close())
	}
}

// After a failed write, nothing is appended until the log is opened again; then it continues.
func TestLogFaults(t *testing.T) {
	for n := int64(1); ; n++ {
		mem := newLogFS(t)
		changes, armed, injected := int64(0), false, false
		l := openLog(t, errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if !armed || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose {
				return nil
			}
			if changes++; changes != n {
				return nil
			}
			injected = true
			return errorfs.ErrInjected
		})))
		armed = true
		height, failed := int64(1), error(nil)
		for ; height <= 15 && failed == nil; height++ {
			failed = l.Append(height, make([]byte, 900))
		}
		if !injected {
			require.NoError(t, failed)
			require.Greater(t, n, int64(30))
			return
		}
		require.ErrorIs(t, failed, errorfs.ErrInjected)
		height-- // it was not appended
		require.True(t, errors.Is(l.Append(height, []byte("next")), errorfs.ErrInjected))
		require.NoError(t, l.Close())
		l = openLog(t, mem)
		_, newest, ok := l.Heights()
		if !ok {
			newest = 0
		}
		require.Contains(t, []int64{height - 1, height}, newest)
		require.NoError(t, l.Append(newest+1, []byte("next")))
		require.NoError(t, l.Close())
	}
}

// Updates that a killed process had written without syncing are synced when the log is opened,
// because the replica reports them as durable from then on.
func TestLogSyncsWhatItFinds(t *testing.T) {
	fsys, paths, next := threeFiles(t)
	mem := vfs.NewCrashableMem()
	dir := logOptions(fsys).Dir
	require.NoError(t, mem.MkdirAll(dir, 0o755))
	for _, name := range []string{"/", disktest.Dir} {
		d, err := mem.OpenDir(name)
		require.NoError(t, err)
		require.NoError(t, errors.Join(d.Sync(), d.Close()))
	}
	for _, name := range []string{paths[2], path.Join(dir, "LABEL")} {
		writeFile(t, mem, name, readFile(t, fsys, name))
	}
	label, err := mem.Open(path.Join(dir, "LABEL")) // it is durable before any update is written
	require.NoError(t, err)
	require.NoError(t, errors.Join(label.Sync(), label.Close()))
	l := openLog(t, mem)
	_, newest, ok := l.Heights()
	require.True(t, ok)
	require.Equal(t, next-1, newest)
	left := mem.CrashClone(vfs.CrashCloneCfg{})
	require.NoError(t, l.Close())
	l = openLog(t, left)
	_, newest, ok = l.Heights()
	require.True(t, ok)
	require.Equal(t, next-1, newest)
	require.NoError(t, l.Close())
}
