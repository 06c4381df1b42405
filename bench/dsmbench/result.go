package dsmbench

import "github.com/starling-kv/starling/bench/harness"

// Result is the outcome of a run. The fields of a phase that did not run are zero.
type Result struct {
	Keys   int   `json:"keys"`
	Retain int   `json:"r"`
	Window int   `json:"window"`
	Shards []int `json:"shards"`

	// Transactions per second of an application, in blocks whose signatures were checked before.
	TPSLocal float64 `json:"tps_local"`
	TPSApp   float64 `json:"tps_app"` // including decoding and grafting the block's multiproofs
	TPSPaged float64 `json:"tps_paged"`

	RawBytesTx            float64 `json:"raw_bytes_tx"`             // full paths of node images
	MultiproofBytesTxCold float64 `json:"multiproof_bytes_tx_cold"` // cold: no nodes held
	MultiproofBytesTx     float64 `json:"multiproof_bytes_tx"`      // with r and window
	// WitnessReduction is 1 - MultiproofBytesTx / RawBytesTx.
	WitnessReduction float64 `json:"witness_reduction"`
	ColdReduction    float64 `json:"cold_reduction"`

	// MissRate is the share of unusable paths in multiproofs at most Window blocks old: the highest
	// of all ages.
	MissRate  float64 `json:"miss_rate"`
	StaleRate float64 `json:"stale_rate"` // share of transactions that are stale after one block

	WitnessOpsS     float64 `json:"witness_ops_s"`     // keys per second and core, with one shard
	WitnessCPUMicro float64 `json:"witness_cpu_us"`    // per key, with one shard
	WitnessCPURatio float64 `json:"witness_cpu_ratio"` // per key; most shards relative to one
	// TogetherCPURatio is that of as many ranges on the least number of nodes.
	TogetherCPURatio float64 `json:"together_cpu_ratio,omitempty"`
	// WitnessServedS is keys per second of wall time, with the most shards.
	WitnessServedS float64 `json:"witness_served_ops"`

	MemoryRatio float64 `json:"memory_ratio"` // of a validator's tree relative to the full tree
	TreeBytes   uint64  `json:"tree_bytes"`   // of the full tree

	JoinS       float64 `json:"join_s"`       // without CometBFT
	JoinBytes   int64   `json:"join_bytes"`   // without blocks
	HeaderBytes int     `json:"header_bytes"` // a light block of four validators
	PutS        float64 `json:"put_s"`        // by wall time, with the most shards

	Transfers Row        `json:"transfers"`
	Deletions Row        `json:"deletions"` // 5 % of the transactions delete an account
	ShardRows []ShardRow `json:"shard_rows"`
	// TogetherRows have several ranges on each node.
	TogetherRows []ShardRow    `json:"together_rows,omitempty"`
	Stale        []StaleRow    `json:"stale,omitempty"` // by number of accounts, and r
	Join         Joined        `json:"join"`
	Range        Range         `json:"range"`
	Prefetch     []PrefetchRow `json:"prefetch"`
	// RangeDiskRatio is Range.PagedS relative to Range.MemoryS.
	RangeDiskRatio  float64 `json:"range_disk_ratio"`
	BytesPerChanged float64 `json:"bytes_per_changed"`
	StartS          float64 `json:"start_s"` // of a storage node with all keys, after SIGKILL
	StorageMB       float64 `json:"storage_rss_mb"`

	Starts          []StartRow `json:"starts,omitempty"`
	StartMillion    float64    `json:"start_s_1m,omitempty"`
	StartTenMillion float64    `json:"start_s_10m,omitempty"`

	Feed            []FeedRow `json:"feed,omitempty"`
	ValidatorMB4000 float64   `json:"validator_mb_4000,omitempty"` // updates of 4,000 ranges

	// Failed are the phases that failed, with their errors. Their figures are absent.
	Failed []string `json:"failed,omitempty"`

	Moves     *Moves  `json:"moves,omitempty"`
	MoveS     float64 `json:"move_s,omitempty"`
	MoveCopyS float64 `json:"move_copy_s,omitempty"`
	MoveP99X  float64 `json:"move_block_p99_x,omitempty"`

	Signers int              `json:"signers"`
	BlockTx int              `json:"block_txs"`
	Blocks  int              `json:"blocks"` // measured
	PagedMB int              `json:"paged_mb"`
	Seed    uint64           `json:"seed"`
	Quick   bool             `json:"quick,omitempty"`
	Phases  []string         `json:"phases"`
	Machine harness.Machine  `json:"machine"`
	Targets []harness.Target `json:"targets"`
}

