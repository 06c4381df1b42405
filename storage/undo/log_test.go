package undo

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

func mustOpen(t *testing.T, o Options) *Log {
	t.Helper()
	l, err := Open("data/undo", o)
	require.NoError(t, err)
	return l
}

// TestRecordsSurviveCrashes: what was synced is there with the value that was put last, what is
// there is what was put, and what is old goes.
func TestRecordsSurviveCrashes(t *testing.T) {
	rnd := seeds.Rand(t)
	fs := vfs.NewCrashableMem()
	require.NoError(t, fs.MkdirAll("data", 0o700))
	root, err := fs.OpenDir("")
	require.NoError(t, err)
	require.NoError(t, root.Sync())
	const keep = 3000
	put, synced := map[int64][]byte{}, map[int64][]byte{}
	next := int64(1)
	for range 30 {
		l := mustOpen(t, Options{FS: fs, KeepBlocks: keep, Slack: 10})
		for height, want := range synced {
			if height <= next-1-keep {
				continue
			}
			got, err := l.Get(height)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		next = max(1, next-rnd.Int64N(5)) // blocks are executed again
		for range rnd.IntN(400) {
			of := rand.New(rand.NewPCG(uint64(next), 1)) //nolint:gosec // a block executed again has the same record
			value := bytes.Repeat([]byte{byte(next)}, of.IntN(1<<of.IntN(16)))
			l.Put(next, value)
			put[next] = value
			next++
			if rnd.IntN(50) == 0 {
				l.Sync()
				for height, value := range put {
					synced[height] = value
				}
			}
		}
		for height := range put {
			got, err := l.Get(height)
			if height > next-1-keep || err == nil {
				require.NoError(t, err)
				require.Equal(t, put[height], got)
			}
			if height < next-1-keep-2*maxFileBlocks-500 {
				require.ErrorIs(t, err, ErrNone)
			}
		}
		if rnd.IntN(2) == 0 {
			left := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(101), RNG: rnd})
			require.NoError(t, l.Close())
			fs = left
			put = map[int64][]byte{}
			for height, value := range synced {
				put[height] = value
			}
			for next > 1 && synced[next-1] == nil {
				next--
			}
			continue
		}
		require.NoError(t, l.Close())
		for height, value := range put {
			synced[height] = value
		}
	}
}

// TestBytesAreLimited: the oldest records go first, and the newest file stays.
func TestBytesAreLimited(t *testing.T) {
	l := mustOpen(t, Options{FS: vfs.NewMem(), KeepBlocks: 1 << 20, KeepBytes: 10 << 20})
	for height := int64(1); height <= 100; height++ {
		l.Put(height, make([]byte, 1<<20))
		require.LessOrEqual(t, l.Bytes(), int64(15<<20))
	}
	_, err := l.Get(80)
	require.ErrorIs(t, err, ErrNone)
	for height := int64(95); height <= 100; height++ {
		_, err := l.Get(height)
		require.NoError(t, err)
	}
	require.NoError(t, l.Close())
}

// TestRecordsFromBeforeTheStateWentBack: higher heights of an earlier start are no reason to keep
// anything, and what is put again stands only once.
func TestRecordsFromBeforeTheStateWentBack(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{FS: fs, KeepBlocks: 100, Slack: 10}
	run := func(from, to int64, size int) {
		l := mustOpen(t, o)
		for height := from; height <= to; height++ {
			l.Put(height, make([]byte, size))
		}
		require.NoError(t, l.Close())
	}
	run(90_000, 90_100, 1<<10)
	run(80_000, 80_100, 1<<10)
	run(1, 20_000, 10)
	l := mustOpen(t, o)
	require.LessOrEqual(t, len(l.mu.files), 2)
	require.LessOrEqual(t, l.Bytes(), int64(2*maxFileBlocks*(headBytes+10)))
	require.NoError(t, l.Close())

	// a crash loop: each start goes as far
	for range 20 {
		run(19_990, 20_050, 10)
	}
	l = mustOpen(t, o)
	require.LessOrEqual(t, len(l.mu.files), 3)
	for height := int64(19_951); height <= 20_050; height++ {
		_, err := l.Get(height)
		require.NoError(t, err)
	}
	require.NoError(t, l.Close())
}

