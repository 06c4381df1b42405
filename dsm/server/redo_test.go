package server_test

import (
	"bytes"
	"fmt"
	"io"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/crashfs"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/storage/seglog"
)

func redoOptions(fsys vfs.FS) server.RedoOptions {
	return server.RedoOptions{FS: fsys, Dir: path.Join(crashfs.Dir, "redo"), Label: []byte("chain"), FileBytes: 4 << 10}
}

func openRedo(t testing.TB, fsys vfs.FS) *server.RedoLog {
	t.Helper()
	l, err := server.OpenRedoLog(redoOptions(fsys))
	require.NoError(t, err)
	return l
}

// redoUpdates returns the updates of a range above a height, after checking their heights.
func redoUpdates(t testing.TB, l *server.RedoLog, id server.RangeID, above int64) (all [][]byte) {
	t.Helper()
	next := int64(0)
	for e, err := range l.Since(id, above) {
		require.NoError(t, err)
		require.True(t, next == 0 || next == e.Height)
		next = e.Height + 1
		all = append(all, e.Update)
	}
	return all
}

// redoFiles returns the number of files of the log.
func redoFiles(t testing.TB, fsys vfs.FS) int {
	t.Helper()
	names, err := fsys.List(redoOptions(fsys).Dir)
	require.NoError(t, err)
	return len(names) - 1 // LABEL
}

func TestRangeIDOf(t *testing.T) {
	ids := map[server.RangeID]bool{}
	for _, r := range []avlstar.KeyRange{
		{}, {First: []byte("a")}, {After: []byte("a")}, {First: []byte("a"), After: []byte("b")}, {First: []byte("ab")}, {After: []byte("ab")},
	} {
		ids[server.RangeIDOf(r)] = true
	}
	require.Len(t, ids, 6)
	require.Equal(t, server.RangeIDOf(avlstar.KeyRange{}), server.RangeIDOf(avlstar.KeyRange{First: []byte{}, After: []byte{}}))
}

// Appends of many ranges that arrive during a sync become durable by one more sync. Reads do not
// wait for it.
func TestRedoGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		syncs, armed := atomic.Int64{}, atomic.Bool{}
		release := make(chan struct{})
		l := openRedo(t, errorfs.Wrap(newCrashFS(t), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if armed.Load() && op.Kind == errorfs.OpFileSyncData {
				if syncs.Add(1) == 1 {
					<-release
				}
			}
			return nil
		})))
		require.NoError(t, l.Append(server.RangeID{}, 1, []byte("first"))) // creates the file
		armed.Store(true)
		const ranges = 50
		var done atomic.Int64
		appendTo := func(i int) {
			if err := l.Append(server.RangeID{byte(i)}, 2, []byte{byte(i)}); err != nil {
				t.Error(err)
			}
			done.Add(1)
		}
		go appendTo(0)
		synctest.Wait()
		for i := 1; i < ranges; i++ {
			go appendTo(i)
		}
		synctest.Wait()
		require.Zero(t, done.Load())
		_, newest, ok := l.Heights(server.RangeID{})
		require.True(t, ok)
		require.EqualValues(t, 1, newest) // the second one is not yet durable
		require.Equal(t, [][]byte{[]byte("first")}, redoUpdates(t, l, server.RangeID{}, 0))
		require.NoError(t, l.Truncate(server.RangeID{}, 0))
		require.ErrorIs(t, l.Append(server.RangeID{}, 2, nil), server.ErrGap)
		close(release)
		synctest.Wait()
		require.EqualValues(t, ranges, done.Load())
		require.EqualValues(t, 2, syncs.Load())
		require.Len(t, l.Ranges(), ranges)
		require.NoError(t, l.Close())
	})
}

// BenchmarkRedoAppend appends updates of 1 KiB to ranges concurrently, on the file system of the
// operating system.
func BenchmarkRedoAppend(b *testing.B) {
	for _, ranges := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(ranges), func(b *testing.B) {
			var syncs atomic.Int64
			o := server.RedoOptions{Dir: b.TempDir(), FS: errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == errorfs.OpFileSyncData {
					syncs.Add(1)
				}
				return nil
			}))}
			l, err := server.OpenRedoLog(o)
			require.NoError(b, err)
			update := make([]byte, 1<<10)
			var appended atomic.Int64
			var done sync.WaitGroup
			b.ResetTimer()
			for i := range ranges {
				done.Go(func() {
					for at := int64(1); appended.Add(1) <= int64(b.N); at++ {
						if err := l.Append(server.RangeID{byte(i)}, at, update); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			done.Wait()
			b.ReportMetric(float64(syncs.Load())/float64(b.N), "syncs/op")
			require.NoError(b, l.Close())
		})
	}
}

