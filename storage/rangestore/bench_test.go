package rangestore

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// BenchmarkReplay replays and commits blocks of 1,000 changes of random keys, half of all, in a
// range of 200,000 keys, with a memory of a quarter of what the range takes in memory. It reports
// the keys replayed in a second, compared with a range in memory; the pages read for each; and the
// bytes written to disk for each byte of changed keys and values.
func BenchmarkReplay(b *testing.B) {
	const keys, perBlock = 400_000, 2000
	hashed := func(i uint64) []byte {
		h := sha256.Sum256(binary.BigEndian.AppendUint64(nil, i))
		return h[:20]
	}
	r := avlstar.KeyRange{First: []byte{0x40}, After: []byte{0xc0}}
	rng := rand.New(rand.NewPCG(1, 2))
	block := func(n int, random bool) (changes []avlstar.Change) {
		for i := range n {
			x := uint64(i)
			if random {
				x = rng.Uint64N(keys)
			}
			value := make([]byte, 60)
			binary.BigEndian.PutUint64(value, rng.Uint64())
			changes = append(changes, avlstar.Change{Key: hashed(x), Value: value})
		}
		slices.SortFunc(changes, func(a, b avlstar.Change) int { return slices.Compare(a.Key, b.Key) })
		return slices.CompactFunc(changes, func(a, b avlstar.Change) bool { return slices.Equal(a.Key, b.Key) })
	}
	empty, err := avlstar.Empty(avlstar.DefaultChunkBytes)
	require.NoError(b, err)
	v, err := empty.Apply(block(keys, false))
	require.NoError(b, err)
	leaves := leavesOf(b, v.Leaves(), r)
	encoded, err := v.Boundary(r)
	require.NoError(b, err)
	boundary, err := avlstar.DecodeMultiproof(encoded)
	require.NoError(b, err)
	inMemory, err := avlstar.FromRange(v.Commitment(), r, boundary, values(leaves))
	require.NoError(b, err)
	m := inMemory.Memory()
	s := open(b, vfs.Default, b.TempDir(), r, NewMemory(int64(m.NodeBytes+m.LeafBytes)/4))
	require.NoError(b, s.Create(0, v.Commitment(), encoded, values(leaves)))
	require.NoError(b, s.Flush(b.Context()))
	height, p := load(b, s)

	var took, tookInMemory time.Duration
	var changed, changedBytes int
	written, reads := s.Metrics().WrittenBytes, s.Metrics().PageReads
	for b.Loop() {
		changes := block(perBlock, true)
		next, err := v.Apply(changes)
		require.NoError(b, err)
		u, err := next.UpdateOf(v, r, changes)
		require.NoError(b, err)
		v.Release()
		v = next
		began := time.Now()
		again, err := inMemory.Replay(r, u)
		tookInMemory += time.Since(began)
		require.NoError(b, err)
		inMemory.Release()
		inMemory = again
		began = time.Now()
		after, err := p.Replay(r, u)
		require.NoError(b, err)
		height++
		require.NoError(b, s.Commit(height, after, p, changesOf(u)))
		s.Trim(height, nil)
		took += time.Since(began)
		p.Release()
		p = after
		for _, c := range u.Changes {
			changed++
			changedBytes += len(c.Key) + len(c.Value)
		}
	}
	require.NoError(b, s.Flush(b.Context()))
	after := s.Metrics()
	b.ReportMetric(float64(changed)/took.Seconds(), "keys/s")
	b.ReportMetric(float64(changed)/tookInMemory.Seconds(), "keys/s-in-memory")
	b.ReportMetric(float64(after.PageReads-reads)/float64(changed), "pages/key")
	b.ReportMetric(float64(after.WrittenBytes-written)/float64(changedBytes), "written/changed")
	pm := p.Memory()
	b.ReportMetric(float64(pm.NodeBytes+pm.LeafBytes)/float64(m.NodeBytes+m.LeafBytes), "memory/in-memory")
	p.Release()
	inMemory.Release()
	v.Release()
	require.NoError(b, s.Close())
}
