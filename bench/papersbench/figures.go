package papersbench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/starling-kv/starling/bench/dsmbench"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/joinbench"
	"github.com/starling-kv/starling/bench/programsbench"
	"github.com/starling-kv/starling/bench/relaybench"
	"github.com/starling-kv/starling/bench/storagebench"
)

// figures is the registry, in the order of a run: cheap and informative ones first.
var figures = slices.Concat(avlstarFigures, joinFigures, chainkvFigures, rainblockFigures, borFigures)

var joinFigures = []*figure{{
	id: "join/moving", title: "A join while the chain moves",
	paper: "No paper has this figure. AVL* §4 fetches one fixed snapshot; a chain makes new ones meanwhile, and peers drop the old ones.",
	how:   "One peer over loopback. A share of the keys changes between two snapshots. A node that has the old state fetches the differences, or the blocks between. A new node is retargeted when the peer drops the old snapshot halfway.",
	quick: []string{"join/moving --keys 50000 --shares 0.1,1,10"},
	usual: []string{"join/moving --keys 200000"},
	full:  []string{"join/moving --keys 2000000"},
	differs: []string{
		"A node keeps a snapshot for three minutes after the last request; here the peer drops it at once, so that each join is retargeted.",
		"By blocks, the old state is another one: the same keys with other values, and five records of the application.",
		"Each key changes once, in a signed transaction of its own, and blocks have 1,000 transactions. If keys change repeatedly, there are more blocks for the same differences.",
		"The chain has one validator, so a block has one signature of a validator. The node saves, executes and indexes blocks as usual, and then flushes at once instead of within 5 s.",
	},
	run: runMoving,
}}

