package avlstar

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkBags runs blocks of 1,000 transfers (RainBlock, section 6: nine tenths are of a tenth of
// the accounts) at a validator with the upper tree to depth 12, a window of 32 blocks, and bags of
// the version before each block. In steady state it reports bytes a transfer, what a path of full
// images would take, and CPU a transfer: to make the bag, to decode and graft it, to apply the
// block here and in a tree that has everything.
func BenchmarkBags(b *testing.B) {
	const depth, window, transfers = 12, 32, 1000
	full := benchVersion(b)
	r := bagReceiver{depth: depth}
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
	var made, taken, applied, local time.Duration
	block := func(count bool) {
		var changes []Change
		for range 2 * transfers {
			x++
			changes = append(changes, Change{benchKey(account()), benchValue(x)})
		}
		changes = uniqueKeys(changes)
		began := time.Now()
		encoded, err := full.Bag(wantsOf(changes), Below{Depth: math.MaxInt, Held: r.missing(changes)})
		made1 := time.Since(began)
		began = time.Now()
		bag := mustDecodeBag(b, encoded, err)
		r.graft(b, bag)
		taken1 := time.Since(began)
		began = time.Now()
		next, err := r.p.Apply(changes)
		require.NoError(b, err)
		r.p.Release()
		r.p = next
		r.shed(b)
		applied1 := time.Since(began)
		began = time.Now()
		full = advance(b, full, changes...)
		local1 := time.Since(began)
		if count {
			blocks++
			bytes, leaves = bytes+len(encoded), leaves+bag.Leaves()
			made, taken, applied, local = made+made1, taken+taken1, applied+applied1, local+local1
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
	b.ReportMetric(float64(made.Nanoseconds())/each, "make-ns/tx")
	b.ReportMetric(float64(taken.Nanoseconds())/each, "graft-ns/tx")
	b.ReportMetric(float64(applied.Nanoseconds())/each, "apply-ns/tx")
	b.ReportMetric(float64(local.Nanoseconds())/each, "local-ns/tx")
	m := r.p.v.Memory()
	b.ReportMetric(float64(m.InnerNodes+m.Leaves), "nodes")
}

// missing are the stubs on the ways to changes.
func (r *bagReceiver) missing(changes []Change) map[Hash]struct{} {
	held := map[Hash]struct{}{}
	for _, c := range changes {
		if s, n := r.p.v.locate(c.Key, false); n == 0 {
			held[s.Hash] = struct{}{}
		}
	}
	return held
}
