package papersbench

import (
	"fmt"
	"slices"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/e2ebench"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/syncbench"
	"github.com/starling-kv/starling/bench/workload"
)

var avlstarFigures = []*figure{
	{
		id: "avlstar/space", title: "Space efficiency (§5.3.3), and chunks under deletes and churn",
		paper:   "Chunks divided by the ideal number of chunks, while one million random keys are inserted: around 1.4. About 4 % of the splits are due to rotations (§3.7). The paper has no figure for deletes.",
		how:     "The paper's chunks (Algorithms 1 to 4) are implemented in the benchmark. The same operations change both trees.",
		usual:   []string{"avlstar/space --keys 100000 --limit 1000"},
		full:    []string{"avlstar/space --keys 1000000 --limit 10000"},
		differs: []string{"Starling limits a chunk in bytes: the limit here is C_p leaf records.", "A leaf's hash does not cover the height of an inner node here; §3.3 leaves that open."},
		run:     runSpace,
	},
	{
		id: "avlstar/fig7", title: "Fig. 7: state synchronization with Byzantine peers",
		paper:   "80 peers, one million keys, 1 to 26 peers that send invalid chunks, five joins each. The time grows linearly with the number of Byzantine peers. With 20 of them it is still below the 16.3 s of IAVL+ without any.",
		how:     "The program byzantine. Whiskers are the fastest and the slowest join.",
		quick:   []string{"byzantine --keys 50000 --lying 0,10,26 --repeat 1"},
		usual:   []string{"byzantine --keys 300000 --lying 0,1,10,20,26 --repeat 3"},
		full:    []string{"byzantine --keys 1000000 --lying 0,1,5,10,15,20,26 --repeat 5"},
		differs: []string{"All 80 peers share one process on this machine; the paper's were in a WAN.", "Chunks of 1 MiB, the paper's 10 MB.", "Byzantine peers also truncate, extend, swap and withhold chunks and falsify manifests.", "IAVL's join with a Byzantine validator is in avlstar/fig3."},
		run:     drawn(syncbench.RunByzantine, drawByzantine),
	},
	{
		id: "avlstar/fig3", title: "Fig. 3: time of a join by size of the state",
		paper: "10k to 10M keys, 10 and 80 peers, chunks of 10k and 100k keys. The time is linear in the size. AVL* takes about half the time of IAVL+: 58 % faster on average. IAVL+ takes 16.3 s with 1M keys and 80 peers.",
		how:   "The program newcomer: a node joins a network of starlingd, and one of an application on IAVL (bench/iavlnode) by CometBFT's state sync, until the state is verified.",
		quick: newcomerCommands("--rounds 1", 10_000, 50_000),
		usual: slices.Concat(newcomerCommands("--rounds 1", 10_000, 30_000, 100_000), newcomerCommands("--rounds 1 --lying 1", 100_000),
			newcomerCommands("--rounds 1 --validators 10", 100_000)),
		full: slices.Concat(newcomerCommands("--rounds 5", 10_000, 100_000, 1_000_000), newcomerCommands("--rounds 5 --lying 1", 1_000_000),
			newcomerCommands("--rounds 5 --validators 10", 1_000_000),
			newcomerCommands(fmt.Sprintf("--rounds 5 --chunk-bytes %d", min(chunkOf(100_000), avlstar.MaxChunkBytes)), 1_000_000)),
		differs: []string{
			"Four or ten validators on one machine, 0 and 40 ms from the new node, one way; the paper's 10 or 80 peers were in a WAN.",
			"CometBFT discovers snapshots for at least 5 s, while it also connects: the times are given with and without that. It is unknown whether the paper's contain it.",
			"The time ends when the node answers with the verified state, which need not be durable yet. No clients send transactions meanwhile.",
			"Chunks of 1 MiB, about 10k keys; of 100k keys only with --full.", "IAVL v1 of today on goleveldb, without fast storage.",
			"Starling's Byzantine validator sends damaged chunks, which are fetched again. IAVL's offers a false state as the newest snapshot: only its end shows that, and the node restores another one.",
		},
		run: drawn(e2ebench.RunNewcomer, drawNewcomer),
	},
	{
		id: "avlstar/fig6", title: "Fig. 6: time of a snapshot",
		paper:   "IAVL+, up to one million keys: the time grows linearly with the state. AVL* takes no time, since the chunks are part of the tree. The paper's text has no absolute times.",
		how:     "The SDK's store creates a snapshot. Starling makes a manifest, which a joiner fetches first; this needs no pause.",
		quick:   syncCommands(10_000, 30_000),
		usual:   syncCommands(10_000, 30_000, 100_000),
		full:    syncCommands(10_000, 100_000, 300_000, 1_000_000),
		differs: []string{"The SDK's store of today instead of IAVL+ of 2022."},
		run:     drawn(syncbench.Run, drawSnapshot),
	},
	{
		id: "avlstar/fig4", title: "Fig. 4: throughput and latency while snapshots are made, 10 peers",
		paper:   "10 peers, one million keys, a snapshot every ten blocks: the throughput of IAVL+ drops while one is made, that of AVL* does not. Table 2, chunks of 10k keys: IAVL+ 2374 tx/s and 4.18 s, AVL* 2539 tx/s and 3.85 s.",
		how:     "The program snapshots, against an application on IAVL (bench/iavlnode) whose commits wait for a snapshot, as the paper's, or which makes it in the background, as the Cosmos SDK.",
		quick:   []string{"snapshots --keys 20000 --rounds 1 --seconds 10 --timeout-commit 200ms"},
		usual:   []string{"snapshots --keys 50000 --rounds 1 --seconds 30"},
		full:    []string{"snapshots --keys 1000000 --rounds 5 --seconds 300"},
		differs: append([]string{"Four validators."}, snapshotsDiffer...),
		run:     drawn(e2ebench.RunSnapshots, drawSnapshots("Fig. 4", "2374 tx/s, 4.18 s", "2539 tx/s, 3.85 s")),
	},
	{
		id: "avlstar/fig5", title: "Fig. 5: throughput and latency while snapshots are made, 80 peers",
		paper:   "80 peers in seven regions, blocks every five seconds. Table 2, chunks of 10k keys: IAVL+ 893 tx/s and 8.63 s, AVL* 988 tx/s and 7.64 s.",
		how:     "The program snapshots, as in Fig. 4, with more validators and 40 ms between every two, one way.",
		quick:   []string{"snapshots --delay 40ms --keys 10000 --rounds 1 --seconds 10 --timeout-commit 200ms --networks iavl-pausing,starling-snapshots"},
		usual:   []string{"snapshots --validators 7 --delay 40ms --keys 20000 --rounds 1 --seconds 60 --networks iavl,iavl-pausing,starling,starling-snapshots"},
		full:    []string{"snapshots --validators 10 --delay 40ms --timeout-commit 5s --keys 300000 --rounds 5 --seconds 300"},
		differs: append([]string{"Seven or ten validators: 80 on two cores would measure the scheduler.", "All pairs have the same delay."}, snapshotsDiffer...),
		run:     drawn(e2ebench.RunSnapshots, drawSnapshots("Fig. 5", "893 tx/s, 8.63 s", "988 tx/s, 7.64 s")),
	},
}

