package storagebench

import "github.com/starling-kv/starling/bench/harness"

// WriteCell is the replay of the blocks by one contestant.
type WriteCell struct {
	Contestant string  `json:"contestant"`
	Step       string  `json:"step"` // step of the breakdown, or ""
	BlocksPerS float64 `json:"blocks_per_s"`
	MBPerS     float64 `json:"logical_mb_per_s"`
	// The rounds, and their median with a confidence interval.
	Rates    []float64        `json:"round_blocks_per_s"`
	Interval harness.Interval `json:"blocks_per_s_interval"`

	Seconds   float64 `json:"seconds"`
	CPUMillis float64 `json:"cpu_ms_per_block"` // including compactions after the last block

	LogicalBytes int64 `json:"logical_bytes"` // block data and changed state: the same for all
	RequestBytes int64 `json:"request_bytes"` // keys and values handed to the databases
	WrittenBytes int64 `json:"written_bytes"` // written to files by system calls
	// WrittenBytes per logical byte, and per byte of the requests.
	WriteAmplification        float64 `json:"write_amplification"`
	RequestWriteAmplification float64 `json:"request_write_amplification"`
	counts
	Zones   zoneCounts `json:"zones,omitzero"`
	SettleS float64    `json:"settle_s"` // until compactions ended; included in the costs
	Space   int64      `json:"space_bytes"`
	Plan    memoryPlan `json:"memory_bytes"`
}

// ReadCell is one mix of queries with one distribution.
type ReadCell struct {
	Contestant   string  `json:"contestant"`
	Step         string  `json:"step"`
	Mix          string  `json:"tx_acc"`
	Distribution string  `json:"distribution"`
	Queries      int     `json:"queries"`
	PerS         float64 `json:"queries_per_s"`
	Micros       float64 `json:"us_per_query"`
	CPUMicros    float64 `json:"cpu_us_per_query"` // CPU time of all threads
	Reads        float64 `json:"file_reads_per_query"`
	ReadBytes    float64 `json:"file_bytes_per_query"`
	HitRate      float64 `json:"hit_rate"` // for decoded nodes, or for pages and records
}

// CacheCell is one division of the cache between pages and records.
type CacheCell struct {
	Split     string  `json:"split"` // "game", or the state's share
	Mix       string  `json:"tx_acc"`
	PerS      float64 `json:"queries_per_s"`
	Micros    float64 `json:"us_per_query"`
	CPUMicros float64 `json:"cpu_us_per_query"`
	HitRate   float64 `json:"hit_rate"`
	State     float64 `json:"state_hit_rate"`
	Blocks    float64 `json:"block_hit_rate"`
	Reads     float64 `json:"file_reads_per_query"`
}

// Recovery has starts, each after a crash of its own, except the one before the fill. The blocks
// before a crash add keys: with a million Keys, the last starts have up to 13 % more.
type Recovery struct {
	Keys    int       `json:"keys"`
	Seconds float64   `json:"seconds"` // median of All
	All     []float64 `json:"all_seconds"`
	CPUS    float64   `json:"cpu_s"`
	OpenS   float64   `json:"open_s"` // of these starts, the median until the databases are open
	// PagedS is the median of PagedAll: starts of a node whose state may exceed its memory.
	PagedS     float64   `json:"paged_s"`
	PagedAll   []float64 `json:"all_paged_seconds"`
	PagedCPUS  float64   `json:"paged_cpu_s"`
	AfterLoadS float64   `json:"after_load_s"` // in memory, after the crash that follows the load
	LeavesS    float64   `json:"leaves_s"`     // without a page list
	LeavesCPUS float64   `json:"leaves_cpu_s"`
	// After Seconds, until the whole state is in memory: the time, the blocks in that time, and how
	// long they took, in ms.
	FillS      float64 `json:"fill_s"`
	FillCPUS   float64 `json:"fill_cpu_s"`
	FillBlocks int     `json:"fill_blocks"`
	FillP50    float64 `json:"fill_p50_ms"`
	FillP99    float64 `json:"fill_p99_ms"`
	FilledP50  float64 `json:"filled_p50_ms"` // of blocks after it
	FilledP99  float64 `json:"filled_p99_ms"`
	Height     int64   `json:"height"`
	// Not durable, so CometBFT replays them: the most after a crash.
	Lost      int64   `json:"blocks_to_replay"`
	DiskBytes int64   `json:"disk_bytes"`
	Crashes   []Crash `json:"crashes"`
}

// Crash is a start with the state in memory after a crash some blocks after a flush, and the replay
// of the blocks that were not durable.
type Crash struct {
	Blocks  int     `json:"blocks_after_flush"`
	Lost    int64   `json:"blocks_to_replay"`
	Seconds float64 `json:"seconds"` // until blocks can be replayed
	ReplayS float64 `json:"replay_s"`
	CPUS    float64 `json:"cpu_s"` // of both
}