// redoModel is a naive reference of the log.
type redoModel map[server.RangeID]*redoList

// redoList has the updates of a range from a height on.
type redoList struct {
	first int64
	all   [][]byte
}

func (m redoModel) list(id server.RangeID) *redoList {
	if m[id] == nil {
		m[id] = &redoList{}
	}
	return m[id]
}

// check compares a log, which may have removed updates below needed.
func (m redoModel) check(t *testing.T, l *server.RedoLog, needed map[server.RangeID]int64) {
	t.Helper()
	for id, want := range m {
		oldest, newest, ok := l.Heights(id)
		end := want.first + int64(len(want.all))
		if !ok {
			require.GreaterOrEqual(t, max(needed[id], want.first), end)
			require.Empty(t, redoUpdates(t, l, id, -1))
			require.Zero(t, l.NeededBytes(id))
			*want = redoList{}
			continue
		}
		require.Equal(t, end-1, newest)
		require.LessOrEqual(t, oldest, max(want.first, needed[id]))
		*want = redoList{oldest, want.all[oldest-want.first:]}
		require.Equal(t, want.all, redoUpdates(t, l, id, -1))
		above := oldest + (newest-oldest)/2
		require.Equal(t, append([][]byte{}, want.all[above-oldest+1:]...), append([][]byte{}, redoUpdates(t, l, id, above)...))
	}
}

// Random operations of several ranges behave like a list for each of them.
func TestRedoModel(t *testing.T) {
	rng := seeds.Rand(t)
	fsys := newCrashFS(t)
	l := openRedo(t, fsys)
	model, needed := redoModel{}, map[server.RangeID]int64{}
	removed, files := 0, 0
	for range 1500 {
		id := server.RangeID{byte(rng.IntN(5))}
		list := model.list(id)
		switch op := rng.IntN(40); {
		case op == 0:
			require.NoError(t, l.Close())
			l = openRedo(t, fsys)
			require.Equal(t, seglog.Torn{}, l.Torn())
		case op < 10 && len(list.all) > 0:
			height := list.first + rng.Int64N(int64(len(list.all))+1) - 1
			require.NoError(t, l.Truncate(id, height))
			needed[id] = max(needed[id], height+1)
		case op == 10:
			require.NoError(t, l.Forget(id))
			*list = redoList{}
			delete(needed, id)
		case op == 11 && len(list.all) > 0:
			for _, height := range []int64{list.first + int64(len(list.all)) + 1, list.first + int64(len(list.all)) - 1} {
				require.ErrorIs(t, l.Append(id, height, nil), server.ErrGap)
			}
		default:
			if len(list.all) == 0 {
				list.first = rng.Int64N(1000)
				delete(needed, id)
			}
			update := randomBytes(rng, rng.IntN(1000))
			require.NoError(t, l.Append(id, list.first+int64(len(list.all)), update))
			list.all = append(list.all, update)
		}
		model.check(t, l, needed)
		now := redoFiles(t, fsys)
		if now < files {
			removed++
		}
		files = now
	}
	require.Positive(t, removed)
	require.NoError(t, l.Close())
}

