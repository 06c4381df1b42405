package e2ebench

import (
	"fmt"

	"github.com/starling-kv/starling/bench/harness"
)

// Result is the outcome of a run: medians over the rounds. The first figures are those of
// CometBFT's own load; they are left out if that load did not run.
type Result struct {
	StarlingTPS float64 `json:"starling_tps"`
	KVStoreTPS  float64 `json:"kvstore_tps"`
	Ratio       float64 `json:"ratio"` // of the two, the median of the rounds' ratios

	Own      *LoadResult `json:"own,omitempty"`
	Distinct *LoadResult `json:"distinct,omitempty"`

	Validators      int             `json:"validators"`
	TimeoutCommitMS float64         `json:"timeout_commit_ms"`
	InFlight        int             `json:"in_flight"`
	TxBytes         int             `json:"tx_bytes"`
	Indexer         string          `json:"indexer"`
	KVStore         string          `json:"kvstore"`
	Seconds         int             `json:"seconds"`
	Rounds          int             `json:"rounds"`
	Rate            int             `json:"rate"` // transactions a second for the latencies
	Machine         harness.Machine `json:"machine"`
	Goals           []Goal          `json:"targets"`
}

// LoadResult are the figures of one load.
type LoadResult struct {
	StarlingTPS float64 `json:"starling_tps"`
	KVStoreTPS  float64 `json:"kvstore_tps"`
	Ratio       float64 `json:"ratio"`     // over kvstore's; median of the rounds' ratios
	CPURatio    float64 `json:"cpu_ratio"` // of a transaction, over kvstore's; likewise

	// The medians of the rounds' ratios with intervals.
	RatioInterval    harness.Interval `json:"ratio_interval"`
	CPURatioInterval harness.Interval `json:"cpu_ratio_interval"`

	Starling Side    `json:"starling"`
	KVStore  Side    `json:"kvstore"`
	Rounds   []Round `json:"rounds"`
}

// Side are the medians of one network.
type Side struct {
	Saturated figures `json:"saturated"`
	Paced     figures `json:"paced"`
}

// Round is the figures of both networks, measured one right after the other.
type Round struct {
	Starling Side `json:"starling"`
	KVStore  Side `json:"kvstore"`
}

// median is the median of one figure over the rounds.
func median(rounds []Round, figure func(Round) float64) float64 {
	return harness.Median(values(rounds, figure))
}

// values are one figure of each round.
func values(rounds []Round, figure func(Round) float64) []float64 {
	all := make([]float64, len(rounds))
	for i, r := range rounds {
		all[i] = figure(r)
	}
	return all
}

// newLoadResult computes the medians of a load.
func newLoadResult(rounds []Round) *LoadResult {
	of := func(side func(Round) figures) (f figures) {
		f.TPS = median(rounds, func(r Round) float64 { return side(r).TPS })
		f.P50MS = median(rounds, func(r Round) float64 { return side(r).P50MS })
		f.P99MS = median(rounds, func(r Round) float64 { return side(r).P99MS })
		f.MaxMS = median(rounds, func(r Round) float64 { return side(r).MaxMS })
		f.IntervalMS = median(rounds, func(r Round) float64 { return side(r).IntervalMS })
		f.CPUMicros = median(rounds, func(r Round) float64 { return side(r).CPUMicros })
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
		return harness.MedianInterval(values(rounds, func(r Round) float64 {
			return harness.Ratio(figure(r.Starling.Saturated), figure(r.KVStore.Saturated))
		}))
	}
	r.RatioInterval = ratio(func(f figures) float64 { return f.TPS })
	r.CPURatioInterval = ratio(func(f figures) float64 { return f.CPUMicros })
	r.Ratio, r.CPURatio = r.RatioInterval.Median, r.CPURatioInterval.Median
	return r
}

// Goal is a figure to reach, as a ratio within one run.
type Goal struct {
	Name   string  `json:"name"`
	Met    bool    `json:"met"`
	Figure float64 `json:"figure"`

	// Undecided is why the figure decides nothing, or empty. Met counts only without it.
	Undecided string `json:"undecided,omitempty"`
}

// decidingRounds is the number of rounds below which the ratio is not judged: rounds differ by up
// to 40 %.
const decidingRounds = 5

// wantedRatio is what Starling is to reach of kvstore's transactions a second on its own load.
const wantedRatio = 0.95

func (r *Result) judge() {
	if r.Own != nil {
		r.StarlingTPS, r.KVStoreTPS, r.Ratio = r.Own.StarlingTPS, r.Own.KVStoreTPS, r.Own.Ratio
		g := Goal{Name: "at least 0.95 of kvstore's transactions a second on its own load", Met: r.Ratio >= wantedRatio, Figure: r.Ratio}
		if n := len(r.Own.Rounds); n < decidingRounds {
			g.Met, g.Undecided = false, fmt.Sprintf("%d of at least %d rounds", n, decidingRounds)
		}
		r.Goals = append(r.Goals, g)
	}
}
