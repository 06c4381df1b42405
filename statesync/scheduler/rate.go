package scheduler

import (
	"math"
	"math/bits"
	"time"
)

// Rates are whole bytes per second: floating point may differ between machines, and with it the
// actions.

const forever = time.Duration(math.MaxInt64)

// rateOf returns n bytes in d as a rate, at least 1.
func rateOf(n uint64, d time.Duration) uint64 {
	hi, lo := bits.Mul64(n, uint64(time.Second))
	return max(1, div(hi, lo, uint64(max(d, time.Microsecond))))
}

// timeFor returns how long n bytes take.
func timeFor(n, rate uint64) time.Duration {
	hi, lo := bits.Mul64(n, uint64(time.Second))
	return time.Duration(min(div(hi, lo, max(rate, 1)), uint64(forever)/16))
}

// bytesIn returns how many bytes come in d.
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

// doubled returns d·2ⁿ, or limit if that is less.
func doubled(d time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}

// rateWindow is how many samples the rate of a peer is the best of: few enough that it follows a
// peer that becomes slow.
const rateWindow = 8

// speed is what is known of the line to a peer. Rate and round trip are estimated as by BBR
// (Cardwell et al., ACM Queue 14:5, 2016): the best delivery rate and the least round trip, because
// anything worse may be due to us.
type speed struct {
	delivered uint64 // bytes that have arrived
	samples   [rateWindow]uint64
	n         int
	rate      uint64        // best sample; 0: none
	rtt       time.Duration // least time to a first byte; 0: none
	gap       time.Duration // recent longest time between arrivals while more was due; 0: none
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
// because a rate that is measured with too small a window is too small by as much.
func (v *speed) window() uint64 {
	return bytesIn(max(2*v.rtt, horizon), v.rate)
}