var chainkvFigures = []*figure{
	{
		id: "chainkv/cache", title: "§8.5: the space-gaming cache against one LRU and fixed splits",
		paper: "Throughput 2.72 to 6.51 % higher than with one LRU, by ratio of transaction to account queries.",
		how:   "Queries are replayed on the caches alone; hits after a warm-up count.",
		usual: []string{"chainkv/cache --requests 60000"}, full: []string{"chainkv/cache --requests 1000000"},
		differs: []string{
			"Hits instead of throughput, 4 MiB of cache for 40 MiB of data, without a database.",
			"By default a node keeps its state in memory, and the cache has one player.",
		},
		run: runCache,
	},
	{
		id: "chainkv/stores", title: "§8.3 and §8.4: writes, reads, and the steps to them",
		paper: "Writes 30.77 to 99.69 % faster than Geth. Account queries 190.13 to 320.77 % faster, transaction queries 2.52 to 12.57 %, by distribution.",
		how:   "The program storage: a chain is replayed and queried. Each baseline keeps the blocks and the nodes of its state in one database, Pebble or goleveldb: mixed has IAVL's nodes, geth-hash and geth-path those of Ethereum's trie in geth's two schemes, geth-row and geth-column those by hash with ChainKV's prefixes.",
		quick: []string{"storage --keys 20000 --blocks 20 --queries 500 --only write,reads --against mixed,geth-hash,geth-path"},
		usual: []string{"storage --keys 50000 --blocks 40 --queries 1000 --only write,reads --against " + strings.Join(storePeers, ",")},
		full:  []string{"storage --only write,reads --against " + strings.Join(storePeers, ",")},
		differs: []string{
			"Requests of geth's trie are replayed, not geth. geth-hash makes each block durable, geth does so after many; geth-path has geth's flat state and a write buffer, without its history.",
			"A generated chain, not Ethereum's blocks; the state has 120 bytes for each account.",
			"Starling has leaves in key order instead of prefixes. In the baselines, a prefix is a node's depth (row) or its path (column), without separate zones.",
		},
		run: drawn(storagebench.Run, drawStores),
	},
	{
		id: "chainkv/recovery", title: "§8.8: recovery after a crash",
		paper: "0 to 24.42 s by level of crash, 7.59 s on average.",
		how: "The program start: a node is killed, and started with its state in memory and paged. A level of crash is the number of blocks after a flush; " +
			"blocks that were not durable are read from the block store and executed again.",
		quick: []string{"start --keys 20000,50000"}, usual: []string{"start --keys 50000,200000"}, full: []string{"start --keys 1000000,10000000"},
		differs: []string{
			"SIGKILL, so that the page cache survives; the levels are ours, since the summary that we have does not name the paper's.",
			"A replay reads blocks and writes accounts. Signatures are not checked (CometBFT does not check them again, either), and CometBFT's own start does not count.",
		},
		run: drawn(storagebench.RunStart, drawRecovery),
	},
	{
		id: "chainkv/observation2", title: "§6.2.2: a hash-keyed Merkle Patricia trie has no locality on disk",
		paper: "An observation without a number: the keys of nodes are hashes, so that a read visits unrelated blocks of the database.",
		how:   "The program storage, part locality: reads of files by account queries, with five limits for all caches of a contestant. Each read is a block of the database: of data, of an index, or of a filter. Whiskers are the least and the most of all chains.",
		quick: localityCommands("--keys 20000 --blocks 20 --queries 500")[:2], usual: localityCommands("--keys 200000 --blocks 100 --queries 2000"), full: localityCommands(""),
		differs: []string{
			"A count of reads, not a distance between them. Compactions in the background differ from run to run; a filter is one block, of up to hundreds of KB.",
			"Starling's tree above the pages is in memory, also where the limit is smaller. By default a node has its whole state in memory, and reads nothing.",
			"A generated chain with one trie of accounts, without contracts.",
		},
		run: drawn(storagebench.Run, drawLocality),
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
		quick: []string{"dsm --phases sizes --keys 20000 --accounts 10000,20000 --blocks 2 --window 2 --retain 12 --depths 0,4,8,16"},
		usual: []string{"dsm --phases sizes --accounts 100000,300000,1000000 --blocks 8 --window 2 --depths 0,4,8,10,14,16"},
		full:  []string{"dsm --phases sizes --accounts 100000,300000,1000000,3000000"},
		differs: []string{
			"A binary tree: depth 4r here is about r in the paper's tree of 16 children.",
			"A validator fetches what is missing and runs the transaction again; none aborts. The share of stale transactions stands for aborts.",
			"(c) is after one block of 1,000 transactions, with one signer for 50 accounts. The paper draws two accounts evenly; here nine of ten are drawn from a tenth of the accounts.",
		},
		run: drawn(dsmbench.Run, drawFig8),
	},
	{
		id: "rainblock/fig7", title: "Fig. 7: puts and gets of storage nodes",
		paper: "1.19M accounts: 216K gets per second, 150 × of Ethereum's trie, and 245K puts.",
		how:   "The program dsm, phase nodes: witnesses of random keys, and updates of blocks, by the number of storage nodes. The baseline runs in this program.",
		quick: []string{"dsm --phases nodes --keys 20000 --blocks 5 --shards 1,2", "rainblock/trie --keys 20000"},
		usual: []string{"dsm --phases nodes --keys 100000 --blocks 10 --shards 1,4", "rainblock/trie --keys 100000"},
		full:  []string{"dsm --phases nodes", "rainblock/trie --keys 1000000"},
		differs: []string{
			"Keys of a block share one witness, without the tree to depth r, which the receiver has; it goes over TLS. A get of Ethereum's trie has a full proof of its own, and no network.",
			"The receiver's verification does not count in either.",
			"A put includes a verified update of a block. A put of Ethereum's trie includes the hashes of its block, and a synced batch.",
			"The baseline is geth's trie in the hash scheme over Pebble, alone: no client asks it.",
		},
		run: runFig7,
	},
	{
		id: "rainblock/fig3", title: "Fig. 3: I/O per block, witness sizes, and time of a block",
		paper: "More than 10K random I/O operations for a block of about 100 transactions.",
		how:   "Blocks of 100 transfers change geth's trie in the hash scheme over Pebble without a block cache. A transfer reads and writes two accounts.",
		quick: trieCommands(10_000, 50_000),
		usual: trieCommands(10_000, 30_000, 100_000, 300_000),
		full:  trieCommands(10_000, 100_000, 1_000_000, 3_000_000),
		differs: []string{
			"A trie alone, not Ethereum: without contracts, receipts, the index and other columns, and with at most 3M accounts.",
			"The database is compacted before the blocks, and each node is read once in a block: both mean fewer reads.",
			"Pebble without Bloom filters; the paper's Ethereum has LevelDB or RocksDB.",
			"Starling's state is in memory; only its witness is comparable.",
		},
		run: drawn(measureTrie, drawFig3),
	},
	{
		id: "rainblock/fig9a", title: "Fig. 9a: end-to-end throughput by clients and retention",
		paper: "About 30K transactions per second with r = 7; a storage node goes from 1.3K to 9.4K requests per second.",
		how: "The program programs: clients send transfers of an ERC-20 token and puts through gateways, to four sharded validators with four storage nodes. " +
			"Each network keeps the tree to another depth r.",
		quick: []string{"programs --quick --phases grid"},
		usual: []string{"programs --phases grid --net-rounds 1 --grid-retain 0,4,8,12 --grid-gateways 1,2"},
		full:  []string{"programs --phases grid"},
		differs: []string{
			"All nodes and clients share one machine of two cores, so each further gateway takes CPU time from the others.",
			"Four storage nodes instead of 16; clients sign, and validators agree by CometBFT.",
			"A storage node serves what the load needs, not as much as it can. A request may be for many keys, and updates of blocks are requests.",
		},
		run: drawn(programsbench.Run, drawGrid),
	},
	{
		id: "rainblock/fig9b", title: "Fig. 9b: four regions",
		paper: "About 20K transactions per second in four regions, 80 % of one region.",
		how:   "The program programs: one load on two networks, with and without 40 ms between every two validators, and between validators and storage nodes.",
		quick: []string{"programs --quick --phases network,wan"},
		usual: []string{"programs --phases network,wan --net-rounds 1"},
		full:  []string{"programs --phases network,wan"},
		differs: []string{
			"All nodes share one machine of two cores. Relays make the delays.",
			"Clients send to the validator of their region; storage nodes read headers without a delay.",
		},
		run: drawn(programsbench.Run, drawRegions),
	},
	{
		id: "rainblock/contracts", title: "§8.4: contract calls",
		paper: "17.9K ± 796 calls per second of one ERC-20 contract.",
		how:   "The program programs: an application without CometBFT executes and commits blocks of transfers of an ERC-20 token, alone and among puts. Signatures are checked before.",
		usual: []string{"programs --phases app --accounts 2000 --keys 20000 --rounds 3 --blocks 10"}, full: []string{"programs --phases app"},
		differs: []string{
			"One application, without consensus, network or storage nodes; the paper's figure is of its whole network.",
			"Our own token, in the EVM of go-ethereum; every record of a transfer is named.",
			"Everything in memory.",
		},
		run: drawn(programsbench.Run, drawContracts),
	},
}

