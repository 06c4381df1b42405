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

type benchRun struct {
	id      RunID
	height  uint8
	records []byte
}

// benchRuns returns n runs, in total a million leaves with keys of 20 bytes and values of 100.
func benchRuns(n int) (runs []benchRun) {
	const leaves = 1_000_000
	rng := newRNG(1)
	keys := make([][]byte, leaves)
	for i := range keys {
		keys[i] = randomBytes(rng, 20)
	}
	slices.SortFunc(keys, slices.Compare)
	for keys := range slices.Chunk(keys, (leaves+n-1)/n) {
		run := benchRun{id: RunID(fmt.Sprintf("%x", keys[0])), height: 7}
		for i, key := range keys {
			run.records = record.Append(run.records, record.Leaf{Key: key, Value: randomBytes(rng, 100), Height: uint8(1 + i%20)})
		}
		runs = append(runs, run)
	}
	return runs
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, 0, n+7)
	for len(b) < n {
		b = binary.BigEndian.AppendUint64(b, rng.Uint64())
	}
	return b[:n]
}

// cpu is the CPU time of this process.
type cpu struct{ user, system time.Duration }

func cpuNow(tb testing.TB) cpu {
	var u syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return cpu{time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())}
}

// BenchmarkRestore adds a million leaves from two goroutines, commits them, and waits until they
// are settled: once as 190 runs, about as long as chunks, and once as short ones.
func BenchmarkRestore(b *testing.B) {
	for _, n := range []int{190, 25_000} {
		b.Run(fmt.Sprint("runs=", n), func(b *testing.B) { benchRestore(b, benchRuns(n)) })
	}
}

func benchRestore(b *testing.B, runs []benchRun) {
	var add, commit, settle time.Duration
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
		committed := time.Now()
		<-s.Settled()
		after := cpuNow(b)
		b.StopTimer()
		add, commit, settle = add+added.Sub(began), commit+committed.Sub(added), settle+time.Since(committed)
		used.user, used.system = used.user+after.user-before.user, used.system+after.system-before.system
		require.NoError(b, s.Close())
		// The next round writes to memory that the system already has. (Removing the files would
		// slow down the creation of new ones on ext4.)
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
	b.ReportMetric(settle.Seconds()/n, "settle-s/op")
	b.ReportMetric(used.user.Seconds()/n, "user-s/op")
	b.ReportMetric(used.system.Seconds()/n, "system-s/op")
}

func benchAdd(b *testing.B, r *Restore, runs iter.Seq[benchRun]) {
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
				if err := r.Add(run.id, run.height, run.records); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
