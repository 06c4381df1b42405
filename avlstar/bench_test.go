package avlstar

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// benchVersion returns a state of a million keys of 20 bytes with values of 100.
func benchVersion(b *testing.B) *Version {
	b.Helper()
	v, err := Empty(DefaultChunkBytes)
	require.NoError(b, err)
	changes := make([]Change, 1_000_000)
	for i := range changes {
		changes[i] = Change{benchKey(uint64(i)), benchValue(0)}
	}
	return mustApply(b, v, changes...)
}

func benchKey(i uint64) []byte {
	key := make([]byte, 20)
	binary.BigEndian.PutUint64(key, i*0x9e3779b97f4a7c15) // spread over the key space
	return key
}

func benchValue(x uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 92), x) }

// BenchmarkApply applies a block of 1,000 changes of random keys, a tenth of them new. apply-µs is
// the median of Apply and Release alone.
func BenchmarkApply(b *testing.B) {
	v := benchVersion(b)
	rnd := rand.New(rand.NewPCG(1, 2))
	x := uint64(0)
	var took []time.Duration
	for b.Loop() {
		changes := make([]Change, 1000)
		for i := range changes {
			x++
			changes[i] = Change{benchKey(rnd.Uint64N(1_100_000)), benchValue(x)}
		}
		changes = uniqueKeys(changes)
		started := time.Now()
		next := mustApply(b, v, changes...)
		v.Release()
		took = append(took, time.Since(started))
		v = next
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "apply-µs")
	b.ReportMetric(float64(took[len(took)/10].Microseconds()), "apply-p10-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "apply-p99-µs")
}

// BenchmarkReleasedTogether makes 50 versions of 300,000 keys, 1,000 random changes each, and
// releases them together. It then makes 50 more, and releases each at once. longest-µs is the
// longest Apply of the latter, typical-µs their median.
func BenchmarkReleasedTogether(b *testing.B) {
	v := mustEmpty(b, DefaultChunkBytes)
	load := make([]Change, 300_000)
	for i := range load {
		load[i] = Change{benchKey(uint64(i)), benchValue(0)}
	}
	v = advance(b, v, load...)
	rnd := rand.New(rand.NewPCG(1, 2))
	x := uint64(0)
	block := func() []Change {
		changes := make([]Change, 1000)
		for i := range changes {
			x++
			changes[i] = Change{benchKey(rnd.Uint64N(300_000)), benchValue(x)}
		}
		return uniqueKeys(changes)
	}
	var longest, typical []time.Duration
	for b.Loop() {
		var versions []*Version
		for range 50 {
			next := mustApply(b, v, block()...)
			versions, v = append(versions, v), next
		}
		for _, old := range versions {
			old.Release()
		}
		var took []time.Duration
		for range 50 {
			changes := block()
			started := time.Now()
			next := mustApply(b, v, changes...)
			took = append(took, time.Since(started))
			v.Release()
			v = next
		}
		slices.Sort(took)
		longest, typical = append(longest, took[49]), append(typical, took[25])
	}
	slices.Sort(longest)
	slices.Sort(typical)
	b.ReportMetric(float64(longest[len(longest)/2].Microseconds()), "longest-µs")
	b.ReportMetric(float64(typical[len(typical)/2].Microseconds()), "typical-µs")
}

func uniqueKeys(changes []Change) (unique []Change) {
	seen := map[string]bool{}
	for _, c := range changes {
		if !seen[string(c.Key)] {
			seen[string(c.Key)] = true
			unique = append(unique, c)
		}
	}
	return unique
}

func BenchmarkFromLeaves(b *testing.B) {
	v := benchVersion(b)
	b.SetBytes(int64(v.Root().Bytes))
	for b.Loop() {
		_, err := FromLeaves(v.ChunkBytes(), v.Leaves())
		require.NoError(b, err)
	}
}

func BenchmarkVerifyChunks(b *testing.B) {
	v := benchVersion(b)
	m, chunks := v.Manifest(), encodeChunks(b, v)
	b.SetBytes(int64(v.Root().Bytes))
	for b.Loop() {
		for k, data := range chunks {
			_, err := m.VerifyChunk(uint32(k), data)
			require.NoError(b, err)
		}
	}
}

func BenchmarkEncodeChunks(b *testing.B) {
	v := benchVersion(b)
	b.SetBytes(int64(v.Root().Bytes))
	for b.Loop() {
		encodeChunks(b, v)
	}
}

func BenchmarkGet(b *testing.B) {
	v := benchVersion(b)
	runtime.GC()
	rnd := rand.New(rand.NewPCG(1, 2))
	for b.Loop() {
		_, _, _ = v.Get(benchKey(rnd.Uint64N(1_000_000)))
	}
}

// BenchmarkViewMany reads keys of a block one after another, and side by side.
func BenchmarkViewMany(b *testing.B) {
	v := benchVersion(b)
	runtime.GC()
	rnd := rand.New(rand.NewPCG(1, 2))
	keys, values := make([][]byte, 1<<16), make([][]byte, 1<<16)
	for i := range keys {
		keys[i] = benchKey(rnd.Uint64N(1_000_000))
	}
	const together = 256
	for name, read := range map[string]func(values, keys [][]byte) error{
		"one by one": func(values, keys [][]byte) (err error) {
			for i, key := range keys {
				values[i], _, err = v.View(key)
			}
			return err
		},
		"side by side": v.ViewMany,
	} {
		b.Run(name, func(b *testing.B) {
			at := 0
			for b.Loop() {
				require.NoError(b, read(values[at:at+together], keys[at:at+together]))
				at = (at + together) % len(keys)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*together), "ns/key")
		})
	}
}

