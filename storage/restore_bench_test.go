package storage

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// benchRuns returns a million leaves with keys of 20 bytes and values of 100 as 190 runs, about as
// long as chunks are.
func benchRuns() [][]record.Leaf {
	const leaves, runs = 1_000_000, 190
	rng := newRNG(1)
	keys := make([][]byte, leaves)
	for i := range keys {
		keys[i] = randomBytes(rng, 20)
	}
	slices.SortFunc(keys, slices.Compare)
	// the records of a chunk lie side by side
	data, all := make([]byte, 0, 120*leaves), make([]record.Leaf, leaves)
	for i, key := range keys {
		at := len(data)
		data = append(append(data, key...), randomBytes(rng, 100)...)
		all[i] = record.Leaf{Key: data[at : at+20 : at+20], Value: data[at+20 : at+120 : at+120], Height: uint8(1 + i%20)}
	}
	return slices.Collect(slices.Chunk(all, (leaves+runs-1)/runs))
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, 0, n+7)
	for len(b) < n {
		b = binary.BigEndian.AppendUint64(b, rng.Uint64())
	}
	return b[:n]
}

// cpu is what this process has used.
type cpu struct{ user, system time.Duration }

func cpuNow(tb testing.TB) cpu {
	var u syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return cpu{time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())}
}

// BenchmarkRestore adds a million leaves from two goroutines and commits them.
func BenchmarkRestore(b *testing.B) {
	runs := benchRuns()
	var add, commit time.Duration
	var used cpu
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		s, err := Open(dir, Options{})
		require.NoError(b, err)
		r, err := s.BeginRestore(nil)
		require.NoError(b, err)
		b.StartTimer()
		began, before := time.Now(), cpuNow(b)
		benchAdd(b, r, slices.Values(runs))
		added := time.Now()
		require.NoError(b, r.Commit(testMeta(1)))
		after := cpuNow(b)
		b.StopTimer()
		add, commit = add+added.Sub(began), commit+time.Since(added)
		used.user, used.system = used.user+after.user-before.user, used.system+after.system-before.system
		require.NoError(b, s.Close())
		// The next round writes to memory that the system has in hand. (Removed, the files would
		// slow down the making of new ones on ext4.)
		tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
		require.NoError(b, err)
		for _, table := range tables {
			require.NoError(b, os.Truncate(table, 0))
		}
		b.StartTimer()
	}
	n := float64(b.N)
	b.SetBytes(131 << 20)
	b.ReportMetric(add.Seconds()/n, "add-s/op")
	b.ReportMetric(commit.Seconds()/n, "commit-s/op")
	b.ReportMetric(used.user.Seconds()/n, "user-s/op")
	b.ReportMetric(used.system.Seconds()/n, "system-s/op")
}

func benchAdd(b *testing.B, r *Restore, runs iter.Seq[[]record.Leaf]) {
	next, stop := iter.Pull(runs)
	defer stop()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				mu.Lock()
				run, ok := next()
				mu.Unlock()
				if !ok {
					return
				}
				if err := r.Add(RunID(fmt.Sprintf("%x", run[0].Key)), slices.Values(run)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
