package seglog

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/crc32c"
	"github.com/starling-kv/starling/internal/seeds"
)

// testLog is a log, with the records appended to it, by segment.
type testLog struct {
	*Log
	fs      vfs.FS
	records []string // "segment key=value"
	found   []string // by the last open
}

func logFS(t testing.TB, mem *vfs.MemFS) *vfs.MemFS {
	t.Helper()
	require.NoError(t, mem.MkdirAll("log", 0o755))
	root, err := mem.OpenDir("")
	require.NoError(t, err)
	require.NoError(t, root.Sync())
	return mem
}

func (l *testLog) open() (err error) {
	l.found = nil
	o := LogOptions{Options: Options{FS: l.fs, Dir: "log", Limit: smallLimit}, Label: []byte("label")}
	l.Log, err = OpenLog(o, func(r Ref, key, value []byte) error {
		l.found = append(l.found, describe(r, string(key), string(value)))
		return nil
	})
	return err
}

func (l *testLog) mustOpen(t testing.TB) {
	t.Helper()
	require.NoError(t, l.open())
	require.Equal(t, l.records, l.found)
}

func (l *testLog) append(key, value string) error {
	r, err := l.Append([]byte(key), []byte(value))
	if err == nil {
		err = l.Sync()
	}
	if err == nil {
		l.records = append(l.records, describe(r, key, value))
	}
	return err
}

// drop removes the oldest segment.
func (l *testLog) drop() error {
	all := l.All()
	err := l.DropOldest()
	if len(all) > 1 {
		l.records = withoutSegment(l.records, all[0])
	}
	return err
}

func withoutSegment(records []string, number uint32) []string {
	return slices.DeleteFunc(slices.Clone(records), func(r string) bool { return strings.HasPrefix(r, fmt.Sprint(number, " ")) })
}

// describe describes a record; for long values, by their checksum.
func describe(r Ref, key, value string) string {
	if len(value) > 500 {
		value = fmt.Sprintf("%d %x", len(value), crc32c.Sum([]byte(value)))
	}
	return fmt.Sprintf("%d %s=%s", r.Segment, key, value)
}

func TestLogModel(t *testing.T) {
	rng := seeds.Rand(t)
	l := &testLog{fs: logFS(t, vfs.NewMem())}
	l.mustOpen(t)
	for i := range 1500 {
		switch op := rng.IntN(50); {
		case op == 0:
			require.NoError(t, l.Close())
			l.mustOpen(t)
			require.Zero(t, l.Torn())
		case op < 3 && len(l.records) > 0:
			require.NoError(t, l.drop())
		case op == 3 && rng.IntN(10) == 0:
			require.NoError(t, l.Reset())
			l.records = nil
		default:
			require.NoError(t, l.append(fmt.Sprint(i), strings.Repeat("x", rng.IntN(1000))))
		}
	}
	require.NoError(t, l.Close())
	l.mustOpen(t)
	require.NoError(t, l.Close())
}

// TestLogCrash: after a crash before any change of the file system, with any of the unsynced data
// kept or lost, a log has all records whose Sync had returned, and perhaps the next one. It can be
// continued.
func TestLogCrash(t *testing.T) {
	rng := seeds.Rand(t)
	torn := 0
	for at := 1; ; at++ {
		mem := vfs.NewCrashableMem()
		logFS(t, mem)
		l := &testLog{}
		var left *vfs.MemFS
		var records []string
		next, changes := "", 0
		l.fs = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				if changes++; changes == at {
					left = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
					records = slices.Clone(l.records)
				}
			}
			return nil
		}))
		l.mustOpen(t)
		for i := range 30 {
			value := strings.Repeat(fmt.Sprint(i%10), rng.IntN(2)*20_000+i)
			if left == nil {
				next = describe(Ref{}, fmt.Sprint(i), value)[1:]
			}
			require.NoError(t, l.append(fmt.Sprint(i), value))
			switch i % 10 {
			case 5:
				require.NoError(t, l.drop())
			case 8:
				require.NoError(t, l.Close())
				l.mustOpen(t)
			}
		}
		require.NoError(t, l.Close())
		if left == nil {
			require.Greater(t, at, 60)
			break
		}
		after := &testLog{fs: left}
		require.NoError(t, after.open(), "change %d", at)
		found := after.found
		if len(after.All()) > 0 && after.All()[0] > 1 { // a segment was being dropped
			records = withoutSegment(records, after.All()[0]-1)
		}
		if n := len(found); n > len(records) {
			require.Len(t, found, len(records)+1)
			require.True(t, strings.HasSuffix(found[n-1], next), "%s is not %s", found[n-1], next)
			records = append(records, found[n-1])
		}
		require.Equal(t, len(records), len(found), "change %d", at)
		require.Truef(t, slices.Equal(records, found), "%v, %v", records, found)
		if after.Torn().Bytes > 0 {
			torn++
		}
		after.records = found
		require.NoError(t, after.append("next", "record"))
		require.NoError(t, after.Close())
		after.mustOpen(t)
		require.NoError(t, after.Close())
	}
	require.Positive(t, torn)
}