// Commit is the time that durable storage adds to a commit.
type Commit struct {
	Operations       int     `json:"operations"`
	Blocks           int     `json:"blocks"`
	MemoryP50        float64 `json:"memory_p50_ms"`
	MemoryP99        float64 `json:"memory_p99_ms"`
	DurableP50       float64 `json:"durable_p50_ms"`
	DurableP99       float64 `json:"durable_p99_ms"`
	RatioP50         float64 `json:"ratio_p50"`
	RatioP99         float64 `json:"ratio_p99"`
	ReclaimMax       float64 `json:"reclaim_max_ms"` // highest in one commit
	UnpacedBlocks    int     `json:"unpaced_blocks"`
	MemoryRate       float64 `json:"unpaced_memory_blocks_per_s"`
	DurableRate      float64 `json:"unpaced_durable_blocks_per_s"` // until all blocks are durable
	WaitS            float64 `json:"unpaced_wait_s"`               // total wait of Write
	BlocksBeforeWait int     `json:"unpaced_blocks_before_wait"`
	Saturated        bool    `json:"saturated"` // Write waited; otherwise Apply limits DurableRate
}

// Paged compares a node whose state exceeds its memory with one that has all of it in memory. Times
// are CPU time of all threads.
type Paged struct {
	// The rate of transactions over that of the node with everything in memory.
	TPSX              float64 `json:"tps_x"`
	CommitCPUMS       float64 `json:"commit_cpu_ms"` // per block, until it is durable
	MemoryCommitCPUMS float64 `json:"memory_commit_cpu_ms"`
	PagesPerCommit    float64 `json:"pages_per_commit"` // read by Apply
	PageCPUUS         float64 `json:"page_cpu_us"`      // additional time of a block, per page
	GetUS             float64 `json:"get_us"`           // existing accounts, normal-random
	AbsentUS          float64 `json:"absent_us"`        // absent accounts
	ProofUS           float64 `json:"proof_us"`

	Ratio      float64 `json:"commit_cpu_ratio"`
	MixedGetUS float64 `json:"mixed_get_us,omitempty"` // from the part "reads"
	Blocks     int     `json:"blocks"`
	Budget     int64   `json:"budget_bytes"`
}

// Summary has the run's main figures: ratios to mixed, and figures of Starling alone. Figures that
// were not measured are zero.
type Summary struct {
	WriteRatio float64 `json:"write_ratio"`
	// Both with a budget of tunedBudget; and Starling with its own budget over the tuned mixed.
	WriteRatioTuned   float64 `json:"write_ratio_tuned"`
	WriteRatioToTuned float64 `json:"write_ratio_to_tuned"`
	ReadRatioAcc      float64 `json:"read_ratio_acc"` // 0:10, normal-random
	ReadRatioTx       float64 `json:"read_ratio_tx"`  // 10:0, normal-random
	// The same by CPU time: mixed's over Starling's.
	ReadCPURatioAcc    float64 `json:"read_cpu_ratio_acc"`
	ReadCPURatioTx     float64 `json:"read_cpu_ratio_tx"`
	WriteAmplification float64 `json:"write_amplification"`
	SGCGain            float64 `json:"sgc_gain"`
	RecoveryS          float64 `json:"recovery_s"`
	RecoveryPagedS     float64 `json:"recovery_paged_s"`
}

// Result is the outcome of a run.
type Result struct {
	Summary
	Writes   []WriteCell      `json:"writes,omitempty"`
	Reads    []ReadCell       `json:"reads,omitempty"`
	Locality []LocalityCell   `json:"locality,omitempty"`
	Cache    []CacheCell      `json:"cache,omitempty"`
	Recovery *Recovery        `json:"recovery,omitempty"`
	Commit   *Commit          `json:"commit,omitempty"`
	Paged    *Paged           `json:"paged,omitempty"`
	Targets  []harness.Target `json:"targets,omitempty"`
	// Median of the rounds' ratios. The last round includes the wait until everything is durable.
	WriteRatioInterval harness.Interval `json:"write_ratio_interval,omitzero"`
	// Like read_ratio_acc, relative to mixed with the database's block cache as its only cache.
	ReadRatioAccPlain float64 `json:"read_ratio_acc_no_node_cache,omitempty"`

	Chain Spec `json:"chain"`
	// How the contestants divide the budget for reading.
	Plans   map[string]memoryPlan `json:"read_memory_bytes,omitempty"`
	Sizes   modelSizes            `json:"sizes,omitzero"`
	Budget  int64                 `json:"budget_bytes"`
	Queries int                   `json:"queries"`
	Cold    bool                  `json:"cold"`
	Machine harness.Machine       `json:"machine"`
}

// Steps of the paper's breakdown (section 8.4), each based on the one before.
const (
	stepMixed  = "mixed"
	stepPlain  = "mixed, no node cache" // with only the database's own cache, as in the paper
	stepZones  = "+ zones"
	stepLeaves = "+ key order"
	stepCache  = "+ cache"
	stepNoWAL  = "+ no log"
)

// stepFlat is not a step of the paper: geth-path answers without its trie.
const stepFlat = "flat state"

