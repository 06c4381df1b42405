package avlstar

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkReplay applies blocks of 1,000 changes of random keys, a tenth of them new, to a state
// of a million keys, and replays them in the replicas of 1 or 16 ranges, all with one processor.
// For each change it reports the time to apply it, to make the updates, to decode them, and to
// replay them, and the bytes of updates, of which seam-B are seams.
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
		seam, err := v.Seam(r)
		p, err := FromRange(v.Commitment(), r, mustDecodeBag(b, seam, err), full.Leaves(r))
		require.NoError(b, err)
		all, replicas = append(all, r), append(replicas, p)
	}
	full.Release()
	rnd := rand.New(rand.NewPCG(1, 2))
	x, changed, bytes, seams := uint64(0), 0, 0, 0
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
			bytes, seams = bytes+len(encoded), seams+len(u.Seam)
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
	b.ReportMetric(float64(seams)/float64(changed), "seam-B/change")
}
