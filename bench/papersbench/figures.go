package papersbench

import (
	"context"
	"fmt"
	"slices"

	"github.com/starling-kv/starling/bench/dsmbench"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/joinbench"
	"github.com/starling-kv/starling/bench/programsbench"
	"github.com/starling-kv/starling/bench/storagebench"
)

// figures is the registry, in the order of a run: cheap and informative ones first.
var figures = slices.Concat(avlstarFigures, joinFigures, chainkvFigures, rainblockFigures, borFigures)

var joinFigures = []*figure{{
	id: "join/moving", title: "A join while the chain moves",
	paper: "No paper has this figure. AVL* §4 fetches one fixed snapshot; a chain makes new ones meanwhile, and peers drop the old ones.",
	how:   "One peer over loopback. A share of the keys changes between two snapshots. A node that has the old state fetches the differences. A new node is retargeted when the peer drops the old snapshot halfway.",
	quick: []string{"join/moving --keys 200000"},
	full:  []string{"join/moving --keys 2000000"},
	differs: []string{
		"A node keeps a snapshot for three minutes after the last request; here the peer drops it at once, so that each join is retargeted.",
		"The time of a retargeted join includes about 4 s in which the joiner waits for another peer with the old snapshot.",
		"Without catching up by blocks.",
	},
	run: runMoving,
}}

var chainkvFigures = []*figure{
	{
		id: "chainkv/cache", title: "§8.5: the space-gaming cache against one LRU and fixed splits",
		paper: "Throughput 2.72 to 6.51 % higher than with one LRU, by ratio of transaction to account queries.",
		how:   "Queries are replayed on the caches alone; hits after a warm-up count.",
		quick: []string{"chainkv/cache --requests 60000"}, full: []string{"chainkv/cache --requests 1000000"},
		differs: []string{
			"Hits instead of throughput, 4 MiB of cache for 40 MiB of data, without a database.",
			"By default a node keeps its state in memory, and the cache has one player.",
		},
		run: runCache,
	},
	{
		id: "chainkv/stores", title: "§8.3 and §8.4: writes, reads, and the steps to them",
		paper: "Writes 30.77 to 99.69 % faster than Geth. Account queries 190.13 to 320.77 % faster, transaction queries 2.52 to 12.57 %, by distribution.",
		how:   "The program storage: a chain is replayed and queried. The baseline keeps IAVL's nodes and the blocks in one Pebble database.",
		quick: []string{"storage --keys 50000 --blocks 40 --queries 1000 --only write,reads --against mixed"},
		full:  []string{"storage --only write,reads --against mixed"},
		differs: []string{
			"The baseline has IAVL's nodes by version and nonce, not a hash-keyed Merkle Patricia trie.",
			"A generated chain, not Ethereum's blocks; the state has 120 bytes for each account.",
			"The paper's row and column prefixes are replaced by leaves in key order.",
		},
		run: runStores,
	},
	{
		id: "chainkv/recovery", title: "§8.8: recovery after a crash",
		paper: "The summary that we have gives no times; the recovery without a log is longer, and takes at most some seconds.",
		how:   "The program start: a node is killed, and started with its state in memory and paged.",
		quick: []string{"start --keys 50000,200000"}, full: []string{"start --keys 1000000,10000000"},
		differs: []string{"One kind of crash (SIGKILL). The blocks that CometBFT replays are counted, not timed."},
		run:     runRecovery,
	},
	{
		id: "chainkv/observation2", title: "§6.2.2: a hash-keyed Merkle Patricia trie has no locality on disk",
		paper:  "An observation without a number: the keys of nodes are hashes, so that a read visits unrelated blocks of the database.",
		reason: "No program here has a hash-keyed Merkle Patricia trie.",
		needs:  "Geth's package trie over Pebble as a contestant of storage. Its module raises OpenTelemetry, snappy and pion for every other contestant of this module, so it needs a module of its own, as the SDK has.",
	},
	{
		id: "chainkv/throughput", title: "§8.6 and §8.7: transaction throughput and other systems",
		paper:  "4.07 × (real) and 3.89 × (synthetic) of Geth's throughput.",
		reason: "The ratio is that of two builds of Geth. Starling executes other transactions.",
		needs:  "ChainKV's code in Geth, which is not published, and an archive of Ethereum's blocks.",
	},
}

