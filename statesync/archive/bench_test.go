package archive

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// benchSource has keys of 20 bytes and values of 100 bytes, either random or text.
func benchSource(b *testing.B, text bool) source {
	b.Helper()
	random := rand.New(rand.NewPCG(1, 0))
	v, err := avlstar.Empty(avlstar.DefaultChunkBytes)
	require.NoError(b, err)
	changes := make([]avlstar.Change, 200_000)
	for i := range changes {
		key, value := make([]byte, 20), make([]byte, 0, 108)
		binary.BigEndian.PutUint64(key, random.Uint64())
		for len(value) < 100 {
			if text {
				value = fmt.Appendf(value, `{"balance":%d}`, random.IntN(1000))
			} else {
				value = binary.BigEndian.AppendUint64(value, random.Uint64())
			}
		}
		changes[i] = avlstar.Change{Key: key, Value: value[:100]}
	}
	next, err := v.Apply(changes)
	require.NoError(b, err)
	v.Release()
	b.Cleanup(next.Release)
	return source{v: next}
}

func BenchmarkArchive(b *testing.B) {
	for name, text := range map[string]bool{"random": false, "text": true} {
		src := benchSource(b, text)
		file := written(b, src, 0)
		b.Run(name+"/write", func(b *testing.B) {
			b.SetBytes(int64(src.v.Root().Bytes))
			for b.Loop() {
				_, err := Write(b.Context(), io.Discard, src, Options{ChainID: testChain})
				require.NoError(b, err)
			}
			b.ReportMetric(float64(src.v.Root().Bytes)/float64(len(file)), "ratio")
		})
		b.Run(name+"/unpack", func(b *testing.B) {
			b.SetBytes(int64(src.v.Root().Bytes))
			for b.Loop() {
				r, err := Open(bytes.NewReader(file), int64(len(file)))
				require.NoError(b, err)
				c, err := r.Verify(src.v.AppHash())
				require.NoError(b, err)
				for chunk, err := range c.Chunks() {
					require.NoError(b, err)
					_, err := chunk.Data()
					require.NoError(b, err)
				}
			}
		})
	}
}
