package papersbench

import (
	"fmt"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/syncbench"
	"github.com/starling-kv/starling/bench/workload"
)

var avlstarFigures = []*figure{
	{
		id: "avlstar/space", title: "Space efficiency (§5.3.3), and chunks under deletes and churn",
		paper:   "Chunks divided by the ideal number of chunks, while one million random keys are inserted: around 1.4. About 4 % of the splits are due to rotations (§3.7). The paper has no figure for deletes.",
		how:     "The paper's chunks (Algorithms 1 to 4) are implemented in the benchmark. The same operations change both trees.",
		quick:   []string{"avlstar/space --keys 100000 --limit 1000"},
		full:    []string{"avlstar/space --keys 1000000 --limit 10000"},
		differs: []string{"Starling limits a chunk in bytes: the limit here is C_p leaf records.", "A leaf's hash does not cover the height of an inner node here; §3.3 leaves that open."},
		run:     runSpace,
	},
	{
		id: "avlstar/fig7", title: "Fig. 7: state synchronization with Byzantine peers",
		paper:   "80 peers, one million keys, 1 to 26 peers that send invalid chunks, five joins each. The time grows linearly with the number of Byzantine peers. With 20 of them it is still below the 16.3 s of IAVL+ without any.",
		how:     "The program byzantine. Whiskers are the fastest and the slowest join.",
		quick:   []string{"byzantine --keys 300000 --lying 0,1,10,20,26 --repeat 3"},
		full:    []string{"byzantine --keys 1000000 --lying 0,1,5,10,15,20,26 --repeat 5"},
		differs: []string{"All 80 peers share one process on this machine; the paper's were in a WAN.", "Chunks of 1 MiB, the paper's 10 MB.", "Byzantine peers also truncate, extend, swap and withhold chunks and falsify manifests."},
		run:     drawn(syncbench.RunByzantine, drawByzantine),
	},
	{
		id: "avlstar/fig3", title: "Fig. 3: time of a join by size of the state",
		paper:   "10k to 10M keys, 10 and 80 peers, chunks of 10k and 100k keys. The time is linear in the size. AVL* takes about half the time of IAVL+: 58 % faster on average. IAVL+ takes 16.3 s with 1M keys and 80 peers.",
		how:     "The program sync, against snapshots of the Cosmos SDK's store, in chunks of about 10k and 100k keys.",
		quick:   syncCommands([]int{10_000, 30_000, 100_000}, true),
		full:    syncCommands([]int{10_000, 100_000, 1_000_000, 10_000_000}, true),
		differs: []string{"One peer over loopback; the paper's 10 or 80 peers were in a WAN.", "The SDK's store creates and restores its snapshot in one process, without a network: an advantage for it."},
		run:     drawn(syncbench.Run, drawSync),
	},
	{
		id: "avlstar/fig6", title: "Fig. 6: time of a snapshot",
		paper:   "IAVL+, up to one million keys: the time grows linearly with the state. AVL* takes no time, since the chunks are part of the tree. The paper's text has no absolute times.",
		how:     "The SDK's store creates a snapshot. Starling makes a manifest, which a joiner fetches first; this needs no pause.",
		quick:   syncCommands([]int{10_000, 30_000, 100_000}, false),
		full:    syncCommands([]int{10_000, 100_000, 300_000, 1_000_000}, false),
		differs: []string{"The SDK's store of today instead of IAVL+ of 2022."},
		run:     drawn(syncbench.Run, drawSnapshot),
	},
	{
		id: "avlstar/fig4", title: "Fig. 4, in part: pauses of a validator during snapshots",
		paper:   "10 peers, one million keys: the throughput of IAVL+ drops while a snapshot is made, that of AVL* does not. Table 2: 5 to 12 % more transactions per second, 5 to 13 % less latency.",
		how:     "The program hiccup: the time of a commit, without joiners and snapshots and with them.",
		quick:   []string{"hiccup --keys 50000 --blocks 100 --sdk-blocks 30"},
		full:    []string{"hiccup"},
		differs: []string{"One process that makes blocks, without consensus and clients.", "Times of commits instead of throughput over time."},
		run:     drawn(syncbench.RunHiccup, drawHiccup),
	},
	{
		id: "avlstar/fig5", title: "Fig. 5 and Table 2: throughput and latency of 10 and 80 peers",
		paper:  "80 peers, chunks of 10k keys: IAVL+ 893 tx/s and 8.63 s, AVL* 988 tx/s and 7.64 s. 10 peers: 2374 tx/s and 4.18 s, 2539 tx/s and 3.85 s.",
		reason: "A CometBFT network of 80 validators on two cores measures the scheduler. No application on IAVL exists in the network of e2e, whose opponent is CometBFT's kvstore.",
		needs:  "An application on IAVL with the transactions of e2e, about 80 machines with delays of a WAN, and one series of blocks for each run.",
	},
}