// TestWhatIsNotPutAgainStays: not all heights of the file are, and some are not far above.
func TestWhatIsNotPutAgainStays(t *testing.T) {
	o := Options{FS: vfs.NewMem(), KeepBlocks: 100, Slack: 10}
	for _, heights := range [][2]int64{{1, 50}, {45, 55}, {48, 48}} {
		l := mustOpen(t, o)
		for height := heights[0]; height <= heights[1]; height++ {
			l.Put(height, fmt.Append(nil, height))
		}
		require.NoError(t, l.Close())
	}
	l := mustOpen(t, o)
	for height := int64(1); height <= 55; height++ {
		value, err := l.Get(height)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(height), string(value))
	}
	require.NoError(t, l.Close())
}

// TestDamageIsFound: a record that was changed is not returned, wherever the damage is.
func TestDamageIsFound(t *testing.T) {
	rnd := seeds.Rand(t)
	fs := vfs.NewMem()
	l := mustOpen(t, Options{FS: fs, KeepBlocks: 100})
	value := func(height int64) []byte { return fmt.Appendf(nil, "record of %d", height) }
	for height := range int64(20) {
		l.Put(height+1, value(height+1))
	}
	require.NoError(t, l.Close())
	path := filepath.Join("data/undo", "00000001.undo")
	good := read(t, fs, path)
	for range 2000 {
		bad := bytes.Clone(good)
		switch rnd.IntN(3) {
		case 0:
			bad = bad[:rnd.IntN(len(bad))]
		default:
			bad[rnd.IntN(len(bad))] ^= 1 << rnd.IntN(8)
		}
		write(t, fs, path, bad)
		l := mustOpen(t, Options{FS: fs, KeepBlocks: 100})
		lost := 0
		for height := int64(1); height <= 20; height++ {
			got, err := l.Get(height)
			if err != nil {
				lost++
				continue
			}
			require.Equal(t, value(height), got)
		}
		require.Positive(t, lost)
		require.NoError(t, l.Close())
	}
}

func read(t *testing.T, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	require.NoError(t, err)
	info, err := f.Stat()
	require.NoError(t, err)
	b := make([]byte, info.Size())
	_, err = f.ReadAt(b, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return b
}

func write(t *testing.T, fs vfs.FS, path string, b []byte) {
	t.Helper()
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write(b)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// TestFullDiskIsSaidOnce: nothing waits and nothing fails where records cannot be written.
func TestFullDiskIsSaidOnce(t *testing.T) {
	var broken errorfs.Toggle
	broken.Injector = errorfs.ErrInjected.If(errorfs.Writes)
	logs := &counted{}
	l := mustOpen(t, Options{FS: errorfs.Wrap(vfs.NewMem(), &broken), KeepBlocks: 100, Logger: logs})
	l.Put(1, []byte("record"))
	broken.On()
	for height := int64(2); height < 10; height++ {
		l.Put(height, []byte("record"))
		l.Sync()
	}
	broken.Off()
	l.Put(10, []byte("record"))
	require.Equal(t, 1, logs.errors)
	_, err := l.Get(1)
	require.NoError(t, err)
	_, err = l.Get(10)
	require.ErrorIs(t, err, ErrNone)
	require.NoError(t, l.Close())
}

type counted struct{ errors int }

func (*counted) Info(string, ...any)    {}
func (c *counted) Error(string, ...any) { c.errors++ }

// TestConcurrentPuts: blocks are handed over by several goroutines, in any order.
func TestConcurrentPuts(t *testing.T) {
	l := mustOpen(t, Options{FS: vfs.NewMem(), KeepBlocks: 1000})
	var wg sync.WaitGroup
	order := rand.New(rand.NewPCG(1, 2)).Perm(500) //nolint:gosec // it is to be repeatable
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; i < len(order); i += 4 {
				l.Put(int64(order[i]+1), fmt.Appendf(nil, "%d", order[i]+1))
				l.Sync()
			}
		})
	}
	wg.Wait()
	for height := int64(1); height <= 500; height++ {
		got, err := l.Get(height)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(height), string(got))
	}
	require.NoError(t, l.Close())
}