var rainblockFigures = []*figure{
	{
		id: "rainblock/fig8", title: "Fig. 8: memory, witnesses and aborts by retention",
		paper: "(a) A tree of depth 5 takes 40 % of the memory of the full one. (b) Witnesses are up to 95 % smaller. (c) More retention and more accounts mean fewer aborts.",
		how:   "The program dsm, phase sizes.",
		quick: []string{"dsm --phases sizes --keys 100000 --blocks 4 --window 2 --retain 12 --depths 0,4,8,16"},
		full:  []string{"dsm --phases sizes"},
		differs: []string{
			"A binary tree: depth 4r here is about r in the paper's tree of 16 children.",
			"A validator fetches what is missing and runs the transaction again; none aborts. The share of stale transactions stands for aborts.",
		},
		run: runFig8,
	},
	{
		id: "rainblock/fig7", title: "Fig. 7: puts and gets of storage nodes",
		paper: "1.19M accounts: 216K gets per second, 150 × of Ethereum's trie, and 245K puts.",
		how:   "The program dsm, phase nodes: witnesses of random keys, and updates of blocks, by the number of storage nodes.",
		quick: []string{"dsm --phases nodes --keys 100000 --blocks 10 --shards 1,4"}, full: []string{"dsm --phases nodes"},
		differs: []string{"A get includes the witness and its verification.", "A put includes a verified update of a block.", "Without Ethereum's trie as the baseline."},
		run:     runFig7,
	},
	{
		id: "rainblock/fig3", title: "Fig. 3: I/O per block, witness sizes, and time of a block",
		paper:  "More than 10K random I/O operations for a block of about 100 transactions.",
		reason: "It measures Ethereum. A sharded validator of Starling has no state on disk; what a block fetches is in rainblock/fig8.",
		needs:  "A counter of requests for each block, and a Merkle Patricia trie on disk as the baseline.",
	},
	{
		id: "rainblock/fig9a", title: "Fig. 9a: end-to-end throughput by clients and retention",
		paper:  "About 30K transactions per second with r = 7; a storage node goes from 1.3K to 9.4K requests per second.",
		reason: "Clients, sharded validators and storage nodes run together in siege --sharded and programs, on one machine: two cores share them all.",
		needs:  "A load on a sharded network, with clients, validators and 16 storage nodes on machines of their own.",
	},
	{
		id: "rainblock/fig9b", title: "Fig. 9b: four regions",
		paper:  "About 20K transactions per second in four regions, 80 % of one region.",
		reason: "As rainblock/fig9a. The program programs measures one load with a delay (wan_ratio).", needs: "The load of rainblock/fig9a with the delays of e2e/relay.",
	},
	{
		id: "rainblock/contracts", title: "§8.4: contract calls",
		paper: "17.9K ± 796 calls per second of one ERC-20 contract.",
		how:   "The program programs: an application without CometBFT executes and commits blocks of transfers of an ERC-20 token, alone and among puts. Signatures are checked before.",
		quick: []string{"programs --phases app --accounts 2000 --keys 20000 --rounds 3 --blocks 10"}, full: []string{"programs --phases app"},
		differs: []string{
			"One application, without consensus, network or storage nodes; the paper's figure is of its whole network.",
			"Our own token, in the EVM of go-ethereum; every record of a transfer is named.",
			"Everything in memory.",
		},
		run: runContracts,
	},
}

var borFigures = []*figure{
	{
		id: "bor/fig9", title: "Fig. 9 and 10: time and CPU of fetching blocks, by size of the chain",
		paper: "10 to 50 GB: BoR takes up to 20.2 % less time than plain EOS (50 GB: 91 s and 114 s), and 26.4 to 33.9 % less CPU time.",
		how:   "The program join: a new node fetches the chain by CometBFT's block sync and over the transport.",
		quick: []string{"join --blocks 20 --rounds 1", "join --blocks 60 --rounds 1"}, full: []string{"join --blocks 200", "join --blocks 1000", "join --blocks 5000"},
		differs: []string{
			"TCP with TLS. There is no RDMA device; Soft-RoCE in a VM is slower than TCP (join --guest).",
			"Another consensus; both ways here run in the same node.", "The text gives 114 s to BoR and 91 s to EOS. Its 20.2 % implies the opposite, which we state.",
		},
		run: runBlocks,
	},
	{
		id: "bor/fig8", title: "Fig. 8: CPU over time",
		paper:  "The CPU time of BoR is mostly below that of plain EOS; the average is 0.49 % and 0.75 % in the best case.",
		reason: "The program join samples the CPU time each second, and keeps only the sum and the peak.",
		needs:  "The samples in join's result, for each way; and an RDMA device for the figure's point.",
	},
	{
		id: "bor/broadcast", title: "Broadcast of blocks over RDMA",
		paper:  "A mechanism without a figure.",
		reason: "The program relay measures it in a VM with Soft-RoCE, whose times say nothing about hardware.",
		needs:  "Two RDMA devices; relay runs on them as it is.",
	},
}

