//go:build unix

package avlstar

import (
	"math"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkMultiproofs runs blocks of 1,000 transfers (RainBlock, section 8.4: nine tenths of them
// concern a tenth of the accounts) on a validator with the upper tree to depth 12, a window of 32
// blocks, and multiproofs of the version before each block. In steady state it reports bytes per
// transfer and CPU time per transfer, which depends less on other load than elapsed time does. The
// phases are: make the multiproof, decode it, graft it, apply the block, shed, and apply the block
// in a full tree.
func BenchmarkMultiproofs(b *testing.B) {
	const depth, window, transfers = 12, 32, 1000
	full := benchVersion(b)
	r := multiproofReceiver{depth: depth}
	r.start(b, full)
	r.p.EnableRetention(Retention{Depth: depth, Window: window})
	rnd := rand.New(rand.NewPCG(1, 2))
	account := func() uint64 {
		if rnd.IntN(10) > 0 {
			return rnd.Uint64N(100_000)
		}
		return rnd.Uint64N(1_000_000)
	}
	x, blocks := uint64(0), 0
	var bytes, leaves int
	var spent [6]time.Duration // time of each of phases
	phases := [len(spent)]string{"make", "decode", "graft", "apply", "shed", "local"}
	block := func(count bool) {
		var changes []Change
		for range 2 * transfers {
			x++
			changes = append(changes, Change{benchKey(account()), benchValue(x)})
		}
		changes = uniqueKeys(changes)
		held := r.missing(changes)
		phase, began := 0, cpuTime(b)
		end := func() {
			now := cpuTime(b)
			if count {
				spent[phase] += now - began
			}
			phase, began = phase+1, now
		}
		encoded, err := full.Multiproof(wantsOf(changes), Below{Depth: math.MaxInt, Held: held})
		end()
		multiproof := mustDecodeMultiproof(b, encoded, err)
		end()
		r.graft(b, multiproof)
		end()
		next, err := r.p.Apply(changes)
		require.NoError(b, err)
		r.p.Release()
		r.p = next
		end()
		r.shed(b)
		end()
		full = advance(b, full, changes...)
		end()
		if count {
			blocks++
			bytes, leaves = bytes+len(encoded), leaves+multiproof.Leaves()
		}
	}
	for range 2 * window {
		block(false)
	}
	for b.Loop() {
		block(true)
	}
	each := float64(blocks * transfers)
	b.ReportMetric(float64(bytes)/each, "B/tx")
	b.ReportMetric(float64(leaves)/each, "leaves/tx")
	for i, name := range phases {
		b.ReportMetric(float64(spent[i].Nanoseconds())/each, name+"-ns/tx")
	}
	m := r.p.v.Memory()
	b.ReportMetric(float64(m.InnerNodes+m.Leaves), "nodes")
}

// cpuTime returns the CPU time of the process so far.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// missing returns the stubs on the paths to changes.
func (r *multiproofReceiver) missing(changes []Change) map[Hash]Span {
	held := map[Hash]Span{}
	for _, c := range changes {
		if s, n := r.p.v.locate(c.Key, false); n == 0 {
			held[s.Hash] = Span{}
		}
	}
	return held
}
