package clientbench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/starling-kv/starling/bench/harness"
)

// keyPrefix begins all keys. Keys and values are those of bench/etcdstore.
const keyPrefix = "bench/"

func key(i int) []byte { return fmt.Appendf(nil, keyPrefix+"%08d", i) }

func newValue(random *rand.Rand, size int) []byte {
	text := fmt.Sprintf("%016x", random.Uint64())
	return []byte(text + strings.Repeat("x", max(size-len(text), 0)))
}

// operation is one of those that are measured.
type operation func(ctx context.Context, random *rand.Rand) error

// Figures are those of one operation.
type Figures struct {
	P50MS  float64 `json:"p50_ms"`
	P99MS  float64 `json:"p99_ms"`
	Rate   float64 `json:"per_second"` // of all workers together
	Number int     `json:"number"`     // of all rounds
}

// newFigures are those of operations that took so many ns each, in so many seconds together.
func newFigures(nanos []int64, seconds float64) Figures {
	took := make([]float64, len(nanos))
	for i, n := range nanos {
		took[i] = float64(n) / 1e6
	}
	return Figures{harness.Median(took), harness.Percentile(took, 99), harness.Ratio(float64(len(nanos)), seconds), len(nanos)}
}

// repeat repeats operations, one for each worker, for a time, and each at least once. It is the run
// of bench/etcdstore.
func repeat(ctx context.Context, work []operation, seed uint64, duration time.Duration) (Figures, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	took := make([][]int64, len(work))
	began := time.Now()
	until := began.Add(duration)
	var workers sync.WaitGroup
	for i, do := range work {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for time.Now().Before(until) && ctx.Err() == nil {
				at := time.Now()
				if err := do(ctx, random); err != nil {
					cancel(err)
					return
				}
				took[i] = append(took[i], int64(time.Since(at)))
			}
		})
	}
	workers.Wait()
	var nanos []int64
	for _, list := range took {
		nanos = append(nanos, list...)
	}
	return newFigures(nanos, time.Since(began).Seconds()), context.Cause(ctx)
}