func runStores(ctx context.Context, commands []string, progress *harness.Progress) (*outcome, error) {
	results, err := measure(ctx, commands, progress, storagebench.Run)
	if err != nil {
		return nil, err
	}
	r, out := results[0], &outcome{}
	out.add("writes, Starling over mixed", "1.31 to 2.00 × of Geth", "%.2f × (interval of the median %.2f to %.2f)", r.WriteRatio, r.WriteRatioInterval.Low, r.WriteRatioInterval.High)
	out.add("account queries, normal distribution", "2.90 to 4.21 × of Geth", "%.2f ×, %.2f × by CPU time", r.ReadRatioAcc, r.ReadCPURatioAcc)
	out.add("account queries, without a cache of nodes in mixed", "", "%.2f ×", r.ReadRatioAccPlain)
	out.add("transaction queries, normal distribution", "1.03 to 1.13 × of Geth", "%.2f ×, %.2f × by CPU time", r.ReadRatioTx, r.ReadCPURatioTx)
	steps := chart{Title: "ChainKV §8.4: blocks written per second, step by step", X: "step: 0 mixed, 1 zones, 2 key order, 3 cache and no log", Y: "blocks/s"}
	l := line{Name: "blocks per second, with the fastest and the slowest round"}
	for _, c := range r.Writes {
		out.add("blocks written per second, "+c.Contestant, "", "%.1f, write amplification %.1f", c.BlocksPerS, c.WriteAmplification)
		if c.Step != "" {
			l.Points = append(l.Points, at(float64(len(l.Points)), c.BlocksPerS, c.Rates...))
		}
	}
	steps.Lines = []line{l}
	out.Charts = []chart{steps, readChart(r)}
	return out, out.setRaw(results)
}

// readChart draws queries per second by mix, of the first distribution.
func readChart(r *storagebench.Result) chart {
	c := chart{Name: "reads", X: "account queries of ten", Y: "queries/s", LogY: true}
	for _, cell := range r.Reads {
		if cell.Distribution != r.Reads[0].Distribution {
			continue
		}
		var tx, acc float64
		if _, err := fmt.Sscanf(cell.Mix, "%f:%f", &tx, &acc); err != nil {
			continue // a mix that changes
		}
		i := slices.IndexFunc(c.Lines, func(l line) bool { return l.Name == cell.Step })
		if i < 0 {
			i = len(c.Lines)
			c.Lines = append(c.Lines, line{Name: cell.Step})
		}
		c.Lines[i].Points = append(c.Lines[i].Points, at(acc, cell.PerS))
	}
	c.Title = "ChainKV §8.3: queries per second by mix, " + r.Reads[0].Distribution
	return c
}

func runRecovery(ctx context.Context, commands []string, progress *harness.Progress) (*outcome, error) {
	results, err := measure(ctx, commands, progress, storagebench.RunStart)
	if err != nil {
		return nil, err
	}
	out := &outcome{}
	memory, paged := line{Name: "state in memory"}, line{Name: "state paged"}
	for _, s := range results[0].Starts {
		out.add(harness.Group(s.Keys)+" keys", "", "%.2f s, paged %.2f s; %d blocks to replay", s.Seconds, s.PagedS, s.Lost)
		memory.Points, paged.Points = append(memory.Points, at(float64(s.Keys), s.Seconds)), append(paged.Points, at(float64(s.Keys), s.PagedS))
	}
	out.Charts = []chart{{Title: "ChainKV §8.8: start after SIGKILL", X: "keys", Y: "seconds", LogX: true, Lines: []line{memory, paged}}}
	return out, out.setRaw(results)
}

func runFig8(ctx context.Context, commands []string, progress *harness.Progress) (*outcome, error) {
	results, err := measure(ctx, commands, progress, dsmbench.Run)
	if err != nil {
		return nil, err
	}
	r, out := results[0], &outcome{}
	memory, bytes, stale := line{Name: "memory of the full tree"}, line{Name: "bytes of a transaction's paths, uncompacted"}, line{Name: "stale transactions"}
	for _, d := range r.Transfers.Sizes.Depths {
		paper := ""
		if d.Depth == r.Retain {
			paper = "40 % of the memory at depth 5; witnesses up to 95 % smaller"
		}
		reduction := 100 * (1 - harness.Ratio(d.MultiproofBytesTx, r.RawBytesTx))
		out.add(fmt.Sprintf("tree to depth %d", d.Depth), paper, "%.1f %% of the full tree's memory, witnesses %.1f %% smaller", 100*d.MemoryRatio, reduction)
		memory.Points = append(memory.Points, at(float64(d.Depth), 100*d.MemoryRatio))
		bytes.Points = append(bytes.Points, at(float64(d.Depth), 100-reduction))
	}
	for _, a := range r.Transfers.Sizes.Ages {
		stale.Points = append(stale.Points, at(float64(a.Age), 100*a.StaleRate))
	}
	if len(stale.Points) > 1 {
		out.add("transactions that are stale after one block", "aborts, less with more retention and accounts", "%.1f %%", 100*r.StaleRate)
	}
	keys := harness.Group(r.Keys) + " accounts"
	out.Charts = []chart{
		{Title: "RainBlock Fig. 8a and b: by depth of the tree that a validator keeps, " + keys, X: "depth r (binary)", Y: "%", Lines: []line{memory, bytes}},
		{Name: "stale", Title: "RainBlock Fig. 8c: stale transactions by age of the witness, " + keys, X: "age in blocks", Y: "%", Lines: []line{stale}},
	}
	return out, out.setRaw(results)
}