var borFigures = []*figure{
	{
		id: "bor/fig9", title: "Fig. 9 and 10: time and CPU of fetching blocks, by size of the chain",
		paper: "10 to 50 GB: BoR takes up to 20.2 % less time than plain EOS (50 GB: 91 s and 114 s), and 26.4 to 33.9 % less CPU: 0.49 % and 0.75 % on average in the best case.",
		how:   "The program join: a new node fetches the chain by CometBFT's block sync and over the transport. The CPU time of the node is divided by the time of the join; a part of it is spent in the kernel, for the network and files.",
		quick: []string{"join --blocks 10 --rounds 1", "join --blocks 30 --rounds 1"}, usual: []string{"join --blocks 20 --rounds 1", "join --blocks 60 --rounds 1"}, full: []string{"join --blocks 200", "join --blocks 1000", "join --blocks 5000"},
		differs: borDiffers("The text gives 114 s to BoR and 91 s to EOS. Its 20.2 % implies the opposite, which we state."),
		rdma:    true,
		run:     drawn(joinbench.Run, drawBlocks),
	},
	{
		id: "bor/fig8", title: "Fig. 8: CPU over time",
		paper: "The CPU use of BoR is mostly below that of plain EOS.",
		how:   "The program join, with one size: the CPU time of the new node, sampled each 100 ms.",
		quick: []string{"join --blocks 30 --rounds 1"}, usual: []string{"join --blocks 100 --rounds 1"}, full: []string{"join --blocks 1000 --rounds 3"},
		differs: borDiffers("The paper samples the server's CPU each second; here it is the node's, in processors. The paper's curves are in a picture, without numbers."),
		rdma:    true,
		run:     drawn(joinbench.Run, drawUse),
	},
	{
		id: "bor/components", title: "Ours: CPU by component",
		paper:   "The paper gives reasons (no kernel, no copies of the stack), without a figure.",
		how:     "The program join, with --profile: a CPU profile of a new node, from its start until it has the blocks. A sample belongs to the innermost function of its stack whose package is part of a component.",
		quick:   []string{"join --blocks 30 --rounds 1 --profile"},
		usual:   []string{"join --blocks 60 --rounds 1 --profile"},
		full:    []string{"join --blocks 1000 --rounds 1 --profile"},
		differs: borDiffers("A profile has 100 samples for each second of CPU time. A system call of a connection counts as network, one of a file as storage."),
		rdma:    true,
		run:     drawn(joinbench.Run, drawComponents),
	},
	{
		id: "bor/broadcast", title: "Broadcast of blocks",
		paper: "A mechanism without a figure.",
		how: "The program relay: three validators pass on blocks of several sizes by CometBFT's p2p, at two rates, and over the transport. A time is that from the proposal until the last validator has the last part. " +
			"Without consensus, a block is sent to two receivers over plain TCP, TCP with TLS, and RDMA.",
		quick: []string{"relay --rounds 1 --blocks 1 --block-bytes 256KiB,1MiB --rates 500000000"},
		usual: []string{"relay --rounds 1 --blocks 2 --block-bytes 256KiB,1MiB,4MiB"},
		full:  []string{"relay --block-bytes 256KiB,1MiB,4MiB"},
		differs: []string{
			"RDMA needs --devices, which nobody has run yet, or --guest. Soft-RoCE in a VM does not predict hardware.",
			"CometBFT's consensus instead of DPoS, and all validators on this machine.",
			"No node has plain TCP: it is measured without consensus only, with both sides in one process.",
		},
		rdma: true,
		run:  drawn(relaybench.Run, drawRelay),
	},
	{
		id: "bor/rdma", title: "Fig. 8 to 10 over RDMA",
		paper:  "All figures of BoR are over RDMA: see those above.",
		reason: "There is no RDMA device. Soft-RoCE in a VM (--guest) sends each packet through the kernel, which RDMA is to avoid.",
		needs:  "A machine with two RDMA devices (RoCE v2 or InfiniBand) in one fabric: CGO_ENABLED=1 go run -tags rdma . papers --only bor/fig9,bor/fig8,bor/broadcast --devices mlx5_0,mlx5_1.",
	},
}

// borDiffers returns what differs in all figures of BoR, and one more difference.
func borDiffers(more string) []string {
	return []string{
		"TCP with TLS. RDMA needs --devices, which nobody has run yet, or --guest. Soft-RoCE in a VM is slower than TCP.",
		"Another consensus; both ways here run in the same node, which also executes and stores the blocks.", more,
	}
}

// storePeers are the baselines of chainkv/stores.
var storePeers = []string{"mixed", "goleveldb", "geth-hash", "geth-hash-goleveldb", "geth-row", "geth-column", "geth-path"}

