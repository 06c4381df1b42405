package e2ebench

import (
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
)

// Print writes the tables, explains them, and judges the target.
func (r *Result) Print(out io.Writer) {
	for _, load := range []struct {
		title string
		of    *LoadResult
	}{{"one key (CometBFT's loadtime)", r.Own}, {"distinct keys", r.Distinct}} {
		if load.of != nil {
			load.of.table(out, load.title)
		}
	}
	fmt.Fprintf(out, `%s on one machine, new networks each time; %s of %d s for each load, the networks in turn; medians
×            Starling's figure over kvstore's: the median of the rounds' ratios, and its 95 %% confidence interval (with fewer than
             6 rounds: their range)
tx/s         transactions of %d bytes in blocks, with %d pending at any time, sent to all validators equally (broadcast_tx_sync)
CPU          time of all validators together, per transaction in a block
latency      at %d transactions per second: from when a transaction is due until a client receives the event of its executed block
config       CometBFT's defaults except timeout_commit %.0f ms and indexer %q; kvstore is --proxy_app=%s, with its db_backend (goleveldb)
`, harness.Count(r.Validators, "validator"), harness.Count(r.Rounds, "round"), r.Seconds, r.TxBytes, r.InFlight, r.Rate, r.TimeoutCommitMS, r.Indexer, r.KVStore)
	harness.PrintTargets(out, "four validators", r.Targets)
}

func (l *LoadResult) table(out io.Writer, title string) {
	cells := [][]string{{title, nameStarling, nameKVStore, "×", "from", "to"}}
	row := func(name, format string, a, b, times float64) {
		cells = append(cells, []string{name, fmt.Sprintf(format, a), fmt.Sprintf(format, b), fmt.Sprintf("%.3f", times), "", ""})
	}
	withInterval := func(name, format string, a, b float64, times harness.Interval) {
		row(name, format, a, b, times.Median)
		last := cells[len(cells)-1]
		last[4], last[5] = fmt.Sprintf("%.3f", times.Low), fmt.Sprintf("%.3f", times.High)
	}
	s, k := l.Starling, l.KVStore
	plain := func(name, format string, a, b float64) { row(name, format, a, b, harness.Ratio(a, b)) }
	withInterval("tx/s", "%.0f", l.StarlingTPS, l.KVStoreTPS, l.RatioInterval)
	withInterval("CPU, µs per transaction", "%.0f", s.Saturated.CPUMicros, k.Saturated.CPUMicros, l.CPURatioInterval)
	plain("between blocks, ms", "%.0f", s.Saturated.IntervalMS, k.Saturated.IntervalMS)
	plain("latency p50, ms", "%.0f", s.Paced.P50MS, k.Paced.P50MS)
	plain("latency p99, ms", "%.0f", s.Paced.P99MS, k.Paced.P99MS)
	plain("between blocks, ms", "%.0f", s.Paced.IntervalMS, k.Paced.IntervalMS)
	harness.PrintAligned(out, cells)
	fmt.Fprint(out, "  tx/s of the rounds:")
	for _, r := range l.Rounds {
		fmt.Fprintf(out, "  %.0f/%.0f", r.Starling.Saturated.TPS, r.KVStore.Saturated.TPS)
	}
	fmt.Fprint(out, "\n\n")
}

// Print writes the table.
func (r *JoinersResult) Print(out io.Writer) {
	cells := [][]string{{"blocks", "before", "during"}}
	row := func(name, format string, a, b float64) {
		cells = append(cells, []string{name, fmt.Sprintf(format, a), fmt.Sprintf(format, b)})
	}
	row("number", "%.0f", float64(r.Before.Blocks), float64(r.During.Blocks))
	row("between two, p50, ms", "%.0f", r.Before.P50MS, r.During.P50MS)
	row("between two, most, ms", "%.0f", r.Before.MaxMS, r.During.MaxMS)
	row("tx/s", "%.0f", r.Before.TPS, r.During.TPS)
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, "\n%d of %s follow the head of %s after %.1f s, with the same app hash\n",
		r.Joined, harness.Count(r.Joiners, "joiner"), harness.Count(r.Validators, "validator"), r.Seconds)
	fmt.Fprintf(out, "  had the state (%.1f MB) after  %.1f s (first)  %.1f s (median)  %.1f s (last)\n", float64(r.StateBytes)/1e6,
		harness.Percentile(r.RestoredS, 0), harness.Median(r.RestoredS), harness.Percentile(r.RestoredS, 100))
	fmt.Fprintf(out, "  followed the head after        %.1f s (first)  %.1f s (median)  %.1f s (last)\n",
		harness.Percentile(r.FollowingS, 0), harness.Median(r.FollowingS), harness.Percentile(r.FollowingS, 100))
}