func runFig7(ctx context.Context, commands []string, progress *harness.Progress) (*outcome, error) {
	results, err := measure(ctx, commands, progress, dsmbench.Run)
	if err != nil {
		return nil, err
	}
	r, out := results[0], &outcome{}
	gets, puts := line{Name: "keys with witnesses per second and core"}, line{Name: "puts per second of wall time"}
	for _, s := range r.ShardRows {
		gets.Points, puts.Points = append(gets.Points, at(float64(s.Shards), s.OpsCore)), append(puts.Points, at(float64(s.Shards), s.PutS))
		paper := ""
		if s.Shards == 1 {
			paper = "216K gets and 245K puts per second"
		}
		out.add(harness.Count(s.Shards, "storage node"), paper, "%.0fK keys with witnesses per second and core, %.0fK puts per second", s.OpsCore/1000, s.PutS/1000)
	}
	out.Charts = []chart{{Title: fmt.Sprintf("RainBlock Fig. 7: storage nodes, %s accounts", harness.Group(r.Keys)), X: "storage nodes", Y: "operations/s", Lines: []line{
		gets, puts, {Name: "the paper: gets, one node", Paper: true, Points: []point{at(1, 216_000)}},
	}}}
	return out, out.setRaw(results)
}

func runContracts(ctx context.Context, commands []string, progress *harness.Progress) (*outcome, error) {
	results, err := measure(ctx, commands, progress, programsbench.Run)
	if err != nil {
		return nil, err
	}
	r, out := results[0], &outcome{}
	transfers, all := line{Name: "transfers"}, line{Name: "transfers and puts"}
	for _, a := range r.App {
		paper := ""
		if a.Percent == 100 {
			paper = "17.9K ± 796 calls per second"
		}
		out.add(fmt.Sprintf("%d %% transfers", a.Percent), paper, "%.1fK transfers and %.1fK transactions per second", a.Transfers.Median/1000, a.TPS.Median/1000)
		x := float64(a.Percent)
		transfers.Points = append(transfers.Points, at(x, a.Transfers.Median, a.Transfers.Low, a.Transfers.High))
		all.Points = append(all.Points, at(x, a.TPS.Median, a.TPS.Low, a.TPS.High))
	}
	out.Charts = []chart{{Title: fmt.Sprintf("RainBlock §8.4: an ERC-20 token, %s accounts", harness.Group(r.Accounts)), X: "% of transfers", Y: "per second", Lines: []line{
		transfers, all, {Name: "the paper: calls", Paper: true, Points: []point{at(100, 17_900)}},
	}}}
	return out, out.setRaw(results)
}

func runBlocks(ctx context.Context, commands []string, progress *harness.Progress) (*outcome, error) {
	results, err := measure(ctx, commands, progress, joinbench.Run)
	if err != nil {
		return nil, err
	}
	out := &outcome{}
	tcp, unlimited := line{Name: "Starling's transport, TCP with TLS"}, line{Name: "block sync, 500 MB/s"}
	blocksync := line{Name: "block sync, default rate"}
	for _, r := range results {
		mb := float64(r.Blocks) * float64(r.BlockBytes) / 1e6
		tcp.Points, unlimited.Points = append(tcp.Points, at(mb, r.TCPS)), append(unlimited.Points, at(mb, r.Blocksync500S))
		blocksync.Points = append(blocksync.Points, at(mb, r.BlocksyncS))
		out.add(fmt.Sprintf("%.0f MB in %d blocks", mb, r.Blocks), "RDMA up to 20.2 % less time than TCP; 26.4 to 33.9 % less CPU",
			"transport %.2f s and %.2f CPU s; block sync %.2f s, %.2f s at its default rate", r.TCPS, r.CPUS, r.Blocksync500S, r.BlocksyncS)
	}
	out.Charts = []chart{{Title: "BoR Fig. 9: time of fetching a chain's blocks", X: "MB", Y: "seconds", Lines: []line{tcp, unlimited, blocksync}}}
	return out, out.setRaw(results)
}