func drawStores(results []*storagebench.Result) (*outcome, error) {
	r, out := results[0], &outcome{}
	out.add("writes, Starling over mixed", "1.31 to 2.00 × of Geth", "%.2f × (interval of the median %.2f to %.2f)", r.WriteRatio, r.WriteRatioInterval.Low, r.WriteRatioInterval.High)
	out.add("account queries, normal distribution, without a cache of nodes in mixed", "", "%.2f ×", r.ReadRatioAccPlain)
	for _, contestant := range storePeers[1:] {
		if ratio := r.WritesOver(contestant); ratio > 0 {
			out.add("writes, Starling over "+contestant, "1.31 to 2.00 × of Geth", "%.2f ×", ratio)
		}
	}
	var over []chart
	for _, contestant := range storePeers {
		c := chart{Name: "over-" + contestant, Title: "ChainKV §8.3: queries per second of Starling over those of " + contestant, X: "account queries of ten", Y: "×"}
		for _, ratio := range r.ReadRatios(contestant) {
			switch ratio.Accounts {
			case 10:
				out.add("account queries, "+ratio.Distribution+", Starling over "+contestant, "2.90 to 4.21 × of Geth", "%.2f ×, %.2f × by CPU time", ratio.Clock, ratio.CPU)
			case 0:
				out.add("transaction queries, "+ratio.Distribution+", Starling over "+contestant, "1.03 to 1.13 × of Geth", "%.2f ×, %.2f × by CPU time", ratio.Clock, ratio.CPU)
			}
			c.Lines = appendTo(c.Lines, ratio.Distribution, at(float64(ratio.Accounts), ratio.Clock))
		}
		if len(c.Lines) > 0 {
			c.Lines = append(c.Lines,
				line{Name: "the paper: ChainKV over Geth, lowest of three distributions", Paper: true, Points: []point{at(0, 1.03), at(10, 2.90)}},
				line{Name: "the paper, highest", Paper: true, Points: []point{at(0, 1.13), at(10, 4.21)}})
			over = append(over, c)
		}
	}
	steps := chart{Title: "ChainKV §8.4: blocks written per second, step by step", X: "step: 0 mixed, 1 zones, 2 key order, 3 cache and no log", Y: "blocks/s"}
	l := line{Name: "blocks per second, with the fastest and the slowest round"}
	for _, c := range r.Writes {
		out.add("blocks written per second, "+c.Contestant, "", "%.1f, write amplification %.1f", c.BlocksPerS, c.WriteAmplification)
		if c.Step != "" {
			l.Points = append(l.Points, at(float64(len(l.Points)), c.BlocksPerS, c.Rates...))
		}
	}
	var space []string
	for _, c := range r.Writes {
		space = append(space, fmt.Sprintf("%s %.0f MB", c.Contestant, float64(c.Space)/1e6))
	}
	out.add("files on disk after the writes", "", "%s", strings.Join(space, ", "))
	steps.Lines = []line{l}
	out.Charts = slices.Concat([]chart{steps}, over, readCharts(r))
	return out, nil
}

// readCharts draws queries per second by mix, a picture for each distribution.
func readCharts(r *storagebench.Result) (all []chart) {
	starling := ""
	for _, cell := range r.Reads {
		var tx, acc float64
		if _, err := fmt.Sscanf(cell.Mix, "%f:%f", &tx, &acc); err != nil {
			continue // a mix that changes
		}
		name := "reads-" + cell.Distribution
		i := slices.IndexFunc(all, func(c chart) bool { return c.Name == name })
		if i < 0 {
			i = len(all)
			all = append(all, chart{Name: name, Title: "ChainKV §8.3: queries per second by mix, " + cell.Distribution, X: "account queries of ten", Y: "queries/s", LogY: true})
		}
		contestant := cell.Step // of the paper's breakdown
		if strings.HasPrefix(cell.Contestant, "geth") || contestant == "" {
			contestant = strings.TrimSpace(cell.Contestant + " " + cell.Step)
		}
		if cell.Contestant == "starling" {
			starling = contestant
		}
		all[i].Lines = appendTo(all[i].Lines, contestant, at(acc, cell.PerS))
	}
	// Each mix begins with another contestant. In the program's order, Starling is last.
	for i, c := range all {
		first := 1 + slices.IndexFunc(c.Lines, func(l line) bool { return l.Name == starling })
		all[i].Lines = slices.Concat(c.Lines[first:], c.Lines[:first])
	}
	return all
}