// TestLogDamaged: a changed bit is damage if a record follows. In the last record it cannot be
// distinguished from unsynced data.
func TestLogDamaged(t *testing.T) {
	rng := seeds.Rand(t)
	mem := logFS(t, vfs.NewMem())
	l := &testLog{fs: mem}
	l.mustOpen(t)
	for i := range 200 {
		require.NoError(t, l.append(fmt.Sprint("key ", i), strings.Repeat(fmt.Sprint(i), 40)))
	}
	last, end := l.Active(), l.End(l.Active())
	lastOffset := end
	for offset := uint64(0); offset < end; {
		lastOffset = offset
		_, r, _, err := l.Next(last, offset)
		require.NoError(t, err)
		offset += uint64(r.Length)
	}
	require.NoError(t, l.Close())
	require.Greater(t, last, uint32(1))
	require.Positive(t, lastOffset)
	for range 400 {
		number := 1 + rng.Uint32N(last)
		name := "log/" + fileName(number)
		info, err := mem.Stat(name)
		require.NoError(t, err)
		at := rng.Int64N(info.Size())
		flip(t, mem, name, at, byte(1<<rng.IntN(8)))
		damaged := &testLog{fs: mem}
		err = damaged.open()
		if number < last || uint64(at) < lastOffset {
			require.ErrorIs(t, err, ErrDamaged, "%s at %d", name, at)
			require.ErrorContains(t, err, "file "+name+", record at ")
		} else {
			require.NoError(t, err)
			require.Equal(t, l.records[:len(l.records)-1], damaged.found)
			require.Equal(t, name, damaged.Torn().File)
			require.NoError(t, damaged.Close())
		}
		restore(t, mem, name)
	}
	for at := range int64(len("SEGLOG1") + saltBytes + len("label") + 4) {
		flip(t, mem, "log/LABEL", at, 1)
		require.ErrorIs(t, l.open(), ErrDamaged)
		restore(t, mem, "log/LABEL")
	}
	_, err := OpenLog(LogOptions{Options: Options{FS: mem, Dir: "log"}, Label: []byte("lobel")}, nil)
	require.ErrorIs(t, err, ErrLabel)
	require.NoError(t, mem.Remove("log/000002.seg"))
	err = l.open()
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "file log/000002.seg is missing")
	require.NoError(t, mem.Remove("log/LABEL"))
	require.ErrorIs(t, l.open(), ErrDamaged)
}

// TestLogForged: bytes that a client puts into a value are never accepted as a record, even if they
// were one at the same location in another log.
func TestLogForged(t *testing.T) {
	other := &testLog{fs: logFS(t, vfs.NewMem())}
	other.mustOpen(t)
	l := &testLog{fs: logFS(t, vfs.NewMem())}
	l.mustOpen(t)
	for _, l := range []*testLog{l, other} {
		require.NoError(t, l.append("a", "first"))
	}
	for _, key := range []string{"b", "c", "d"} {
		require.NoError(t, other.append(key, "value"))
	}
	file, err := other.fs.Open("log/000001.seg")
	require.NoError(t, err)
	whole, err := io.ReadAll(file)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	x := l.End(1)
	// Each record of the other log keeps its location.
	require.NoError(t, l.append("x", string(whole[x+headBytes+1:])))
	require.NoError(t, l.Close())
	flip(t, l.fs, "log/000001.seg", int64(x)+3, 1)
	l.records = l.records[:1]
	l.mustOpen(t)
	require.Positive(t, l.Torn().Bytes)
	require.NoError(t, l.Close())
}

// TestLogFaults: after a failed change, nothing is appended until the log is opened again, with all
// records whose Sync had returned.
func TestLogFaults(t *testing.T) {
	for n := 1; ; n++ {
		mem := logFS(t, vfs.NewMem())
		changes, armed := 0, false
		l := &testLog{fs: errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if armed && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose {
				if changes++; changes == n {
					return errorfs.ErrInjected
				}
			}
			return nil
		}))}
		l.mustOpen(t)
		armed = true
		var failed error
		for i := 0; i < 15 && failed == nil; i++ {
			failed = l.append(fmt.Sprint(i), strings.Repeat("x", 900))
		}
		if changes < n {
			require.NoError(t, failed)
			require.Greater(t, n, 30)
			return
		}
		require.ErrorIs(t, failed, errorfs.ErrInjected)
		require.ErrorIs(t, l.append("next", ""), errorfs.ErrInjected)
		require.NoError(t, l.Close())
		require.NoError(t, l.open())
		require.GreaterOrEqual(t, len(l.found), len(l.records))
		require.LessOrEqual(t, len(l.found), len(l.records)+1)
		require.Truef(t, slices.Equal(l.records, l.found[:len(l.records)]), "%v, %v", l.records, l.found)
		l.records = l.found
		require.NoError(t, l.append("next", ""))
		require.NoError(t, l.Close())
		l.mustOpen(t)
		require.NoError(t, l.Close())
	}
}

// FuzzLog: with any contents of the last segment, opening a log terminates, and finds the records
// of a prefix.
func FuzzLog(f *testing.F) {
	mem := logFS(f, vfs.NewMem())
	l := &testLog{fs: mem}
	l.mustOpen(f)
	for i := range 3 {
		require.NoError(f, l.append(fmt.Sprint(i), "value"))
	}
	require.NoError(f, l.Close())
	file, err := mem.Open("log/000001.seg")
	require.NoError(f, err)
	whole, err := io.ReadAll(file)
	require.NoError(f, err)
	require.NoError(f, file.Close())
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(whole[20:])
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := mem.Create("log/000001.seg", vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = file.Write(slices.Clone(b))
		require.NoError(t, err)
		require.NoError(t, file.Close())
		again := &testLog{fs: mem}
		if err := again.open(); err != nil {
			require.ErrorIs(t, err, ErrDamaged)
			return
		}
		for i, r := range again.found {
			require.Equal(t, fmt.Sprintf("1 %d=value", i), r)
		}
		require.NoError(t, again.Close())
	})
}
