//go:build unix

package storage

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// BenchmarkPageOverLevels reads pages of 25 leaves of a state whose latest blocks are in several
// levels of the LSM tree, each block with 1,000 puts and 300 changes of only the height. It reports
// CPU time, which depends less on other load than wall time.
func BenchmarkPageOverLevels(b *testing.B) {
	const keys, blocks, perFlush, leaves = 1_000_000, 120, 2, 25
	key := func(n uint64) []byte {
		return binary.BigEndian.AppendUint64(make([]byte, 12, 20), n*0x9E3779B97F4A7C15)
	}
	var all [][]byte
	for n := range uint64(keys) {
		all = append(all, key(n))
	}
	rng := newRNG(1)
	s := benchRestored(b, Options{CacheBytes: 256 << 20, FlushBlocks: perFlush, Generations: true}, all, rng)
	for height := int64(2); height < 2+blocks; height++ {
		block := Block{Meta: testMeta(height)}
		var heights []keyHeight
		for range 1000 {
			k := all[rng.IntN(keys)]
			block.Puts = append(block.Puts, record.Leaf{Key: k, Value: randomBytes(rng, 100)})
			heights = append(heights, keyHeight{k, 3})
		}
		for range 300 {
			heights = append(heights, keyHeight{all[rng.IntN(keys)], 2})
		}
		ownerOf(&block).heights = each(heights...)
		require.NoError(b, s.Write(block))
		if height%perFlush == 0 {
			require.NoError(b, s.Flush())
			s.Trim(height, nil)
		}
	}
	require.NoError(b, s.Flush())
	for s.db.Metrics().Compact.NumInProgress > 0 {
		runtime.Gosched()
	}
	size := leaves * record.Bytes(20, 100)
	before := cpuTime(b)
	for b.Loop() {
		at := rng.IntN(keys - leaves - 1)
		if err := s.Page(all[at], all[at+leaves], size, func([]byte) bool { return true }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
	m := s.Metrics()
	shape := ""
	for i, l := range s.Levels() {
		if l.Tables > 0 {
			shape += fmt.Sprintf(" L%d: %d", i, l.Tables)
		}
	}
	b.Logf("tables:%s; written %d MB, compacted %d MB, on disk %d MB", shape, m.WrittenBytes>>20, m.CompactionBytes>>20, m.DiskBytes>>20)
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