func drawRecovery(results []*storagebench.StartResult) (*outcome, error) {
	out := &outcome{}
	sizes := chart{Title: "ChainKV §8.8: start after SIGKILL, before the replay", X: "keys", Y: "seconds", LogX: true}
	levels := chart{Name: "levels", Title: "ChainKV §8.8: start and replay by level of crash", X: "blocks after a flush; the next one is due after 50", Y: "seconds"}
	for _, s := range results[0].Starts {
		keys := harness.Group(s.Keys) + " keys"
		out.add(keys, "", "%.2f s, paged %.2f s; %d blocks to replay", s.Seconds, s.PagedS, s.Lost)
		sizes.Lines = appendTo(sizes.Lines, "state in memory", at(float64(s.Keys), s.Seconds))
		sizes.Lines = appendTo(sizes.Lines, "state paged", at(float64(s.Keys), s.PagedS))
		var all []float64
		sum := 0.0
		for _, c := range s.Crashes {
			took := c.Seconds + c.ReplayS
			out.add(fmt.Sprintf("%s, crash %s after a flush", keys, harness.Count(c.Blocks, "block")), "", "%.2f s: start %.2f s, replay of %s %.2f s",
				took, c.Seconds, harness.Count(int(c.Lost), "block"), c.ReplayS)
			levels.Lines = appendTo(levels.Lines, keys+": start and replay", at(float64(c.Blocks), took))
			all, sum = append(all, took), sum+took
		}
		for _, c := range s.Crashes {
			levels.Lines = appendTo(levels.Lines, keys+": start", at(float64(c.Blocks), c.Seconds))
		}
		if len(all) > 0 {
			out.add(keys+", start and replay by level of crash", "0 to 24.42 s, 7.59 s on average", "%.2f to %.2f s, %.2f s on average", slices.Min(all), slices.Max(all), sum/float64(len(all)))
		}
	}
	out.Charts = []chart{sizes, levels}
	return out, nil
}

func drawFig8(results []*dsmbench.Result) (*outcome, error) {
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
	aborts := chart{Name: "accounts", Title: "RainBlock Fig. 8c: transactions that are stale after a block, by accounts", X: "depth r (binary)", Y: "%"}
	for _, s := range r.Stale {
		accounts := harness.Group(s.Keys) + " accounts"
		aborts.Lines = appendTo(aborts.Lines, accounts, at(float64(s.Depth), 100*s.StaleRate))
		out.add(fmt.Sprintf("%s, tree to depth %d", accounts, s.Depth), "fewer aborts with more retention, and with more accounts", "%.1f %% are stale after a block", 100*s.StaleRate)
	}
	keys := harness.Group(r.Keys) + " accounts"
	out.Charts = []chart{
		{Title: "RainBlock Fig. 8a and b: by depth of the tree that a validator keeps, " + keys, X: "depth r (binary)", Y: "%", Lines: []line{memory, bytes}},
		{Name: "stale", Title: "RainBlock Fig. 8c: stale transactions by age of the witness, " + keys, X: "age in blocks", Y: "%", Lines: []line{stale}},
	}
	if len(aborts.Lines) > 0 {
		out.Charts = append(out.Charts, aborts)
	}
	return out, nil
}

// trieCommands returns the commands of rainblock/fig3 for several numbers of accounts.
func trieCommands(keys ...int) (all []string) {
	for _, n := range keys {
		all = append(all, fmt.Sprintf("rainblock/trie --keys %d --transfers 100 --gets 1000 --cache-bytes 0", n))
	}
	return all
}

// runFig7 has one command of dsm and one of rainblock/trie.
func runFig7(ctx context.Context, commands []string, progress *harness.Progress) (*outcome, error) {
	nodes, err := measure(ctx, commands[:1], progress, dsmbench.Run)
	if err != nil {
		return nil, err
	}
	tries, err := measure(ctx, commands[1:], progress, measureTrie)
	if err != nil {
		return nil, err
	}
	out := drawFig7(nodes[0], tries[0])
	return out, out.setRaw([]any{nodes[0], tries[0]})
}

func drawFig7(r *dsmbench.Result, t *trieResult) *outcome {
	out := &outcome{}
	gets, puts := line{Name: "keys with witnesses per second and core"}, line{Name: "puts per second of wall time"}
	for _, s := range r.ShardRows {
		gets.Points, puts.Points = append(gets.Points, at(float64(s.Shards), s.OpsCore)), append(puts.Points, at(float64(s.Shards), s.PutS))
		paper := ""
		if s.Shards == 1 {
			paper = "216K gets (150 × of Ethereum's trie) and 245K puts per second"
		}
		out.add(harness.Count(s.Shards, "storage node"), paper, "%.0fK keys with witnesses per second and core, %.0f bytes each; %.0fK puts per second", s.OpsCore/1000, s.BytesKey, s.PutS/1000)
	}
	out.add("Ethereum's trie, hash scheme", "1/150 of the gets", "%.1fK gets with proofs per second and core, %.0f bytes each (Starling's proof of one key: %.0f bytes); %.1fK puts per second",
		t.GetsCore/1000, t.ProofBytes, t.OursProofBytes, t.PutS/1000)
	out.add("receiver of these proofs", "", "%.1fK verified per second and core", t.VerifyCore/1000)
	out.add("the same with all nodes in memory", "", "%.1fK gets with proofs per second and core, %.1fK puts per second", t.GetsMemory/1000, t.PutSMemory/1000)
	out.Charts = []chart{{Title: fmt.Sprintf("RainBlock Fig. 7: storage nodes, %s accounts", harness.Group(r.Keys)), X: "storage nodes", Y: "operations/s", LogY: true, Lines: []line{
		gets, puts,
		{Name: "Ethereum's trie, hash scheme: gets per second and core", Points: []point{at(1, t.GetsCore)}}, {Name: "Ethereum's trie, hash scheme: puts per second", Points: []point{at(1, t.PutS)}},
		{Name: "the paper: gets, one node", Paper: true, Points: []point{at(1, 216_000)}},
	}}}
	return out
}

