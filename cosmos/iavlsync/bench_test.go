package iavlsync_test

import (
	"crypto/sha256"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
)

// BenchmarkVerifyChunk verifies chunks with keys of 20 bytes and values of 100 bytes.
func BenchmarkVerifyChunk(b *testing.B) {
	tree := &iavlsynctest.Tree{}
	for i := range 20_000 {
		if i%1000 == 0 {
			tree.Save()
		}
		key := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		tree.Set(key[:20], make([]byte, 100))
	}
	tree.Save()
	var images []*iavlsync.Image
	var chunks [][]byte
	bytes := 0
	for _, n := range tree.Root.Chunks(8192) {
		images, chunks = append(images, imageOf(n)), append(chunks, n.Chunk())
		bytes += len(chunks[len(chunks)-1])
	}
	b.ReportAllocs()
	for b.Loop() {
		for i, c := range chunks {
			_, err := iavlsync.VerifyChunk(images[i], c)
			require.NoError(b, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/20_000, "ns/leaf")
	b.ReportMetric(float64(bytes)/20_000-120, "overhead-bytes/leaf")
}
