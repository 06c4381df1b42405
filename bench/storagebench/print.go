package storagebench

import (
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
)

// Print writes the tables, notes that explain them, and the targets.
func (r *Result) Print(out io.Writer) {
	if r.Sizes.Keys > 0 {
		fmt.Fprintf(out, "%s (%.0f MB), %s of %s, %.1f MB of memory for each contestant\n\n",
			harness.Count(r.Sizes.Keys, "key"), mb(r.Sizes.StateBytes), harness.Count(r.Chain.Blocks, "block"),
			harness.Count(r.Chain.Txs, "transaction"), mb(r.Budget))
		r.printWrites(out)
	}
	if len(r.Reads) > 0 {
		r.printReads(out)
	}
	if len(r.Locality) > 0 {
		r.printLocality(out)
	}
	if len(r.Cache) > 0 {
		r.printCache(out)
	}
	if r.Recovery != nil {
		printStarts(out, []*Recovery{r.Recovery})
	}
	r.printCommit(out)
	r.printPaged(out)
	if r.Sizes.Keys > 0 {
		r.printNotes(out)
	}
	harness.PrintTargets(out, "a million keys and more", r.Targets)
}

func mb[T int64 | int](n T) float64 { return float64(n) / 1e6 }

func (r *Result) printWrites(out io.Writer) {
	cells := [][]string{{"write", "blocks/s", "×", "of rounds", "from", "to", "MB/s", "written, MB", "amplif.", "of requests", "log, MB", "flushed", "compacted", "then, s", "disk, MB"}}
	mixed := r.write(nameMixed)
	for _, c := range r.Writes {
		times := ""
		if mixed != nil {
			times = fmt.Sprintf("%.2f", harness.Ratio(c.BlocksPerS, mixed.BlocksPerS))
		}
		name := c.Contestant
		if c.Step != "" && c.Step != stepMixed {
			name = "  " + c.Step
		}
		cells = append(cells, []string{
			name, fmt.Sprintf("%.1f", c.BlocksPerS), times, fmt.Sprintf("%.1f", c.Interval.Median), fmt.Sprintf("%.1f", c.Interval.Low),
			fmt.Sprintf("%.1f", c.Interval.High), fmt.Sprintf("%.1f", c.MBPerS), fmt.Sprintf("%.0f", mb(c.WrittenBytes)),
			fmt.Sprintf("%.2f", c.WriteAmplification), fmt.Sprintf("%.2f", c.RequestWriteAmplification), fmt.Sprintf("%.0f", mb(c.Log)),
			fmt.Sprintf("%.0f", mb(c.Flushed)), fmt.Sprintf("%.0f", mb(c.Compacted)), fmt.Sprintf("%.1f", c.SettleS), fmt.Sprintf("%.0f", mb(c.Space)),
		})
	}
	harness.PrintAligned(out, cells)
	if c := r.write(nameStarling); c != nil {
		of := func(n int64) string { return fmt.Sprintf("%.2f", harness.Ratio(float64(n), float64(c.LogicalBytes))) }
		b, s := c.Zones.Blocks, c.Zones.State
		fmt.Fprintf(out, "  Starling's bytes per logical byte: block store: log %s, flushed %s, compacted %s, segments %s; state store: flushed %s, compacted %s\n",
			of(b.Log), of(b.Flushed), of(b.Compacted), of(c.Zones.Segments), of(s.Flushed), of(s.Compacted))
	}
	fmt.Fprintln(out)
}

func (r *Result) printReads(out io.Writer) {
	for _, d := range distributions {
		head := []string{fmt.Sprintf("reads, queries/s, %s", d)}
		for _, m := range mixes {
			head = append(head, m.String(), "×")
		}
		cells := [][]string{append(head, "reads", "KB", "CPU, µs at 10:0", "×", "reads", "KB", "CPU, µs at 0:10", "×", "verifies")}
		var names []ReadCell
		for _, c := range r.Reads {
			if c.Distribution == string(d) && c.Mix == mixes[0].String() {
				names = append(names, c)
			}
		}
		for _, n := range r.order(names) {
			name := n.Contestant
			switch n.Step {
			case "", stepMixed:
			case stepPlain:
				name = stepPlain
			default:
				name = "  " + n.Step
			}
			line := []string{name}
			for _, m := range mixes {
				c, times := r.read(n.Contestant, n.Step, m, d), ""
				if mixed := r.read(nameMixed, stepMixed, m, d); mixed != nil {
					times = fmt.Sprintf("%.2f", harness.Ratio(c.PerS, mixed.PerS))
				}
				line = append(line, fmt.Sprintf("%.0f", c.PerS), times)
			}
			for _, m := range []mix10{10, 0} {
				c := r.read(n.Contestant, n.Step, m, d)
				times := ""
				if mixed := r.read(nameMixed, stepMixed, m, d); mixed != nil {
					times = fmt.Sprintf("%.2f", harness.Ratio(mixed.CPUMicros, c.CPUMicros))
				}
				line = append(line, fmt.Sprintf("%.2f", c.Reads), fmt.Sprintf("%.1f", c.ReadBytes/1e3), fmt.Sprintf("%.1f", c.CPUMicros), times)
			}
			switch {
			case n.Contestant == nameLeaves: // nameStarling reads records: avlstar.ByKey
				line = append(line, "pages")
			case n.Contestant == nameGethPath && n.Step != stepFlat:
				line = append(line, "nodes")
			default:
				line = append(line, "nothing")
			}
			cells = append(cells, line)
		}
		harness.PrintAligned(out, cells)
		fmt.Fprintln(out)
	}
}