func drawContracts(results []*programsbench.Result) (*outcome, error) {
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
	return out, nil
}

func drawGrid(results []*programsbench.Result) (*outcome, error) {
	r, out := results[0], &outcome{}
	if len(r.Failed) > 0 {
		return nil, errors.New(strings.Join(r.Failed, "; "))
	}
	var local float64
	var lines, storage []line // by number of gateways
	for _, of := range r.Grid {
		if of.Retain == nil {
			local = of.Cells[0].TPS.Median
			out.add("the whole state, no gateway", "", "%.0f transactions per second", local)
			continue
		}
		for i, c := range of.Cells {
			if i == len(lines) {
				lines = append(lines, line{Name: harness.Count(c.Gateways, "gateway")})
				storage = append(storage, line{Name: "requests, " + lines[i].Name}, line{Name: "keys with proofs, " + lines[i].Name})
			}
			storage[2*i].Points = append(storage[2*i].Points, at(float64(*of.Retain), c.StorageRequestsS))
			storage[2*i+1].Points = append(storage[2*i+1].Points, at(float64(*of.Retain), c.StorageKeysS))
			lines[i].Points = append(lines[i].Points, at(float64(*of.Retain), c.TPS.Median, c.TPS.Low, c.TPS.High))
			out.add(fmt.Sprintf("r %d, %s", *of.Retain, harness.Count(c.Gateways, "gateway")), "about 30K with r 7", "%.0f transactions per second, %.2f × the whole state", c.TPS.Median, harness.Ratio(c.TPS.Median, local))
			out.add(fmt.Sprintf("r %d, %s: a storage node", *of.Retain, harness.Count(c.Gateways, "gateway")), "1.3K requests per second with r 0 to 9.4K with r 6",
				"%.0f requests, %.0f keys with proofs per second", c.StorageRequestsS, c.StorageKeysS)
		}
	}
	out.Charts = []chart{
		{Title: fmt.Sprintf("RainBlock Fig. 9a, by gateways; %.0f with the whole state", local), X: "r", Y: "transactions per second", Lines: lines},
		{Name: "storage", Title: "RainBlock Fig. 9a: what a storage node serves", X: "r", Y: "per second", Lines: storage},
	}
	return out, nil
}

func drawRegions(results []*programsbench.Result) (*outcome, error) {
	r, out := results[0], &outcome{}
	if len(r.Failed) > 0 {
		return nil, errors.New(strings.Join(r.Failed, "; "))
	}
	tps, delayed := line{Name: "sharded validators"}, false
	for _, of := range r.Network {
		if of.Mode == programsbench.ModeLocal || of.Percent != r.Network[0].Percent {
			continue
		}
		delay := 0.
		if of.Mode == programsbench.ModeWAN {
			delay, delayed = 2*r.DelayMS, true
		}
		tps.Points = append(tps.Points, at(delay, of.TPS.Median, of.TPS.Low, of.TPS.High))
		out.add(fmt.Sprintf("%.0f ms there and back", delay), "", "%.0f transactions per second", of.TPS.Median)
	}
	if !delayed {
		return nil, errors.New("no network with delays was measured")
	}
	out.add("with delays over without", "0.8", "%.2f", r.WANRatio)
	out.Charts = []chart{{Title: "RainBlock Fig. 9b", X: "delay there and back, ms", Y: "transactions per second", Lines: []line{tps}}}
	return out, nil
}

func drawFig3(results []*trieResult) (*outcome, error) {
	out := &outcome{}
	files, nodes, written := line{Name: "reads of files"}, line{Name: "nodes read"}, line{Name: "nodes written"}
	theirs, ours, paths := line{Name: "Ethereum's trie: nodes read, each once"}, line{Name: "Starling: one multiproof"}, line{Name: "Ethereum's trie: a proof for each key"}
	for _, r := range results {
		x := float64(r.Keys)
		files.Points, nodes.Points, written.Points = append(files.Points, at(x, r.FileReads)), append(nodes.Points, at(x, r.NodesRead)), append(written.Points, at(x, r.NodesWritten))
		theirs.Points, ours.Points = append(theirs.Points, at(x, r.WitnessBytes/1000)), append(ours.Points, at(x, r.OursWitnessBytes/1000))
		proofs := float64(2*r.Transfers) * r.ProofBytes / 1000
		paths.Points = append(paths.Points, at(x, proofs))
		out.add(fmt.Sprintf("%s accounts, block of %s", harness.Group(r.Keys), harness.Count(r.Transfers, "transfer")), "more than 10K I/O operations",
			"%.0f reads of files for %.0f nodes, %.0f nodes written; witness %.0f KB, %.0f KB as proofs (Starling: %.0f KB)", r.FileReads, r.NodesRead, r.NodesWritten, r.WitnessBytes/1000, proofs, r.OursWitnessBytes/1000)
		out.add("time of that block", "", "%.0f ms", harness.Median(r.Millis))
	}
	out.Charts = []chart{
		{Title: "RainBlock Fig. 3a: I/O per block of 100 transfers, Ethereum's trie alone", X: "accounts", Y: "operations", LogX: true, Lines: []line{files, nodes, written}},
		{Name: "witness", Title: "RainBlock Fig. 3b: witness of a block of 100 transfers", X: "accounts", Y: "KB", LogX: true, Lines: []line{paths, theirs, ours}},
	}
	return out, nil
}

