package blocks

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/storage/sgc"
)

const benchPart = 64 << 10

// benchBlock writes a block of four parts, and of small values as in CometBFT's index. Parts whose
// keys do not begin like CometBFT's stay in Pebble.
func benchBlock(tb testing.TB, z *Zone, prefix string, height int, noise *rand.ChaCha8) {
	value := make([]byte, benchPart)
	b := z.DB(partsID).NewBatch()
	for i := range 4 {
		_, _ = noise.Read(value)
		require.NoError(tb, b.Set(fmt.Appendf(nil, "%s:%d:%d", prefix, height, i), value))
	}
	require.NoError(tb, b.Set(fmt.Appendf(nil, "H:%d", height), value[:500]))
	require.NoError(tb, b.WriteSync())
}

// cpu returns the CPU time of the process in seconds.
func cpu(tb testing.TB) float64 {
	var u syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// BenchmarkParts compares parts in Pebble with parts in segments: writing 300 blocks of four parts,
// including the resulting compactions, and reading them.
func BenchmarkParts(b *testing.B) {
	const heights = 300
	for _, where := range []struct{ name, prefix string }{{"pebble", "Q"}, {"segments", "P"}} {
		open := func(b *testing.B) *Zone {
			z, err := Open(b.TempDir(), Options{FS: vfs.Default, MemTableBytes: 4 << 20, Cache: sgc.New(4 << 20)})
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, z.Close()) })
			return z
		}
		b.Run("write/"+where.name, func(b *testing.B) {
			noise := rand.NewChaCha8([32]byte{1})
			for b.Loop() {
				z, before := open(b), cpu(b)
				for height := range heights {
					benchBlock(b, z, where.prefix, height, noise)
				}
				b.ReportMetric((cpu(b)-before)/heights*1e3, "cpu-ms/block")
				b.ReportMetric(z.Metrics().WriteAmp, "amplification")
			}
		})
		b.Run("read/"+where.name, func(b *testing.B) {
			z, noise, rng := open(b), rand.NewChaCha8([32]byte{1}), rand.New(rand.NewPCG(1, 1))
			for height := range heights {
				benchBlock(b, z, where.prefix, height, noise)
			}
			runtime.GC()
			before, n := cpu(b), 0
			b.ReportAllocs()
			for b.Loop() {
				value, err := z.DB(partsID).Get(fmt.Appendf(nil, "%s:%d:%d", where.prefix, rng.IntN(heights), rng.IntN(4)))
				require.NoError(b, err)
				require.Len(b, value, benchPart)
				n++
			}
			b.ReportMetric((cpu(b)-before)/float64(n)*1e6, "cpu-us/op")
		})
	}
}
