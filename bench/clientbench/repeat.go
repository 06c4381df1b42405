package clientbench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
)

// keyPrefix is the prefix of all keys.
const keyPrefix = "bench/"

// Key returns the i-th key.
func Key(i int) []byte { return fmt.Appendf(nil, keyPrefix+"%08d", i) }

// NewValue returns a value of size bytes.
func NewValue(random *rand.Rand, size int) []byte {
	text := fmt.Sprintf("%016x", random.Uint64())
	return []byte(text + strings.Repeat("x", max(size-len(text), 0)))
}

// Operation runs one measured operation once.
type Operation func(ctx context.Context, random *rand.Rand) error

// Figures are the results of one operation.
type Figures struct {
	P50MS  float64 `json:"p50_ms"`
	P99MS  float64 `json:"p99_ms"`
	Rate   float64 `json:"per_second"` // all workers together
	Number int     `json:"number"`     // operations

	CPUMicros float64 `json:"cpu_us,omitempty"` // CPU time of all validators for one operation

	// P50Interval is the interval of the median over the rounds; nil for one round.
	P50Interval *harness.Interval `json:"p50_interval,omitempty"`
}

// newFigures summarises operations: the duration of each in ns, and the seconds that all took
// together.
func newFigures(nanos []int64, seconds float64) Figures {
	took := harness.Each(nanos, func(n int64) float64 { return float64(n) / 1e6 })
	return Figures{P50MS: harness.Median(took), P99MS: harness.Percentile(took, 99), Rate: harness.Ratio(float64(len(nanos)), seconds), Number: len(nanos)}
}

// Patience is the time limit of one operation. A store that does not answer ends the run with an
// error instead of stopping it forever.
const Patience = time.Minute

// limited runs an operation with the time limit Patience.
func limited(ctx context.Context, do Operation, random *rand.Rand) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Patience, fmt.Errorf("no answer within %v", Patience))
	defer cancel()
	err := do(ctx, random)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Repeat repeats operations for a time, one operation per worker, each at least once. It returns
// the duration of each execution in ns, and the total time in seconds. An operation that takes
// longer than Patience is an error.
func Repeat(ctx context.Context, work []Operation, seed uint64, duration time.Duration) (nanos []int64, seconds float64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	took := make([][]int64, len(work))
	began := time.Now()
	var workers sync.WaitGroup
	for i, do := range work {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for first := true; (first || time.Since(began) < duration) && ctx.Err() == nil; first = false {
				at := time.Now()
				if err := limited(ctx, do, random); err != nil {
					cancel(err)
					return
				}
				took[i] = append(took[i], int64(time.Since(at)))
			}
		})
	}
	workers.Wait()
	return slices.Concat(took...), time.Since(began).Seconds(), context.Cause(ctx)
}

// repeatFigures is Repeat, and measures the CPU time of a network's validators, unless net is nil.
func repeatFigures(ctx context.Context, net *network.Network, work []Operation, seed uint64, duration time.Duration) (Figures, error) {
	cpu := func() (float64, error) { return 0, nil }
	if net != nil {
		cpu = func() (float64, error) { return net.CPUSeconds(ctx) }
	}
	before, err := cpu()
	if err != nil {
		return Figures{}, err
	}
	nanos, seconds, err := Repeat(ctx, work, seed, duration)
	if err != nil {
		return Figures{}, err
	}
	after, err := cpu()
	f := newFigures(nanos, seconds)
	f.CPUMicros = harness.Ratio((after-before)*1e6, float64(f.Number))
	return f, err
}
