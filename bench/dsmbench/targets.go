package dsmbench

import (
	"fmt"

	"github.com/starling-kv/starling/bench/harness"
)

// tenMillion is the number of keys for which the targets for memory and for the start of a storage
// node are set. They are left out for fewer keys, which take less.
const (
	million    = 1_000_000
	tenMillion = 10 * million
)

// targets judges the result. The other targets are set for a million keys, r 12 and a window of 32.
func (r *Result) targets() (t []harness.Target) {
	add := func(name string, met bool, figure float64, format string, args ...any) {
		t = append(t, harness.Target{Name: name, Met: met, Figure: figure, Measure: fmt.Sprintf(format, args...)})
	}
	if r.Transfers.Sizes != nil {
		add("witnesses at least 95 % smaller than full paths", r.WitnessReduction >= 0.95, r.WitnessReduction,
			"%.3f, %.0f of %.0f bytes per transaction", r.WitnessReduction, r.MultiproofBytesTx, r.RawBytesTx)
		add("at least 82 % smaller for a receiver without any nodes", r.ColdReduction >= 0.82, r.ColdReduction, "%.3f, %.0f bytes", r.ColdReduction, r.MultiproofBytesTxCold)
		add("no path unusable in multiproofs up to the window's age", r.MissRate == 0, r.MissRate,
			"%.3g; without revision, %.0f %% of the transactions would be stale after one block", r.MissRate, 100*r.StaleRate)
		if r.Keys >= tenMillion {
			add("memory at most a tenth of the full tree's, at 10,000,000 keys", r.MemoryRatio <= 0.10, r.MemoryRatio,
				"%.3f at %s keys, of %.2f GB", r.MemoryRatio, harness.Group(r.Keys), float64(r.TreeBytes)/1e9)
		}
	}
	if r.TPSApp > 0 {
		ratio := harness.Ratio(r.TPSApp, r.TPSLocal)
		add("at least 30,000 transactions per second on multiproofs", r.TPSApp >= 30_000, r.TPSApp, "%.0f", r.TPSApp)
		add("at least 0.8 of a full-state node's", ratio >= 0.8, ratio, "%.3f", ratio)
	}
	if len(r.ShardRows) > 0 && r.WitnessOpsS > 0 {
		add("at least 100,000 keys per second and core", r.WitnessOpsS >= 100_000, r.WitnessOpsS, "%.0f", r.WitnessOpsS)
	}
	// One row would be compared with itself.
	if rows := len(r.ShardRows); rows > 1 && r.WitnessCPURatio > 0 {
		n := r.ShardRows[rows-1].Shards
		add(fmt.Sprintf("CPU per key with %d shards at most 1.15× that with %d", n, r.ShardRows[0].Shards), r.WitnessCPURatio <= 1.15, r.WitnessCPURatio, "%.3g×", r.WitnessCPURatio)
	}
	if len(r.TogetherRows) > 0 && r.TogetherCPURatio > 0 {
		row := r.TogetherRows[0]
		add(fmt.Sprintf("CPU per key with %d ranges on %s at most 1.15× that with %s", row.Ranges, harness.Count(row.Shards, "node"),
			harness.Count(r.ShardRows[0].Ranges, "range")),
			r.TogetherCPURatio <= 1.15, r.TogetherCPURatio, "%.3g×; with a request for each range %.3g×", r.TogetherCPURatio, r.TogetherCPURatio*harness.Ratio(row.ApartMicros, row.CPUMicros))
	}
	if r.Range.Keys > 0 {
		add("a range of 4 × the memory at least 0.35 of one in memory", r.RangeDiskRatio >= 0.35, r.RangeDiskRatio, "%.3f, %.0f of %.0f keys per second and core",
			r.RangeDiskRatio, r.Range.PagedS, r.Range.MemoryS)
		add("at most 8 bytes written per changed byte", r.BytesPerChanged <= 8, r.BytesPerChanged, "%.2f", r.BytesPerChanged)
	}
	if r.Range.Keys > 0 && r.Keys >= tenMillion {
		if r.StartTenMillion == 0 {
			t = append(t, startTarget(r.StartS, r.Keys))
		}
		add("a storage node with 256 MiB for its range at most 400 MB, at 10,000,000 keys", r.StorageMB <= 400, r.StorageMB, "%.0f MB at %s keys, with %.0f MB for the range",
			r.StorageMB, harness.Group(r.Keys), float64(r.Range.RSSBudget)/1e6)
	}
	if r.StartTenMillion > 0 {
		t = append(t, startTarget(r.StartTenMillion, tenMillion))
		if r.StartMillion > 0 {
			t = append(t, harness.AtMost("a start after SIGKILL with 10,000,000 keys at most 1.3× one with 1,000,000", 1.3, harness.Ratio(r.StartTenMillion, r.StartMillion)))
		}
	}
	if n := len(r.Feed); n > 1 && r.Feed[n-1].Ranges == mostFeedRanges {
		few, many := r.Feed[n-2], r.Feed[n-1]
		linear := harness.Ratio(harness.Ratio(many.CPUMS, few.CPUMS), harness.Ratio(many.Changed, few.Changed))
		add(fmt.Sprintf("CPU time of updates linear in changed ranges, from %s to %s ranges (at most 1.1)", harness.Group(few.Ranges), harness.Group(many.Ranges)), linear <= 1.1, linear,
			"%.2f: %.0f and %.0f ms for %.0f and %.0f changed ranges", linear, few.CPUMS, many.CPUMS, few.Changed, many.Changed)
		memory := harness.AtMost("updates of 4,000 ranges at most 1 GiB of memory", 1<<30/1e6, r.ValidatorMB4000)
		memory.Measure = fmt.Sprintf("%.0f MB", r.ValidatorMB4000)
		t = append(t, memory)
	}
	if m := r.Moves; m != nil {
		copies := harness.Ratio(m.Seconds, m.CopySeconds)
		add("p99 between blocks during a move at most 1.3 × that without", r.MoveP99X <= 1.3, r.MoveP99X, "%.2f×, %.0f of %.0f ms", r.MoveP99X, m.MovingP99, m.CalmP99)
		t[len(t)-1] = t[len(t)-1].OfBlocks(min(m.MovingBlocks, m.CalmBlocks), harness.FewBlocks)
		add("no put fails during moves", m.Failed == 0, float64(m.Failed), "%d of %d failed", m.Failed, m.Puts)
		move := harness.AtMost("a move of a 100 MB range at most 3 × a plain copy", 3, copies)
		move.Measure = fmt.Sprintf("%.1f×, %.1f s of %.0f MB", copies, m.Seconds, float64(m.Bytes)/1e6)
		t = append(t, move)
	}
	for _, p := range r.Prefetch {
		if p.DelayMS == 80 && r.Shards[0] == 1 {
			add("at least 20,000 keys per second fetched ahead from a storage node at 80 ms", p.KeysS >= 20_000, p.KeysS, "%.0f; one request in flight has at most 3,200", p.KeysS)
		}
	}
	if r.JoinS > 0 {
		add("a join at most 2 s in addition to CometBFT's 4 s", r.JoinS <= 2, r.JoinS, "%.2f s", r.JoinS)
		add("a join at most 2 MB in addition to blocks", r.JoinBytes <= 2_000_000, float64(r.JoinBytes), "%.2f MB", float64(r.JoinBytes)/1e6)
	}
	return t
}

func startTarget(seconds float64, keys int) harness.Target {
	return harness.Target{
		Name: "a start after SIGKILL at most 3 s, at 10,000,000 keys", Met: seconds <= 3, Figure: seconds, Measure: fmt.Sprintf("%.2f s at %s keys", seconds, harness.Group(keys)),
	}
}