// Row has the figures of one workload.
type Row struct {
	Sizes *Sizes         `json:"sizes,omitempty"`
	Apps  map[string]App `json:"apps,omitempty"` // by mode
}

// Sizes are the bytes of witnesses and the memory of trees.
type Sizes struct {
	RawBytesTx  float64    `json:"raw_bytes_tx"`
	ColdBytesTx float64    `json:"multiproof_bytes_tx_cold"`
	Depths      []DepthRow `json:"depths"` // the first is the run's r
	Ages        []AgeRow   `json:"ages"`
}

// DepthRow has the figures of a validator that keeps the tree down to a depth.
type DepthRow struct {
	Depth             int     `json:"r"`
	MultiproofBytesTx float64 `json:"multiproof_bytes_tx"`
	UpperBytes        int     `json:"upper_bytes"` // of the multiproof with the tree to this depth
	MemoryBytes       uint64  `json:"memory_bytes"`
	MemoryRatio       float64 `json:"memory_ratio"`
}

// AgeRow has the figures of multiproofs of one age.
type AgeRow struct {
	Age      int     `json:"age"`       // blocks
	Ways     int     `json:"ways"`      // paths to keys that existed then
	MissRate float64 `json:"miss_rate"` // share of Ways that the receiver could not use
	// StaleRate is the share of transactions with a path that changed below the upper tree.
	StaleRate float64 `json:"stale_rate"`

	missed, txs, stale, dropped int
}

// StaleRow has the share of transactions that are stale after one block, because a path changed
// below depth r.
type StaleRow struct {
	Keys      int     `json:"keys"` // accounts
	Depth     int     `json:"r"`
	StaleRate float64 `json:"stale_rate"`
}

// App has the figures of an application in one mode.
type App struct {
	TPS         float64 `json:"tps"`       // by the median block
	CPUMicros   float64 `json:"cpu_us_tx"` // of all threads
	GraftMicros float64 `json:"graft_us_tx"`
	Fetched     int     `json:"fetched"` // requests during the execution of blocks
	TreeBytes   uint64  `json:"tree_bytes"`
}

// FeedRow has the figures of a validator that sends updates to a number of ranges.
type FeedRow struct {
	Ranges      int     `json:"ranges"`
	Changed     float64 `json:"changed"`      // ranges with a changed key, mean of the blocks
	MS          float64 `json:"ms"`           // until all replicas have a block's updates, median
	CPUMS       float64 `json:"cpu_ms"`       // with that of the simulated nodes, median
	KeptBytes   uint64  `json:"kept_bytes"`   // of updates
	MemoryBytes int64   `json:"memory_bytes"` // anonymous, without the tree's
}

// ShardRow has the figures of one number of storage nodes.
type ShardRow struct {
	Shards       int     `json:"shards"`
	Ranges       int     `json:"ranges"`
	OpsCore      float64 `json:"witness_ops_s"` // keys per second and core
	CPUMicros    float64 `json:"witness_cpu_us"`
	AskMicros    float64 `json:"ask_cpu_us"`         // of the requester, with decoding
	OpsS         float64 `json:"witness_served_ops"` // keys per second of wall time
	BytesKey     float64 `json:"multiproof_bytes_key"`
	PutS         float64 `json:"put_s"` // by wall time
	PutCPUMicros float64 `json:"put_cpu_us"`
	UpdateBytes  int     `json:"update_bytes"` // per block, for all nodes
	MemoryBytes  int64   `json:"memory_bytes"` // anonymous memory of all nodes

	// With a request for each range instead of one for each node, if nodes have several.
	ApartMicros    float64 `json:"witness_cpu_us_apart,omitempty"`
	AskApartMicros float64 `json:"ask_cpu_us_apart,omitempty"`

	puts             int    // changes
	changed, updates uint64 // bytes of their keys and values, and of all updates of all nodes
}

// Range has the figures of a range on disk, in a storage node with a quarter of the memory that the
// range takes.
type Range struct {
	Keys    int     `json:"keys"`     // changes that were measured
	PagedS  float64 `json:"paged_s"`  // keys per second of CPU time
	MemoryS float64 `json:"memory_s"` // of a storage node with enough memory
	// BytesPerChanged is bytes written for each byte of changed keys and values, with the log.
	BytesPerChanged float64 `json:"bytes_per_changed"`
	StartS          float64 `json:"start_s"` // after SIGKILL, with the log replayed
	MemoryBytes     int64   `json:"memory_bytes"`
	RSS             int64   `json:"rss"` // anonymous memory, after the start and another round
	RSSBudget       int64   `json:"rss_budget"`
}