// snapshotsDiffer are the differences of both figures with networks.
var snapshotsDiffer = []string{
	"All validators share two cores, so the snapshots of all are made at the same time by one machine: a pause is longer than the paper's.",
	"The paper runs both trees in one application. Starling is a whole node: it relays and checks transactions and stores blocks in its own way, which its throughput contains. Compare each program with itself without snapshots.",
	"IAVL v1 of today with the Cosmos SDK's cache on goleveldb; chunks of 1 MiB.",
}

// newcomerCommands returns the commands of newcomer for several sizes.
func newcomerCommands(options string, keys ...int) (all []string) {
	for _, n := range keys {
		all = append(all, fmt.Sprintf("newcomer --keys %d --timeout-commit 100ms %s", n, options))
	}
	return all
}

// syncCommands returns the commands of sync for several sizes, in chunks of about 10k keys.
func syncCommands(keys ...int) (all []string) {
	for _, n := range keys {
		all = append(all, fmt.Sprintf("sync --keys %d --against sdk --repeat 3 --sdk-repeat 1 --chunk-bytes %d", n, chunkOf(10_000)))
	}
	return all
}

// chunkOf returns the length of a number of leaves.
func chunkOf(leaves int) int {
	return leaves * int(avlstar.RecordBytes(workload.KeyBytes, workload.ValueBytes))
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

func drawNewcomer(results []*e2ebench.NewcomerResult) (*outcome, error) {
	out := &outcome{}
	c := chart{Title: fmt.Sprintf("AVL* Fig. 3: time of a join, %d validators", results[0].Validators), X: "keys", Y: "seconds", LogX: true, LogY: true}
	for i, j := range results[0].Joins {
		starling, iavl := line{Name: fmt.Sprintf("Starling, %d ms", j.DelayMS)}, line{Name: fmt.Sprintf("IAVL, %d ms", j.DelayMS)}
		after := line{Name: fmt.Sprintf("IAVL, %d ms, after the discovery", j.DelayMS)}
		for _, r := range results {
			j, x := r.Joins[i], float64(r.Keys)
			points := func(of []e2ebench.NewcomerJoin, figure func(e2ebench.NewcomerJoin) float64) point {
				values := harness.Each(of, figure)
				return at(x, harness.Median(values), values...)
			}
			whole := func(j e2ebench.NewcomerJoin) float64 { return j.Seconds }
			a, b := points(j.Starling, whole), points(j.IAVL, whole)
			d := points(j.IAVL, func(j e2ebench.NewcomerJoin) float64 { return j.AfterDiscoveryS })
			what, paper := fmt.Sprintf("%s keys, %d ms", harness.Group(r.Keys), j.DelayMS), "IAVL+ over AVL* about 2 ×"
			usual := false
			switch {
			case r.Lying > 0:
				what, paper = fmt.Sprintf("%s, %d of %d validators Byzantine", what, r.Lying, r.Validators), ""
			case r.Validators != results[0].Validators:
				what = fmt.Sprintf("%s, %d validators", what, r.Validators)
			case r.ChunkBytes != results[0].ChunkBytes:
				what = fmt.Sprintf("%s, chunks of %s bytes", what, harness.Group(r.ChunkBytes))
			default:
				usual = true
			}
			if r.Lying == 0 && r.Keys == 1_000_000 {
				paper = "IAVL+ 16.3 s with 80 peers; about 2 × of AVL*"
			}
			if usual {
				starling.Points, iavl.Points, after.Points = append(starling.Points, a), append(iavl.Points, b), append(after.Points, d)
			}
			out.add(what, paper, "Starling %.2f s, IAVL %.2f s: %s ×; %.2f s after the discovery: %s ×",
				a.Y, b.Y, j.Ratio.Text("%.2f"), d.Y, j.AfterDiscovery.Text("%.2f"))
		}
		c.Lines = append(c.Lines, starling, iavl, after)
	}
	c.Lines = append(c.Lines, line{Name: "the paper: IAVL+, 80 peers in a WAN", Paper: true, Points: []point{at(1_000_000, 16.3)}})
	out.Charts = []chart{c}
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

// drawSnapshots draws the time lines and latencies of networks. theirs and ours are the paper's
// numbers of IAVL+ and AVL*.
func drawSnapshots(name, theirs, ours string) func([]*e2ebench.SnapshotsResult) (*outcome, error) {
	return func(results []*e2ebench.SnapshotsResult) (*outcome, error) {
		out, r := &outcome{}, results[0]
		over := chart{Title: fmt.Sprintf("AVL* %s: throughput over time, %d validators, %s keys", name, r.Validators, harness.Group(r.Keys)), X: "seconds", Y: "tx/s of a block; vertical: a snapshot"}
		cdf := chart{Name: "latency", Title: fmt.Sprintf("AVL* %s: latency, %d validators, %s keys", name, r.Validators, harness.Group(r.Keys)), X: "seconds", Y: "% of the transactions", LogX: true}
		for _, n := range r.Networks {
			times, latencies := line{Name: n.Name}, line{Name: n.Name}
			for _, b := range n.Rounds[0].Blocks {
				p := at(b.AtS, b.TPS)
				if b.Snapshot {
					p.High = b.TPS // a line from 0
				}
				times.Points = append(times.Points, p)
			}
			for i, p := range e2ebench.Percentiles {
				latencies.Points = append(latencies.Points, at(n.CDF[i]/1e3, p))
			}
			cdf.Lines = append(cdf.Lines, latencies)
			paper := map[string]string{"iavl-pausing": theirs, "starling-snapshots": ours}[n.Name]
			if n.MakesSnapshots {
				over.Lines = append(over.Lines, times)
			}
			median := func(figure func(e2ebench.SnapshotsRound) float64) float64 { return harness.MedianOf(n.Rounds, figure) }
			out.add(n.Name, paper, "%s ± %.0f tx/s, %s ± %.2f s; snapshots: %.0f, longest time between two blocks %.1f s", n.TPS.Text("%.0f"),
				median(func(r e2ebench.SnapshotsRound) float64 { return r.TPSDev }), seconds(n.MeanMS).Text("%.2f"),
				median(func(r e2ebench.SnapshotsRound) float64 { return r.DevMS / 1e3 }), median(func(r e2ebench.SnapshotsRound) float64 { return float64(r.Snapshots) }),
				median(func(r e2ebench.SnapshotsRound) float64 { return r.LongestMS / 1e3 }))
		}
		if r.Gain.Median > 0 {
			out.add("gain: starling-snapshots over starling, over iavl-pausing over iavl", "1.05 to 1.12 × tx/s, 0.87 to 0.95 × latency", "%s × tx/s, %s × latency",
				r.Gain.Text("%.2f"), r.GainLatency.Text("%.2f"))
		}
		out.add("starling-snapshots over iavl-pausing, whole nodes", "", "%s × tx/s, %s × latency", r.Ratio.Text("%.2f"), r.Latency.Text("%.2f"))
		for _, plain := range []struct {
			what  string
			ratio harness.Interval
		}{
			{"starling over iavl, both without snapshots", r.Plain}, {"iavl-pausing over iavl", r.KeptPausing}, {"iavl-background over iavl", r.KeptBackground},
			{"starling-snapshots over starling", r.Kept},
		} {
			if plain.ratio.Median > 0 {
				out.add(plain.what, "", "%s × tx/s", plain.ratio.Text("%.2f"))
			}
		}
		out.Charts = []chart{over, cdf}
		return out, nil
	}
}

// seconds converts an interval in milliseconds.
func seconds(ms harness.Interval) harness.Interval {
	ms.Median, ms.Low, ms.High = ms.Median/1e3, ms.Low/1e3, ms.High/1e3
	return ms
}