// slicePages serves pages from the sorted leaves of a state. Reading costs nothing, so the
// benchmarks measure proving and grafting.
type slicePages struct{ leaves []Leaf }

func (p *slicePages) Page(s Subtree) (*Page, error) {
	at, _ := slices.BinarySearchFunc(p.leaves, s.First, func(l Leaf, key []byte) int { return bytes.Compare(l.Key, key) })
	records := make([]byte, 0, s.Bytes)
	for uint64(len(records)) < s.Bytes {
		records = record.Append(records, p.leaves[at])
		at++
	}
	return VerifyPage(s.Stub, records)
}

// BenchmarkApplyPaged does what BenchmarkApply does, with half as many changes, on a tree with only
// the nodes above pages in memory.
func BenchmarkApplyPaged(b *testing.B) {
	var p slicePages
	for l := range mustLeaves(b, benchVersion(b)) {
		p.leaves = append(p.leaves, l)
	}
	v, err := FromLeavesPaged(DefaultChunkBytes, Paging{Pages: &p, Budget: func() int64 { return 1 << 40 }}, withoutError(slices.Values(p.leaves)))
	require.NoError(b, err)
	m := v.Memory()
	b.ReportMetric(float64(m.NodeBytes+m.LeafBytes)/1e6, "MB")
	x := uint64(0)
	for b.Loop() {
		changes := make([]Change, 1000)
		for i := range changes {
			changes[i] = Change{benchKey(x % 1_000_000), benchValue(x)}
			x += 7919
		}
		next, err := v.Apply(changes)
		require.NoError(b, err)
		next.Release()
	}
}

func BenchmarkGetPaged(b *testing.B) {
	var p slicePages
	for l := range mustLeaves(b, benchVersion(b)) {
		p.leaves = append(p.leaves, l)
	}
	v, err := FromLeavesPaged(DefaultChunkBytes, Paging{Pages: &p}, withoutError(slices.Values(p.leaves)))
	require.NoError(b, err)
	x := uint64(0)
	for b.Loop() {
		if _, ok, err := v.View(benchKey(x % 1_000_000)); err != nil || !ok {
			b.Fatal("absent", err)
		}
		x += 7919
	}
}

func BenchmarkProve(b *testing.B) {
	v := benchVersion(b)
	runtime.GC()
	rnd := rand.New(rand.NewPCG(1, 2))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Prove(benchKey(rnd.Uint64N(1_000_000))); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFromPageList rebuilds the nodes above pages of a tree of two million keys.
func BenchmarkFromPageList(b *testing.B) {
	var changes []Change
	for i := range 2_000_000 {
		h := sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(i)))
		changes = append(changes, Change{h[:20], make([]byte, 100)})
	}
	v := mustApply(b, mustEmpty(b, DefaultChunkBytes), changes...)
	var stubs []PageStub
	for p := range v.PageList(nil) {
		stubs = append(stubs, p)
	}
	b.ReportAllocs()
	for b.Loop() {
		again, err := FromPageList(DefaultChunkBytes, v.Len(), Paging{}, func(yield func(PageStub, error) bool) {
			for _, p := range stubs {
				if !yield(p, nil) {
					return
				}
			}
		})
		require.NoError(b, err)
		again.Release()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(stubs)), "ns/page")
	b.ReportMetric(float64(len(stubs)), "pages")
}