// Joined has the figures of a validator that joined.
type Joined struct {
	Seconds    float64 `json:"seconds"`
	CPUS       float64 `json:"cpu_s"`
	UpperS     float64 `json:"upper_s"` // part of Seconds until the upper tree was complete
	Bytes      int64   `json:"bytes"`
	UpperBytes int64   `json:"upper_bytes"` // part of Bytes for the upper tree
	Blocks     int     `json:"blocks"`
	SentBytes  int64   `json:"sent_bytes"`
	Fetches    int     `json:"fetches"` // requests of the application
}

// PrefetchRow has the figures of a validator whose calls to storage nodes take DelayMS longer.
type PrefetchRow struct {
	DelayMS   int     `json:"delay_ms"`
	KeysS     float64 `json:"keys_s"` // keys per second that are fetched ahead
	Blocks    int     `json:"blocks"`
	BlockKeys int     `json:"block_keys"` // that were not in memory one interval before the block
	LeftOut   float64 `json:"left_out"`   // share of transactions that PrepareProposal leaves out
	Rejected  int     `json:"rejected"`   // proposals for which nodes did not arrive in time

	Ahead    PrefetchCalls `json:"ahead"` // requests of the prefetch
	Process  PrefetchCalls `json:"process_proposal"`
	Finalize PrefetchCalls `json:"finalize_block"`
}

// PrefetchCalls has the figures of one kind of call. Waits are those of calls, and 0 for Ahead.
type PrefetchCalls struct {
	P50MS    float64 `json:"p50_ms"`
	P99MS    float64 `json:"p99_ms"`
	Rounds   float64 `json:"rounds"`   // per block
	Bytes    float64 `json:"bytes"`    // per block
	Unwaited float64 `json:"unwaited"` // share of blocks without a request
}

// summarize fills in the top-level figures.
func (r *Result) summarize() {
	if s := r.Transfers.Sizes; s != nil {
		r.RawBytesTx, r.MultiproofBytesTxCold, r.MultiproofBytesTx, r.MemoryRatio = s.RawBytesTx, s.ColdBytesTx, s.Depths[0].MultiproofBytesTx, s.Depths[0].MemoryRatio
		r.WitnessReduction = 1 - harness.Ratio(r.MultiproofBytesTx, r.RawBytesTx)
		r.ColdReduction = 1 - harness.Ratio(r.MultiproofBytesTxCold, r.RawBytesTx)
		for _, a := range s.Ages {
			r.MissRate = max(r.MissRate, a.MissRate)
			if a.Age == 1 {
				r.StaleRate = a.StaleRate
			}
		}
		for _, a := range r.Deletions.Sizes.Ages {
			r.MissRate = max(r.MissRate, a.MissRate)
		}
	}
	apps := r.Transfers.Apps
	r.TPSLocal, r.TPSApp, r.TPSPaged = apps[modeLocal].TPS, apps[modeSharded].TPS, apps[modePaged].TPS
	if n := len(r.ShardRows); n > 0 {
		first, last := r.ShardRows[0], r.ShardRows[n-1]
		r.WitnessOpsS, r.WitnessCPUMicro, r.WitnessCPURatio = first.OpsCore, first.CPUMicros, harness.Ratio(last.CPUMicros, first.CPUMicros)
		r.WitnessServedS, r.PutS = last.OpsS, last.PutS
		if len(r.TogetherRows) > 0 {
			r.TogetherCPURatio = harness.Ratio(r.TogetherRows[0].CPUMicros, first.CPUMicros)
		}
	}
	r.RangeDiskRatio, r.BytesPerChanged = harness.Ratio(r.Range.PagedS, r.Range.MemoryS), r.Range.BytesPerChanged
	for _, f := range r.Feed {
		if f.Ranges == mostFeedRanges {
			r.ValidatorMB4000 = float64(f.MemoryBytes) / 1e6
		}
	}
	r.StartS, r.StorageMB = r.Range.StartS, float64(r.Range.RSS)/1e6
	for _, s := range r.Starts {
		switch s.Keys {
		case million:
			r.StartMillion = s.Seconds
		case tenMillion:
			r.StartTenMillion = s.Seconds
		}
	}
	if m := r.Moves; m != nil {
		r.MoveS, r.MoveCopyS, r.MoveP99X = m.Seconds, m.CopySeconds, harness.Ratio(m.MovingP99, m.CalmP99)
	}
	r.JoinS, r.JoinBytes = r.Join.Seconds, r.Join.Bytes
	r.Targets = r.targets()
}
