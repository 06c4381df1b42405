package scheduler

import (
	"math"
	"math/bits"
	"time"
)

// Rates are whole bytes per second. Floating point might differ between machines and make the
// actions differ.

const forever = time.Duration(math.MaxInt64)

// rateOf returns the rate of n bytes in d, at least 1.
func rateOf(n uint64, d time.Duration) uint64 {
	hi, lo := bits.Mul64(n, uint64(time.Second))
	return max(1, div(hi, lo, uint64(max(d, time.Microsecond))))
}

// timeFor returns how long n bytes take.
func timeFor(n, rate uint64) time.Duration {
	hi, lo := bits.Mul64(n, uint64(time.Second))
	return time.Duration(min(div(hi, lo, max(rate, 1)), uint64(forever)/16))
}

// bytesIn returns how many bytes arrive in d.
func bytesIn(d time.Duration, rate uint64) uint64 {
	hi, lo := bits.Mul64(rate, uint64(max(d, 0)))
	return div(hi, lo, uint64(time.Second))
}

func div(hi, lo, by uint64) uint64 {
	if hi >= by {
		return math.MaxUint64
	}
	q, _ := bits.Div64(hi, lo, by)
	return q
}

// rateWindow is the number of samples whose maximum is a peer's rate: few enough to follow a peer
// that becomes slow.
const rateWindow = 8

// speed describes the line to a peer. Rate and round trip are estimated as in BBR (Cardwell et al.,
// ACM Queue 14:5, 2016): the maximum delivery rate and the minimum round trip, because worse values
// may be caused by this node.
type speed struct {
	delivered uint64 // bytes delivered
	samples   [rateWindow]uint64
	n         int
	rate      uint64        // best sample; 0: none
	rtt       time.Duration // least time to a first byte; 0: none
	gap       time.Duration // recent longest time between arrivals while more was owed; 0: none
}

func (v *speed) sample(rate uint64) {
	v.samples[v.n%rateWindow] = rate
	v.n++
	v.rate = 0
	for _, r := range v.samples {
		v.rate = max(v.rate, r)
	}
}

func (v *speed) firstByte(after time.Duration) {
	after = max(after, time.Microsecond)
	if v.rtt == 0 || after < v.rtt {
		v.rtt = after
	}
}

func (v *speed) between(d time.Duration) { v.gap = max(d, v.gap-v.gap/8) }

// window returns how many bytes in flight keep the pipe full: twice the bandwidth-delay product,
// because a rate measured with a small window is too low.
func (v *speed) window() uint64 {
	return bytesIn(max(2*v.rtt, horizon), v.rate)
}