// syncCommands returns the commands of sync for several sizes, in chunks of about 10k keys and, if
// asked, also of 100k keys.
func syncCommands(keys []int, both bool) (all []string) {
	record := int(avlstar.RecordBytes(workload.KeyBytes, workload.ValueBytes))
	for _, n := range keys {
		all = append(all, fmt.Sprintf("sync --keys %d --against sdk --repeat 3 --sdk-repeat 1 --chunk-bytes %d", n, 10_000*record))
		if both {
			all = append(all, fmt.Sprintf("sync --keys %d --against= --repeat 3 --chunk-bytes %d", n, 100_000*record))
		}
	}
	return all
}

func drawByzantine(results []*syncbench.ByzantineResult) (*outcome, error) {
	r := results[0]
	out := &outcome{}
	time := chart{Title: fmt.Sprintf("AVL* Fig. 7a: time of a join, %s keys, Byzantine of %d peers", harness.Group(r.Keys), r.Peers), X: "Byzantine peers", Y: "seconds"}
	chunks := chart{Name: "chunks", Title: "AVL* Fig. 7b: chunks that are fetched again, in the join of median time", X: "Byzantine peers", Y: "chunks"}
	times, again := line{Name: "Starling, median of " + fmt.Sprint(r.Repeat)}, line{Name: fmt.Sprintf("Starling, of %d chunks", r.Rows[0].Chunks)}
	for _, row := range r.Rows {
		x := float64(row.Lying)
		times.Points = append(times.Points, at(x, row.StarlingS, row.Seconds...))
		again.Points = append(again.Points, at(x, float64(row.Refetched)))
		paper := ""
		if row.Lying == 20 {
			paper = "below 16.3 s"
		}
		out.add(fmt.Sprintf("join with %d Byzantine peers", row.Lying), paper, "%.2f s (%.2f to %.2f), %d chunks again, %d peers banned", row.StarlingS,
			times.Points[len(times.Points)-1].Low, times.Points[len(times.Points)-1].High, row.Refetched, row.Banned)
	}
	time.Lines, chunks.Lines = []line{times}, []line{again}
	out.Charts = []chart{time, chunks}
	return out, nil
}

func drawSync(results []*syncbench.Result) (*outcome, error) {
	out := &outcome{}
	large := line{Name: "Starling, chunks of 100k keys"}
	small, sdk := line{Name: "Starling, chunks of 10k keys"}, line{Name: "SDK (IAVL), restore"}
	whole := line{Name: "SDK (IAVL), create and restore"}
	for _, r := range results {
		x := float64(r.Keys)
		p := at(x, r.StarlingS, r.Starling.Seconds...)
		if r.SDK == nil {
			large.Points = append(large.Points, p)
			continue
		}
		small.Points = append(small.Points, p)
		sdk.Points = append(sdk.Points, at(x, r.SDKRestoreS))
		whole.Points = append(whole.Points, at(x, r.SDKRestoreS+r.SDKCreateS))
		paper := "IAVL+ over AVL* about 2 ×"
		if r.Keys == 1_000_000 {
			paper = "IAVL+ 16.3 s with 80 peers; about 2 × of AVL*"
		}
		out.add(harness.Group(r.Keys)+" keys", paper, "Starling %.3f s, SDK's restore %.2f s: %.0f ×; a second restore after one Byzantine peer: %.2f s", r.StarlingS,
			r.SDKRestoreS, harness.Ratio(r.SDKRestoreS, r.StarlingS), 2*r.SDKRestoreS)
	}
	for i, p := range large.Points {
		out.add(harness.Group(int(p.X))+" keys, chunks of 100k keys", "as with 10k keys", "Starling %.3f s", large.Points[i].Y)
	}
	out.Charts = []chart{{
		Title: "AVL* Fig. 3: time of a join", X: "keys", Y: "seconds", LogX: true, LogY: true,
		Lines: []line{small, large, sdk, whole, {Name: "the paper: IAVL+, 80 peers in a WAN", Paper: true, Points: []point{at(1_000_000, 16.3)}}},
	}}
	return out, nil
}

