package e2ebench

import (
	"fmt"

	"github.com/starling-kv/starling/bench/harness"
)

// Result is the outcome of a run: medians over the rounds. The top-level figures are those of
// CometBFT's own load; they are missing if that load did not run.
type Result struct {
	StarlingTPS float64 `json:"starling_tps"`
	KVStoreTPS  float64 `json:"kvstore_tps"`
	Ratio       float64 `json:"ratio"` // Starling over kvstore; median of the rounds' ratios

	Own      *LoadResult `json:"own,omitempty"`
	Distinct *LoadResult `json:"distinct,omitempty"`

	Validators      int              `json:"validators"`
	TimeoutCommitMS float64          `json:"timeout_commit_ms"`
	InFlight        int              `json:"in_flight"`
	TxBytes         int              `json:"tx_bytes"`
	Indexer         string           `json:"indexer"`
	KVStore         string           `json:"kvstore"`
	Seconds         int              `json:"seconds"`
	Rounds          int              `json:"rounds"`
	Rate            int              `json:"rate"` // transactions per second for the latencies
	Machine         harness.Machine  `json:"machine"`
	Targets         []harness.Target `json:"targets"`
}

// LoadResult are the figures of one load.
type LoadResult struct {
	StarlingTPS float64 `json:"starling_tps"`
	KVStoreTPS  float64 `json:"kvstore_tps"`
	Ratio       float64 `json:"ratio"`     // over kvstore's; median of the rounds' ratios
	CPURatio    float64 `json:"cpu_ratio"` // per transaction, over kvstore's; likewise

	// Medians of the rounds' ratios, with confidence intervals.
	RatioInterval    harness.Interval `json:"ratio_interval"`
	CPURatioInterval harness.Interval `json:"cpu_ratio_interval"`

	Starling Side    `json:"starling"`
	KVStore  Side    `json:"kvstore"`
	Rounds   []Round `json:"rounds"`
}

// Side has the medians of one network.
type Side struct {
	Saturated figures `json:"saturated"`
	Paced     figures `json:"paced"`
}

// Round has the figures of both networks, measured one right after the other.
type Round struct {
	Starling Side `json:"starling"`
	KVStore  Side `json:"kvstore"`
}

// newLoadResult computes the medians of a load.
func newLoadResult(rounds []Round) *LoadResult {
	of := func(side func(Round) figures) (f figures) {
		f.TPS = harness.MedianOf(rounds, func(r Round) float64 { return side(r).TPS })
		f.P50MS = harness.MedianOf(rounds, func(r Round) float64 { return side(r).P50MS })
		f.P99MS = harness.MedianOf(rounds, func(r Round) float64 { return side(r).P99MS })
		f.MaxMS = harness.MedianOf(rounds, func(r Round) float64 { return side(r).MaxMS })
		f.IntervalMS = harness.MedianOf(rounds, func(r Round) float64 { return side(r).IntervalMS })
		f.CPUMicros = harness.MedianOf(rounds, func(r Round) float64 { return side(r).CPUMicros })
		for _, r := range rounds {
			f.Txs += side(r).Txs
		}
		return f
	}
	r := &LoadResult{Rounds: rounds}
	r.Starling = Side{of(func(r Round) figures { return r.Starling.Saturated }), of(func(r Round) figures { return r.Starling.Paced })}
	r.KVStore = Side{of(func(r Round) figures { return r.KVStore.Saturated }), of(func(r Round) figures { return r.KVStore.Paced })}
	r.StarlingTPS, r.KVStoreTPS = r.Starling.Saturated.TPS, r.KVStore.Saturated.TPS
	ratio := func(figure func(figures) float64) harness.Interval {
		return harness.MedianInterval(harness.Each(rounds, func(r Round) float64 {
			return harness.Ratio(figure(r.Starling.Saturated), figure(r.KVStore.Saturated))
		}))
	}
	r.RatioInterval = ratio(func(f figures) float64 { return f.TPS })
	r.CPURatioInterval = ratio(func(f figures) float64 { return f.CPUMicros })
	r.Ratio, r.CPURatio = r.RatioInterval.Median, r.CPURatioInterval.Median
	return r
}

// decidingRounds is the minimum number of rounds for a verdict on the ratio: rounds differ by up to
// 40 %.
const decidingRounds = 5

// wantedRatio is the target for Starling's throughput relative to kvstore's, on kvstore's own load.
const wantedRatio = 0.95

func (r *Result) judge() {
	if r.Own != nil {
		r.StarlingTPS, r.KVStoreTPS, r.Ratio = r.Own.StarlingTPS, r.Own.KVStoreTPS, r.Own.Ratio
		t := harness.AtLeast("at least 0.95 of kvstore's transactions per second on its own load", wantedRatio, r.Ratio)
		if n := len(r.Own.Rounds); n < decidingRounds {
			t.Met, t.Undecided = false, fmt.Sprintf("%d of at least %d rounds", n, decidingRounds)
		}
		r.Targets = append(r.Targets, t)
	}
}