// order sorts cells like the write cells: they were measured in turns.
func (r *Result) order(cells []ReadCell) (sorted []ReadCell) {
	for _, w := range r.Writes {
		steps := []string{w.Step}
		if w.Step == stepMixed {
			steps = append(steps, stepPlain)
		}
		if w.Contestant == nameGethPath {
			steps = append(steps, stepFlat)
		}
		for _, step := range steps {
			for _, c := range cells {
				if c.Step == step && (w.Contestant == c.Contestant || w.Contestant == c.Contestant+" "+step) {
					sorted = append(sorted, c)
				}
			}
		}
	}
	return sorted
}

func (r *Result) printLocality(out io.Writer) {
	head := []string{"account queries: blocks read (KB)"}
	for _, share := range cacheShares {
		head = append(head, fmt.Sprintf("%.1f %% in caches", 100*share))
	}
	cells := [][]string{head}
	for _, c := range r.Locality {
		if c.Share == cacheShares[0] {
			line := []string{LocalityName(c)}
			for _, d := range r.Locality {
				if d.Contestant == c.Contestant && d.Step == c.Step {
					line = append(line, fmt.Sprintf("%.2f (%.1f)", d.Reads, d.ReadBytes/1e3))
				}
			}
			cells = append(cells, line)
		}
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintln(out)
}

func (r *Result) printCache(out io.Writer) {
	var names []string
	for _, m := range mixes {
		names = append(names, m.String())
	}
	for _, t := range turns {
		names = append(names, t.String())
	}
	head := []string{"cache: queries/s (hits)"}
	cells := [][]string{append(head, names...)}
	for _, s := range splits {
		label := "game"
		if s > 0 {
			label = "state " + splitName(s)
		}
		line := []string{label}
		for _, name := range names {
			c := r.cached(splitName(s), name)
			line = append(line, fmt.Sprintf("%.0f (%.1f %%)", c.PerS, c.HitRate*100))
		}
		cells = append(cells, line)
	}
	line := []string{"game × best fixed"}
	for _, name := range names {
		line = append(line, fmt.Sprintf("%.3f", r.gain(name)))
	}
	harness.PrintAligned(out, append(cells, line))
	fmt.Fprintln(out)
}

func (r *Result) printCommit(out io.Writer) {
	if c := r.Commit; c != nil {
		fmt.Fprintf(out, "commit        %s operations, 10 blocks per second: p50 %.2f ms, p99 %.2f ms with durable storage, %.2f and %.2f ms without (× %.3f, × %.3f);\n"+
			"              releasing old versions took at most %.2f ms of a commit\n",
			harness.Group(c.Operations), c.DurableP50, c.DurableP99, c.MemoryP50, c.MemoryP99, c.RatioP50, c.RatioP99, c.ReclaimMax)
		saturated := "Write never waited: the tree limits the rate"
		if c.Saturated {
			saturated = fmt.Sprintf("Write first waited at block %d, and for %.1f s in total: the disk limits the rate", c.BlocksBeforeWait+1, c.WaitS)
		}
		fmt.Fprintf(out, "saturation    %.0f blocks/s as fast as possible, until all of %s are durable (%.0f without storage); %s\n\n",
			c.DurableRate, harness.Count(c.UnpacedBlocks, "block"), c.MemoryRate, saturated)
	}
}

func (r *Result) printPaged(out io.Writer) {
	p := r.Paged
	if p == nil {
		return
	}
	mixed := ""
	if p.MixedGetUS > 0 {
		mixed = fmt.Sprintf(" (mixed %.1f, unverified)", p.MixedGetUS)
	}
	fmt.Fprintf(out, "paged         with %.1f MB of memory, CPU time: a commit until it is durable %.2f ms, %.2f ms with everything in memory (× %.3g; %.2f × the rate), over %s each;\n"+
		"              %.0f pages read per commit, %.1f µs more for each; get %.1f µs%s, absent %.1f µs, proof %.1f µs\n\n",
		mb(p.Budget), p.CommitCPUMS, p.MemoryCommitCPUMS, p.Ratio, p.TPSX, harness.Count(p.Blocks, "block"),
		p.PagesPerCommit, p.PageCPUUS, p.GetUS, mixed, p.AbsentUS, p.ProofUS)
}

func (r *Result) fileCache() string {
	if r.Cold {
		return "The files were dropped from the page cache before the first query of each cell (POSIX_FADV_DONTNEED)"
	}
	return "The files are in the page cache: times are those of the CPU and of system calls"
}

func (r *Result) printNotes(out io.Writer) {
	s := r.Sizes
	fmt.Fprintf(out, `contestants   mixed: everything in one Pebble; the state is IAVL v1's nodes ('s' ‖ version ‖ nonce): a block writes its new nodes, and deletes
              those that none of the last %d versions has (IAVL's own reads to find such orphans do not count); goleveldb: the same;
              + zones: one Pebble for blocks, one for the state; + key order: leaves in key order and heights, read by pages (at most
              4 KiB, package avlstar), verified; its cache has one fixed half for pages and one for records; + cache: the space-gaming cache;
              + no log: packages storage and storage/blocks, as in a node; accounts are read by key, unverified
tuned         mixed and Starling with %.0f MB each in place of the budget, and memtables of %.0f MB; they are only written to
of rounds     the median of %d rounds, and its 95 %% confidence interval; the last round ends when everything is durable
block         %.0f KB of block parts, meta, commits, results, index by hash and height, in three synced batches;
              then the state: %.0f requests, %.0f KB as nodes (a synced batch), %.0f requests, %.0f KB as leaves and heights
MB/s, amplif. logical bytes: the block's data, and keys and values of changed accounts; written: all bytes written to files by system calls,
              including compactions after the last block ("then"); of requests: per byte that the layout handed to its databases
memory        the same for all: memtables including those waiting for a flush, block caches, decoded nodes (%.2g of mixed's caches; "no node cache": 0),
              pages and records, the tree above the pages (%.1f MB of Starling's tree); %.1f MB of state are %.1f times the budget
`, r.Chain.Window, mb(tunedBudget), mb(tunedBudget*memtableShare/16/2), min(writeRounds, r.Chain.Blocks), mb(s.BlockLogical)*1e3/float64(r.Chain.Blocks),
		float64(s.NodeOps)/float64(r.Chain.Blocks), mb(s.NodeBytes)*1e3/float64(r.Chain.Blocks),
		float64(s.LeafOps)/float64(r.Chain.Blocks), mb(s.LeafBytes)*1e3/float64(r.Chain.Blocks),
		r.Chain.NodeShare, mb(r.Plans[nameStarling+" "+stepNoWAL].Upper), mb(s.StateBytes), harness.Ratio(float64(s.StateBytes), float64(r.Budget)))
	if s.HashOps > 0 {
		fmt.Fprintf(out, `geth          one Pebble (or goleveldb), blocks as in mixed; the state is the nodes of Ethereum's trie. geth-hash: by hash, %.0f requests and %.0f KB
              for a block, nothing is deleted; geth-row, geth-column: the same, with the node's depth or path before the hash; geth-path: by path, replaced and deleted, and the flat state, %.0f requests and %.0f KB before a write
              buffer merges them (half of the memtables' memory), without history. An account is read from the root, or from the flat state;
              encoded nodes are cached in place of decoded ones. As in geth, geth-path checks the hash of a node that it reads
`, float64(s.HashOps)/float64(r.Chain.Blocks), mb(s.HashBytes)*1e3/float64(r.Chain.Blocks), float64(s.PathOps)/float64(r.Chain.Blocks), mb(s.PathBytes)*1e3/float64(r.Chain.Blocks))
	}
	if len(r.Locality) > 0 {
		fmt.Fprintf(out, `blocks read   reads of files by account queries (%s), with a limit for all caches, relative to the state: blocks of data,
              indexes and filters. Starling's tree above the pages is always in memory
`, distNormal)
	}
	fmt.Fprintf(out, `reads         %s queries by one goroutine, after the same number to fill the empty caches. Tx: the index by hash, then the block part;
              Acc: the value of an account, through %d levels of nodes from the root, or by its page, or by key. Ranks are scattered over keys;
              normal-random: normal around the middle, with a standard deviation of a sixth of all ranks. %s;
              reads, KB: system calls and bytes that a query reads from files
`, harness.Group(r.Queries), s.Height, r.fileCache())
	if len(r.Cache) > 0 {
		fmt.Fprintf(out, `cache         Starling under %s, fixed shares for the state against the game; "%s": after warming up with the first mix,
              %s queries of it and as many of the second, measured together; sgc_gain is the game's figure there over that of the best fixed share
`, cacheDistribution, changing, harness.Group(r.Queries))
	}
	fmt.Fprintln(out)
}