// localityCommands returns the commands of chainkv/observation2: three chains, since compactions in
// the background differ.
func localityCommands(size string) (all []string) {
	for seed := range 3 {
		all = append(all, strings.Join(strings.Fields(fmt.Sprintf("storage %s --only locality --against mixed,geth-hash,geth-row,geth-column,geth-path --seed %d", size, seed+1)), " "))
	}
	return all
}

// drawLocality draws the blocks that an account query reads, by the memory of the caches.
func drawLocality(results []*storagebench.Result) (*outcome, error) {
	out := &outcome{}
	keys := harness.Group(results[0].Sizes.Keys) + " accounts"
	blocks := chart{Title: "ChainKV §6.2.2: blocks of the database that an account query reads, " + keys, X: "limit of the caches, % of the state", Y: "blocks"}
	var upper []float64
	for i, c := range results[0].Locality { // the cells of all runs have the same order
		var reads, kb []float64
		for _, r := range results {
			reads, kb = append(reads, r.Locality[i].Reads), append(kb, r.Locality[i].ReadBytes/1000)
			if plan := r.Locality[i].Plan; plan.Upper > 0 {
				upper = append(upper, 100*harness.Ratio(float64(plan.Upper), float64(r.Sizes.StateBytes)))
			}
		}
		name, x := storagebench.LocalityName(c), 100*c.Share
		n := slices.IndexFunc(blocks.Lines, func(l line) bool { return l.Name == name })
		if n < 0 {
			n = len(blocks.Lines)
			blocks.Lines = append(blocks.Lines, line{Name: name})
		}
		blocks.Lines[n].Points = append(blocks.Lines[n].Points, at(x, harness.Median(reads), reads...))
		out.add(fmt.Sprintf("%s, caches %.1f %% of the state", name, x), "", "%.2f blocks for a query (%.2f to %.2f), %.1f KB (%.1f to %.1f)",
			harness.Median(reads), slices.Min(reads), slices.Max(reads), harness.Median(kb), slices.Min(kb), slices.Max(kb))
	}
	if len(upper) > 0 {
		out.add("Starling's tree above the pages, in memory", "", "%.1f %% of the state", harness.Median(upper))
	}
	out.Charts = []chart{blocks}
	return out, nil
}

// drawBlocks draws the time and the CPU use of joins by the size of the chain.
func drawBlocks(results []*joinbench.Result) (*outcome, error) {
	out := &outcome{}
	times := chart{Title: "BoR Fig. 9: time of fetching a chain's blocks", X: "MB", Y: "seconds"}
	use := chart{Name: "cpu", Title: "BoR Fig. 10: average CPU use of the new node", X: "MB", Y: "processors"}
	for _, r := range results {
		mb := float64(r.Blocks) * float64(r.BlockBytes) / 1e6
		size := fmt.Sprintf("%.0f MB in %d blocks", mb, r.Blocks)
		out.add(size, "RDMA up to 20.2 % less time than TCP",
			"transport %.2f s; block sync %.2f s, %.2f s at its default rate", r.TCPS, r.Blocksync500S, r.BlocksyncS)
		for _, way := range joinWays {
			w := r.Way(way.name)
			if w == nil {
				continue
			}
			times.Lines, use.Lines = appendTo(times.Lines, way.label, at(mb, w.Seconds)), appendTo(use.Lines, way.label, at(mb, w.Average()))
			paper := ""
			if w.Name == joinbench.RDMA {
				paper = "26.4 to 33.9 % less CPU than TCP"
			}
			out.add(size+": "+way.label, paper, "%.2f CPU s, %.0f %% of it in the kernel; %.2f processors on average, at most %.2f in a second",
				w.CPUS, 100*harness.Ratio(w.KernelS, w.CPUS), w.Average(), w.Peak)
		}
	}
	out.Charts = []chart{times, use}
	return out, nil
}

// joinWays are the paths of join, and their names in pictures.
var joinWays = []struct{ name, label string }{
	{joinbench.TCP, "transport, TCP with TLS"}, {joinbench.RDMA, "transport, RDMA"},
	{joinbench.BlockSync500, "block sync, 500 MB/s"}, {joinbench.BlockSync, "block sync, default rate"},
}

// appendTo adds a point to the line of a name, which it makes if there is none.
func appendTo(lines []line, name string, p point) []line {
	i := slices.IndexFunc(lines, func(l line) bool { return l.Name == name })
	if i < 0 {
		return append(lines, line{Name: name, Points: []point{p}})
	}
	lines[i].Points = append(lines[i].Points, p)
	return lines
}

