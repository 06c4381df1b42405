package avlstar

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// BenchmarkReplay applies blocks of 1,000 changes of random keys, a tenth of them new, to a state
// of a million keys, and replays them in the replicas of 1 or 16 ranges, all with one processor.
// For each change it reports the time to apply it, to make the updates, to decode them, and to
// replay them, the bytes of updates, and the bytes of boundary proofs in them.
func BenchmarkReplay(b *testing.B) {
	for _, ranges := range []int{1, 16} {
		b.Run(fmt.Sprintf("%d ranges", ranges), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			benchReplay(b, ranges)
		})
	}
}

func benchReplay(b *testing.B, ranges int) {
	v := benchVersion(b)
	edge := func(i int) []byte { return []byte{byte(i * 256 / ranges)} }
	var all []KeyRange
	var replicas []*Partial
	full, err := v.Prune(func(Subtree) bool { return false })
	require.NoError(b, err)
	for i := range ranges {
		r := KeyRange{First: edge(i), After: edge(i + 1)}
		if i == 0 {
			r.First = nil
		}
		if i == ranges-1 {
			r.After = nil
		}
		boundary, err := v.Boundary(r)
		p, err := FromRange(v.Commitment(), r, mustDecodeMultiproof(b, boundary, err), full.Leaves(r))
		require.NoError(b, err)
		all, replicas = append(all, r), append(replicas, p)
	}
	full.Release()
	rnd := rand.New(rand.NewPCG(1, 2))
	x, changed, bytes, boundaries := uint64(0), 0, 0, 0
	var applied, made, decoded, replayed time.Duration
	since := func(sum *time.Duration, began time.Time) { *sum += time.Since(began) }
	for b.Loop() {
		changes := make([]Change, 1000)
		for i := range changes {
			x++
			changes[i] = Change{benchKey(rnd.Uint64N(1_100_000)), benchValue(x)}
		}
		changes = uniqueKeys(changes)
		changed += len(changes)
		began := time.Now()
		next := mustApply(b, v, changes...)
		since(&applied, began)
		for i, r := range all {
			began = time.Now()
			u, err := next.UpdateOf(v, r, changes)
			encoded := u.Encode()
			since(&made, began)
			require.NoError(b, err)
			bytes, boundaries = bytes+len(encoded), boundaries+len(u.Boundary)
			began = time.Now()
			u, err = DecodeUpdate(encoded)
			since(&decoded, began)
			require.NoError(b, err)
			began = time.Now()
			p, err := replicas[i].Replay(r, u)
			require.NoError(b, err)
			replicas[i].Release()
			since(&replayed, began)
			replicas[i] = p
		}
		v.Release()
		v = next
	}
	for name, d := range map[string]time.Duration{"apply": applied, "update": made, "decode": decoded, "replay": replayed} {
		b.ReportMetric(float64(d.Nanoseconds())/float64(changed), name+"-ns/change")
	}
	b.ReportMetric(float64(bytes)/float64(changed), "B/change")
	b.ReportMetric(float64(boundaries)/float64(changed), "boundary proof-B/change")
}

// replicaPages reads pages from a replica of the same state in memory.
type replicaPages struct {
	p     *Partial
	reads atomic.Int64
}

func (d *replicaPages) Page(s Subtree) (*Page, error) {
	d.reads.Add(1)
	var records []byte
	for l, err := range d.p.Leaves(KeyRange{First: s.First, After: s.After}) {
		if err != nil || uint64(len(records)) >= s.Bytes {
			break
		}
		records = record.Append(records, l)
	}
	return VerifyPage(s.Stub, records)
}

// BenchmarkPagedReplay replays blocks in a replica of a quarter of a million keys in memory, and in
// a paged one whose budget is a quarter of that, with one processor. Pages are read from memory and
// verified, so it shows the cost of paging without that of the disk. For each change in the range
// it reports the time to replay it and the pages that were read.
func BenchmarkPagedReplay(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	v := benchVersion(b)
	r := KeyRange{First: []byte{0x40}, After: []byte{0x80}}
	inMemory := mustReplica(b, v, r)
	budget := inMemory.v.tree.resident() / 4
	boundary, err := v.Boundary(r)
	d := &replicaPages{p: inMemory}
	paged, err := FromRangePaged(v.Commitment(), r, mustDecodeMultiproof(b, boundary, err), Paging{Pages: d, Budget: func() int64 { return budget }},
		inMemory.Leaves(r))
	require.NoError(b, err)
	rnd := rand.New(rand.NewPCG(1, 2))
	var x uint64
	var changed int
	var took [2]time.Duration
	for b.Loop() {
		changes := make([]Change, 4000)
		for i := range changes {
			x++
			changes[i] = Change{benchKey(rnd.Uint64N(1_100_000)), benchValue(x)}
		}
		next := mustApply(b, v, uniqueKeys(changes)...)
		u, err := next.UpdateOf(v, r, uniqueKeys(changes))
		require.NoError(b, err)
		v.Release()
		v = next
		changed += len(u.Changes)
		for i, p := range []**Partial{&paged, &inMemory} { // pages are those before the block
			began := time.Now()
			after, err := (*p).Replay(r, u)
			took[i] += time.Since(began)
			require.NoError(b, err)
			(*p).Release()
			*p = after
		}
		d.p = inMemory
		paged.v.Stored()
	}
	b.ReportMetric(float64(took[0].Nanoseconds())/float64(changed), "paged-ns/change")
	b.ReportMetric(float64(took[1].Nanoseconds())/float64(changed), "in-memory-ns/change")
	b.ReportMetric(float64(d.reads.Load())/float64(changed), "pages/change")
	b.ReportMetric(float64(paged.v.tree.resident())/float64(budget), "memory/budget")
}