// A file stays as long as one range needs it.
func TestRedoTruncate(t *testing.T) {
	fsys := newCrashFS(t)
	l := openRedo(t, fsys)
	a, b, c := server.RangeID{'a'}, server.RangeID{'b'}, server.RangeID{'c'}
	require.NoError(t, l.Append(c, 7, make([]byte, 10)))
	for height := int64(1); height <= 20; height++ {
		require.NoError(t, l.Append(a, height, make([]byte, 1000)))
		require.NoError(t, l.Append(b, height, make([]byte, 1000)))
	}
	files := redoFiles(t, fsys)
	require.Greater(t, files, 8)
	require.NoError(t, l.Truncate(a, 20))
	require.NoError(t, l.Truncate(b, 20))
	require.Equal(t, files, redoFiles(t, fsys)) // c
	require.Equal(t, l.Bytes(), l.NeededBytes(c))
	require.Zero(t, l.NeededBytes(a))
	require.NoError(t, l.Close())
	l = openRedo(t, fsys)
	require.NoError(t, l.Forget(c))
	require.GreaterOrEqual(t, redoFiles(t, fsys), files) // a and b, as nobody has repeated Truncate
	require.NoError(t, l.Truncate(a, 20))
	require.NoError(t, l.Truncate(b, 10))
	require.Less(t, redoFiles(t, fsys), files)
	require.Len(t, redoUpdates(t, l, b, 10), 10)
	require.NoError(t, l.Truncate(b, 20))
	require.Equal(t, 1, redoFiles(t, fsys))
	require.NoError(t, l.Close())
	require.ErrorContains(t, l.Append(a, 21, nil), "closed")
}

// Forget is durable when it returns: the log that is opened next has none of the range.
func TestRedoForget(t *testing.T) {
	fsys := newCrashFS(t)
	l := openRedo(t, fsys)
	a, b := server.RangeID{'a'}, server.RangeID{'b'}
	require.NoError(t, l.Forget(a)) // nothing to forget
	require.Zero(t, l.Bytes())
	for height := int64(1); height < 4; height++ {
		require.NoError(t, l.Append(a, height, []byte("old")))
		require.NoError(t, l.Append(b, height, []byte("b")))
	}
	require.NoError(t, l.Forget(a))
	_, _, ok := l.Heights(a)
	require.False(t, ok)
	require.NoError(t, l.Close())
	l = openRedo(t, fsys)
	require.Equal(t, []server.RangeID{b}, l.Ranges())
	require.NoError(t, l.Append(a, 2, []byte("new")))
	require.NoError(t, l.Close())
	l = openRedo(t, fsys)
	require.Equal(t, [][]byte{[]byte("new")}, redoUpdates(t, l, a, 0))
	require.Len(t, redoUpdates(t, l, b, 0), 3)
	require.NoError(t, l.Close())
}

// A changed byte before the last update is damage.
func TestRedoDamaged(t *testing.T) {
	rng := seeds.Rand(t)
	fsys := newCrashFS(t)
	l := openRedo(t, fsys)
	for height := int64(1); height <= 20; height++ {
		require.NoError(t, l.Append(server.RangeID{byte(height % 2)}, (height+1)/2, make([]byte, 500)))
	}
	require.NoError(t, l.Close())
	names, err := fsys.List(redoOptions(fsys).Dir)
	require.NoError(t, err)
	slices.Sort(names)
	for i, name := range names[:len(names)-1] { // LABEL follows
		name = path.Join(redoOptions(fsys).Dir, name)
		whole := readFile(t, fsys, name)
		const record = 15 + 32 + 500
		for range 50 {
			at := rng.IntN(len(whole))
			b := bytes.Clone(whole)
			b[at] ^= 1 << rng.IntN(8)
			writeFile(t, fsys, name, b)
			l, err := server.OpenRedoLog(redoOptions(fsys))
			if i == len(names)-2 && at >= len(whole)-record {
				require.NoError(t, err)
				require.EqualValues(t, record, l.Torn().Bytes)
				require.NoError(t, l.Close())
				continue
			}
			require.ErrorIs(t, err, server.ErrDamaged)
			require.ErrorContains(t, err, name)
		}
		writeFile(t, fsys, name, whole)
	}
	o := redoOptions(fsys)
	o.Label = []byte("another")
	_, err = server.OpenRedoLog(o)
	require.ErrorIs(t, err, rangestore.ErrOther)
}

func readFile(t testing.TB, fsys vfs.FS, path string) []byte {
	t.Helper()
	file, err := fsys.Open(path)
	require.NoError(t, err)
	defer file.Close()
	b, err := io.ReadAll(file)
	require.NoError(t, err)
	return b
}

func writeFile(t testing.TB, fsys vfs.FS, path string, b []byte) {
	t.Helper()
	file, err := fsys.Create(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = file.Write(bytes.Clone(b)) // it may modify them
	require.NoError(t, err)
	require.NoError(t, file.Close())
}