func stepOf(contestant string) string {
	return map[string]string{nameMixed: stepMixed, nameZones: stepZones, nameLeaves: stepLeaves, nameStarling: stepNoWAL}[contestant]
}

func (r *Result) write(contestant string) *WriteCell {
	for i := range r.Writes {
		if r.Writes[i].Contestant == contestant {
			return &r.Writes[i]
		}
	}
	return nil
}

func (r *Result) read(contestant, step string, m mix10, d distribution) *ReadCell {
	for i, c := range r.Reads {
		if c.Contestant == contestant && c.Step == step && c.Mix == m.String() && c.Distribution == string(d) {
			return &r.Reads[i]
		}
	}
	return nil
}

// WritesOver returns Starling's blocks per second over those of another contestant, or 0 if one was
// not measured.
func (r *Result) WritesOver(contestant string) float64 {
	ours, theirs := r.write(nameStarling), r.write(contestant)
	if ours == nil || theirs == nil {
		return 0
	}
	return harness.Ratio(ours.BlocksPerS, theirs.BlocksPerS)
}

// ReadRatio is Starling's queries over those of a contestant.
type ReadRatio struct {
	Distribution string
	Accounts     int     // account queries of ten, the others look up transactions
	Clock, CPU   float64 // by wall time and by CPU time
}

// ReadRatios returns the ratios to a contestant by distribution and mix, in the order of the run.
// Without measurements of both, there are none.
func (r *Result) ReadRatios(contestant string) (all []ReadRatio) {
	for _, d := range distributions {
		for _, m := range mixes {
			if clock, cpu := r.readsOver(contestant, stepOf(contestant), m, d); clock > 0 {
				all = append(all, ReadRatio{string(d), 10 - int(m), clock, cpu})
			}
		}
	}
	return all
}

// readsOver returns the ratios of Starling's queries of one mix to those of a contestant.
func (r *Result) readsOver(contestant, step string, m mix10, d distribution) (clock, cpu float64) {
	ours, theirs := r.read(nameStarling, stepNoWAL, m, d), r.read(contestant, step, m, d)
	if ours == nil || theirs == nil {
		return 0, 0
	}
	return harness.Ratio(ours.PerS, theirs.PerS), harness.Ratio(theirs.CPUMicros, ours.CPUMicros)
}

func (r *Result) cached(split, mix string) *CacheCell {
	for i, c := range r.Cache {
		if c.Split == split && c.Mix == mix {
			return &r.Cache[i]
		}
	}
	return nil
}

// finish computes the summary and ratios from the cells.
func (r *Result) finish() {
	s := &r.Summary
	if ours := r.write(nameStarling); ours != nil {
		s.WriteAmplification = ours.WriteAmplification
		if mixed := r.write(nameMixed); mixed != nil {
			s.WriteRatio = r.WritesOver(nameMixed)
			r.WriteRatioInterval = harness.MedianInterval(ratios(ours.Rates, mixed.Rates))
		}
		if mixed, large := r.write(nameMixedTuned), r.write(nameStarlingTuned); mixed != nil && large != nil {
			s.WriteRatioTuned = harness.Ratio(large.BlocksPerS, mixed.BlocksPerS)
			s.WriteRatioToTuned = harness.Ratio(ours.BlocksPerS, mixed.BlocksPerS)
		}
	}
	s.ReadRatioAcc, s.ReadCPURatioAcc = r.readsOver(nameMixed, stepMixed, 0, distNormal)
	s.ReadRatioTx, s.ReadCPURatioTx = r.readsOver(nameMixed, stepMixed, 10, distNormal)
	r.ReadRatioAccPlain, _ = r.readsOver(nameMixed, stepPlain, 0, distNormal)
	s.SGCGain = r.gain(changing.String())
	if r.Recovery != nil {
		s.RecoveryS, s.RecoveryPagedS = r.Recovery.Seconds, r.Recovery.PagedS
	}
	r.Targets = r.targets()
}

// ratios returns the ratio of each round.
func ratios(ours, theirs []float64) (all []float64) {
	for i := range min(len(ours), len(theirs)) {
		all = append(all, harness.Ratio(ours[i], theirs[i]))
	}
	return all
}

// gain returns the game's throughput over that of the best fixed split.
func (r *Result) gain(mix string) float64 {
	game, best := r.cached(gameSplit, mix), 0.0
	for _, c := range r.Cache {
		if c.Mix == mix && c.Split != gameSplit {
			best = max(best, c.PerS)
		}
	}
	if game == nil {
		return 0
	}
	return harness.Ratio(game.PerS, best)
}

// hitRates returns the hit rate of the game and that of the best fixed split. ok is false unless
// both were measured.
func (r *Result) hitRates(mix string) (game, best float64, ok bool) {
	for _, c := range r.Cache {
		if c.Mix == mix && c.Split != gameSplit {
			best, ok = max(best, c.HitRate), true
		}
	}
	g := r.cached(gameSplit, mix)
	if g == nil {
		return 0, 0, false
	}
	return g.HitRate, best, ok
}
