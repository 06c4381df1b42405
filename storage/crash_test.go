package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

// resum renews the checksum of an encoded meta that was altered on purpose.
func resum(b []byte) []byte {
	body := b[:len(b)-4]
	return binary.BigEndian.AppendUint32(slices.Clone(body), crc32.Checksum(body, castagnoli))
}

// crashFS copies a crashable file system as a crash would leave it, just before its n-th change. Some of what was not synced
// survives, some does not.
type crashFS struct {
	vfs.FS
	changes atomic.Int64
	crash   struct {
		sync.Once
		left *vfs.MemFS
		at   int // value of progress at the crash
	}
	progress atomic.Int64 // maintained by the test
}

func newCrashFS(rng *rand.Rand, n int64) *crashFS {
	mem := vfs.NewCrashableMem()
	c := &crashFS{}
	cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}
	c.FS = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || c.changes.Add(1) < n {
			return nil
		}
		c.crash.Do(func() {
			c.crash.at = int(c.progress.Load())
			c.crash.left = mem.CrashClone(cfg)
		})
		return nil
	}))
	return c
}

// changesOf counts the changes that run makes to the file system.
func changesOf(t *testing.T, run func(*crashFS)) int64 {
	t.Helper()
	c := newCrashFS(newRNG(t, 0), 1<<60)
	run(c)
	return c.changes.Load()
}

// After a crash at any point, the state is the one of the last Write that returned, or of the one in flight.
func TestCrashDuringWrites(t *testing.T) {
	const crashes, blocks = 60, 40
	history := []model{emptyModel()}
	var batches []Batch
	rng := newRNG(t, 1)
	for height := int64(1); height <= blocks; height++ {
		b := randomBatch(rng, history[height-1], height)
		batches = append(batches, b)
		history = append(history, history[height-1].apply(b))
	}
	run := func(c *crashFS) {
		s, err := Open("zone", Options{FS: c, memTableBytes: smallMemTable})
		require.NoError(t, err)
		for i, b := range batches {
			require.NoError(t, s.Write(b))
			c.progress.Store(int64(i + 1))
		}
		require.NoError(t, s.Close())
	}
	total := changesOf(t, run)
	for seed := range uint64(crashes) {
		rng := newRNG(t, seed)
		point := 1 + rng.Int64N(total)
		c := newCrashFS(rng, point)
		run(c)
		if c.crash.left == nil {
			continue // fewer changes this time: background work is not the same each time
		}
		s := open(t, c.crash.left)
		got := read(t, s)
		require.Contains(t, []int64{int64(c.crash.at), int64(c.crash.at) + 1}, got.meta.Height, "seed %d, change %d", seed, point)
		history[got.meta.Height].requireIn(t, s)
		next := Batch{Meta: testMeta(blocks + 1)} // and goes on from there
		require.NoError(t, s.Write(next))
		require.NoError(t, s.Close())
		history[got.meta.Height].apply(next).requireIn(t, open(t, c.crash.left))
	}
}

// After a crash at any point of a restore, the zone holds the old state, nothing, or the restored state.
func TestCrashDuringRestore(t *testing.T) {
	const crashes = 40
	old := emptyModel().apply(Batch{Meta: testMeta(3), Puts: []Leaf{{Key: []byte("old"), Value: []byte("1")}}})
	restored := emptyModel()
	restored.meta = testMeta(9)
	restored.meta.Restored = true
	for i := range 400 {
		restored.leaves[fmt.Sprintf("%04d", i)] = strings.Repeat("x", 500)
	}
	const began, written, committed = 1, 2, 3
	run := func(c *crashFS) {
		s, err := Open("zone", Options{FS: c, memTableBytes: smallMemTable})
		require.NoError(t, err)
		require.NoError(t, s.Write(Batch{Meta: old.meta, Puts: old.list()}))
		c.progress.Store(began)
		r, err := s.BeginRestore()
		require.NoError(t, err)
		c.progress.Store(written)
		for piece := range slices.Chunk(restored.list(), 10) {
			require.NoError(t, r.Add(slices.Values(piece)))
		}
		require.NoError(t, r.Commit(restored.meta))
		c.progress.Store(committed)
		require.NoError(t, s.Close())
	}
	total := changesOf(t, run)
	seen := map[int64]int{}
	for seed := range uint64(crashes) {
		rng := newRNG(t, 100+seed)
		c := newCrashFS(rng, 1+rng.Int64N(total))
		run(c)
		if c.crash.left == nil {
			continue
		}
		s := open(t, c.crash.left)
		got := read(t, s)
		seen[got.meta.Height]++
		allowed := map[int][]model{
			0: {emptyModel(), old}, began: {old, emptyModel()}, written: {emptyModel(), restored}, committed: {restored},
		}[c.crash.at]
		require.Contains(t, allowed, got, "seed %d", 100+seed)
	}
	t.Logf("height found after the crash -> times: %v", seen)
}

// When the log cannot be written, the process is told to end, the failed block was not confirmed, and the confirmed ones are
// there afterwards.
func TestDiskFailureIsFatal(t *testing.T) {
	for name, kinds := range map[string][]errorfs.OpKind{
		"write": {errorfs.OpFileWrite},
		"sync":  {errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo},
	} {
		t.Run(name, func(t *testing.T) {
			var broken atomic.Bool
			mem := vfs.NewCrashableMem()
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if broken.Load() && slices.Contains(kinds, op.Kind) && strings.HasSuffix(op.Path, ".log") {
					return errors.New("no space left on device")
				}
				return nil
			}))
			log := &recorder{}
			// Fatal ends the goroutine here, where a real one ends the process. The database stays open, as in a killed one.
			s, err := Open("zone", Options{FS: fs, Logger: log, Fatal: func(err error) { panic(err) }})
			require.NoError(t, err)
			m := emptyModel()
			for height := int64(1); height <= 3; height++ {
				b := Batch{Meta: testMeta(height), Puts: []Leaf{{Key: []byte{byte(height)}, Value: []byte("x")}}}
				require.NoError(t, s.Write(b))
				m = m.apply(b)
			}
			broken.Store(true)
			last := Batch{Meta: testMeta(4), Puts: []Leaf{{Key: []byte{4}, Value: []byte("x")}}}
			confirmed, failure := write(s, last)
			require.False(t, confirmed)
			require.ErrorContains(t, failure, "zone")
			require.ErrorContains(t, failure, "check the disk")
			require.NotEmpty(t, log.errors())

			after := open(t, mem.CrashClone(vfs.CrashCloneCfg{}))
			require.Contains(t, []model{m, m.apply(last)}, read(t, after))
		})
	}
}

func write(s *State, b Batch) (confirmed bool, failure error) {
	defer func() {
		if r := recover(); r != nil {
			failure = r.(error)
		}
	}()
	err := s.Write(b)
	return err == nil, err
}

type recorder struct {
	nopLogger
	mu  sync.Mutex
	got []string
}

func (r *recorder) Error(msg string, keyvals ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, fmt.Sprint(append([]any{msg}, keyvals...)...))
}

func (r *recorder) errors() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got
}