// drawRelay draws the times in which a block reaches all validators, and those of a block that is
// sent without consensus, by the size of the block.
func drawRelay(results []*relaybench.Result) (*outcome, error) {
	r, out := results[0], &outcome{}
	c := chart{Title: fmt.Sprintf("BoR: time until %d validators have a block", r.Validators), X: "MB", Y: "ms", LogX: true, LogY: true}
	for _, run := range r.Runs {
		rate := fmt.Sprintf("p2p at %.4g MB/s", float64(run.P2PRate)/1e6)
		mb := float64(run.BlockBytes) / 1e6
		c.Lines = appendTo(appendTo(c.Lines, "CometBFT's "+rate, at(mb, run.P2PMS)), "transport, TCP with TLS; "+rate, at(mb, run.RelayTCPMS))
		block := fmt.Sprintf("block of %.2f MB", mb)
		out.add(block+", "+rate, "", "p2p %.0f ms, transport %.0f ms; CPU of all validators %.0f and %.0f ms", run.P2PMS, run.RelayTCPMS, run.P2PCPUMS, run.RelayCPUMS)
		if run.RelayRDMA != nil {
			c.Lines = appendTo(c.Lines, "transport, RDMA; "+rate, at(mb, *run.RelayRDMA))
			out.add(block+" over RDMA, "+rate, "", "%.0f ms", *run.RelayRDMA)
		}
	}
	alone := chart{Name: "alone", Title: fmt.Sprintf("BoR: time until %d receivers have a block, without consensus", r.Validators-1), X: "MB", Y: "ms", LogX: true, LogY: true}
	for _, s := range r.Sends {
		mb := float64(s.BlockBytes) / 1e6
		add := func(name string, i harness.Interval) {
			alone.Lines = appendTo(alone.Lines, name, at(mb, i.Median, i.Low, i.High))
		}
		add("plain TCP", s.Plain)
		add("TCP with TLS", s.TLS)
		ours := fmt.Sprintf("plain TCP %.1f ms, with TLS %.1f ms", s.Plain.Median, s.TLS.Median)
		if s.RDMA != nil {
			add("RDMA", *s.RDMA)
			ours += fmt.Sprintf(", RDMA %.1f ms (%.0f %% of the bytes)", s.RDMA.Median, 100*s.RDMAShare)
		}
		out.add(fmt.Sprintf("block of %.2f MB, without consensus", mb), "", "%s", ours)
	}
	out.Charts = []chart{c, alone}
	return out, nil
}

// drawUse draws the CPU use of one join over time. The default rate has a picture of its own,
// because it takes several times as long.
func drawUse(results []*joinbench.Result) (*outcome, error) {
	r, out := results[0], &outcome{}
	size := fmt.Sprintf("%.0f MB", float64(r.Blocks)*float64(r.BlockBytes)/1e6)
	both := chart{Title: "BoR Fig. 8: CPU use of the new node over time, " + size, X: "seconds", Y: "processors"}
	slow := chart{Name: "default-rate", Title: "BoR Fig. 8: CPU use of the new node over time, with block sync at its default rate, " + size, X: "seconds", Y: "processors"}
	for _, way := range joinWays {
		w := r.Way(way.name)
		if w == nil || len(w.Samples) < 2 {
			continue
		}
		l := line{Name: way.label, Points: useOverTime(w.Samples)}
		if slow.Lines = append(slow.Lines, l); w.Name != joinbench.BlockSync {
			both.Lines = append(both.Lines, l)
		}
		out.add(size+": "+way.label, "", "%.2f s, %.2f processors on average, at most %.2f in a second", w.Seconds, w.Average(), w.Peak)
	}
	if tcp, sync := r.Way(joinbench.TCP), r.Way(joinbench.BlockSync500); tcp != nil && sync != nil {
		out.add("CPU time of the transport over that of block sync at 500 MB/s", "0.66 to 0.74 over RDMA", "%.2f", harness.Ratio(tcp.CPUS, sync.CPUS))
	}
	if len(slow.Lines) == 0 {
		return nil, errors.New("no samples of the CPU time: they need /proc")
	}
	out.Charts = []chart{both, slow}
	return out, nil
}

// drawComponents draws the profiles of one join over each path.
func drawComponents(results []*joinbench.Result) (*outcome, error) {
	r, out := results[0], &outcome{}
	c := chart{Title: fmt.Sprintf("CPU of the new node by component, %.0f MB", float64(r.Blocks)*float64(r.BlockBytes)/1e6), Y: "CPU seconds"}
	for _, way := range joinWays {
		w := r.Way(way.name)
		if w == nil || len(w.Components) == 0 {
			continue
		}
		total, parts := 0.0, []string(nil)
		for i, part := range w.Components {
			if len(c.Names) == i {
				c.Names = append(c.Names, part.Name)
			}
			c.Lines = appendTo(c.Lines, way.label, at(float64(i), part.Seconds))
			total += part.Seconds
			parts = append(parts, fmt.Sprintf("%s %.2f", part.Name, part.Seconds))
		}
		out.add(way.label, "", "%.2f CPU s: %s", total, strings.Join(parts, ", "))
	}
	out.Charts = []chart{c}
	return out, nil
}

// usePoints is about the largest number of points in a line over time.
const usePoints = 80

// useOverTime returns the use of the CPU between samples, in the middle of their interval. The
// process clock has a resolution of 10 ms, so intervals are at least 0.2 s.
func useOverTime(samples []harness.CPUSample) (points []point) {
	from := samples[0]
	every := max(0.19, (samples[len(samples)-1].At-from.At)/usePoints)
	for _, to := range samples[1:] {
		if took := to.At - from.At; took >= every {
			points = append(points, at((from.At+to.At)/2, (to.Total()-from.Total())/took))
			from = to
		}
	}
	return points
}