// manifestTimes is the number of manifests whose median time counts.
const manifestTimes = 5

func drawSnapshot(results []*syncbench.Result) (*outcome, error) {
	out := &outcome{}
	sdk, ours := line{Name: "SDK (IAVL), a snapshot"}, line{Name: "Starling, a manifest"}
	for _, r := range results {
		seconds, err := manifest(r.Keys, r.Starling.ChunkBytes, r.Seed)
		if err != nil {
			return nil, err
		}
		x := float64(r.Keys)
		sdk.Points = append(sdk.Points, at(x, r.SDKCreateS))
		ours.Points = append(ours.Points, at(x, harness.Median(seconds), seconds...))
		out.add(harness.Group(r.Keys)+" keys", "", "SDK's snapshot %.2f s, Starling's manifest %.3g ms", r.SDKCreateS, 1000*harness.Median(seconds))
	}
	out.Charts = []chart{{Title: "AVL* Fig. 6: time of a snapshot", X: "keys", Y: "seconds", LogX: true, LogY: true, Lines: []line{sdk, ours}}}
	return out, nil
}

// manifest returns the seconds that manifests of a state take. Each is of another version, since a
// version keeps its manifest.
func manifest(keys int, chunkBytes, seed uint64) (seconds []float64, err error) {
	w, err := workload.New(workload.Spec{Seed: seed, Keys: keys, Batch: 10_000}, manifestTimes)
	if err != nil {
		return nil, err
	}
	v, err := avlstar.Empty(chunkBytes)
	if err != nil {
		return nil, err
	}
	defer func() { v.Release() }()
	for len(seconds) < manifestTimes {
		loaded := w.Loaded()
		var changes []avlstar.Change
		for _, c := range w.Next() {
			changes = append(changes, avlstar.Change{Key: c.Key, Value: c.Value})
		}
		next, err := v.Apply(changes)
		if err != nil {
			return nil, err
		}
		v.Release()
		v = next
		if loaded {
			from := time.Now()
			v.Manifest().Encode()
			seconds = append(seconds, time.Since(from).Seconds())
		}
	}
	return seconds, nil
}

func drawHiccup(results []*syncbench.HiccupResult) (*outcome, error) {
	out := &outcome{}
	r := results[0]
	c := chart{Title: fmt.Sprintf("AVL* Fig. 4, in part: time of a commit, %s keys", harness.Group(r.Keys)), X: "percentile", Y: "ms", LogY: true}
	add := func(name string, h syncbench.HiccupRow, paper string) {
		out.add(name, paper, "p50 %.1f ms, p99 %.1f ms, longest %.1f ms", h.P50MS, h.P99MS, h.MaxMS)
		c.Lines = append(c.Lines, line{Name: name, Points: []point{at(50, h.P50MS), at(99, h.P99MS), at(100, h.MaxMS)}})
	}
	for _, h := range r.Starling {
		add(fmt.Sprintf("Starling, %s", harness.Count(h.Joiners, "joiner")), h, "no drop during a snapshot")
	}
	for i, h := range r.SDK {
		if i == 0 {
			add("SDK (IAVL), no snapshots", h, "")
		} else {
			add("SDK (IAVL), with snapshots", h, "throughput drops during a snapshot")
		}
	}
	out.Charts = []chart{c}
	return out, nil
}
