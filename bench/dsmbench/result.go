package dsmbench

import "github.com/starling-kv/starling/bench/harness"

// Result is what a run measured. What a phase has that was left out is zero.
type Result struct {
	Keys   int   `json:"keys"`
	Retain int   `json:"r"`
	Window int   `json:"window"`
	Shards []int `json:"shards"`

	// Transactions a second of an application, in blocks whose signatures were checked before.
	TPSLocal float64 `json:"tps_local"`
	TPSApp   float64 `json:"tps_app"` // decoding and grafting the block's bag included
	TPSPaged float64 `json:"tps_paged"`

	RawBytesTx       float64 `json:"raw_bytes_tx"`      // full ways of node images
	BagBytesTxCold   float64 `json:"bag_bytes_tx_cold"` // one bag of a block, for who has nothing
	BagBytesTx       float64 `json:"bag_bytes_tx"`      // for a validator with r and window
	WitnessReduction float64 `json:"witness_reduction"` // 1 - BagBytesTx / RawBytesTx
	ColdReduction    float64 `json:"cold_reduction"`

	// MissRate is of the ways in bags up to Window blocks old; the highest of all ages.
	MissRate  float64 `json:"miss_rate"`
	StaleRate float64 `json:"stale_rate"` // of transactions after one block

	WitnessOpsS     float64 `json:"witness_ops_s"`     // keys a second and core, with one shard
	WitnessCPUMicro float64 `json:"witness_cpu_us"`    // of a key, with one shard
	WitnessCPURatio float64 `json:"witness_cpu_ratio"` // of a key, with the most shards to one
	// WitnessServedS is keys a second by the clock, with the most shards.
	WitnessServedS float64 `json:"witness_served_ops"`

	MemoryRatio float64 `json:"memory_ratio"` // of a validator's tree to the full one
	TreeBytes   uint64  `json:"tree_bytes"`   // of the full one

	JoinS       float64 `json:"join_s"`       // without CometBFT
	JoinBytes   int64   `json:"join_bytes"`   // beside blocks
	HeaderBytes int     `json:"header_bytes"` // a light block of four validators
	PutS        float64 `json:"put_s"`        // by the clock, with the most shards

	Transfers Row        `json:"transfers"`
	Deletions Row        `json:"deletions"` // 5 % of the transactions delete an account
	ShardRows []ShardRow `json:"shard_rows"`
	Join      Joined     `json:"join"`

	Signers int             `json:"signers"`
	BlockTx int             `json:"block_txs"`
	Blocks  int             `json:"blocks"` // that count
	PagedMB int             `json:"paged_mb"`
	Seed    uint64          `json:"seed"`
	Quick   bool            `json:"quick,omitempty"`
	Phases  []string        `json:"phases"`
	Machine harness.Machine `json:"machine"`
	Targets []Target        `json:"targets"`
}

// Row is a workload.
type Row struct {
	Sizes *Sizes         `json:"sizes,omitempty"`
	Apps  map[string]App `json:"apps,omitempty"` // by mode
}

// Sizes are bytes of witnesses, and of memory.
type Sizes struct {
	RawBytesTx  float64    `json:"raw_bytes_tx"`
	ColdBytesTx float64    `json:"bag_bytes_tx_cold"`
	Depths      []DepthRow `json:"depths"` // the first is the run's r
	Ages        []AgeRow   `json:"ages"`
}

// DepthRow is a validator that keeps the tree down to a depth.
type DepthRow struct {
	Depth       int     `json:"r"`
	BagBytesTx  float64 `json:"bag_bytes_tx"`
	UpperBytes  int     `json:"upper_bytes"` // of the bag that has the tree to this depth
	MemoryBytes uint64  `json:"memory_bytes"`
	MemoryRatio float64 `json:"memory_ratio"`
}

// AgeRow is bags of some age.
type AgeRow struct {
	Age       int     `json:"age"`        // blocks
	Ways      int     `json:"ways"`       // to keys that were there
	MissRate  float64 `json:"miss_rate"`  // of them: not usable
	StaleRate float64 `json:"stale_rate"` // of transactions: a way has changed below the upper tree

	missed, txs, stale, dropped int
}

// App is an application in one mode.
type App struct {
	TPS         float64 `json:"tps"`       // by the median block
	CPUMicros   float64 `json:"cpu_us_tx"` // of all threads
	GraftMicros float64 `json:"graft_us_tx"`
	Fetched     int     `json:"fetched"` // requests during blocks
	TreeBytes   uint64  `json:"tree_bytes"`
}

// ShardRow is a number of storage nodes.
type ShardRow struct {
	Shards       int     `json:"shards"`
	OpsCore      float64 `json:"witness_ops_s"` // keys a second and core
	CPUMicros    float64 `json:"witness_cpu_us"`
	OpsS         float64 `json:"witness_served_ops"` // keys a second, by the clock
	BytesKey     float64 `json:"bag_bytes_key"`
	PutS         float64 `json:"put_s"` // by the clock
	PutCPUMicros float64 `json:"put_cpu_us"`
	UpdateBytes  int     `json:"update_bytes"` // of a block, for all nodes
	MemoryBytes  int64   `json:"memory_bytes"` // anonymous, of all nodes
}

// Joined is a validator that has joined.
type Joined struct {
	Seconds    float64 `json:"seconds"`
	CPUS       float64 `json:"cpu_s"`
	UpperS     float64 `json:"upper_s"` // of Seconds, until it had the upper tree
	Bytes      int64   `json:"bytes"`
	UpperBytes int64   `json:"upper_bytes"` // of Bytes, until then
	Blocks     int     `json:"blocks"`
	SentBytes  int64   `json:"sent_bytes"`
	Fetches    int     `json:"fetches"` // of the application
}

// summarize fills in the figures at the top.
func (r *Result) summarize() {
	if s := r.Transfers.Sizes; s != nil {
		r.RawBytesTx, r.BagBytesTxCold, r.BagBytesTx, r.MemoryRatio = s.RawBytesTx, s.ColdBytesTx, s.Depths[0].BagBytesTx, s.Depths[0].MemoryRatio
		r.WitnessReduction = 1 - harness.Ratio(r.BagBytesTx, r.RawBytesTx)
		r.ColdReduction = 1 - harness.Ratio(r.BagBytesTxCold, r.RawBytesTx)
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
	}
	r.JoinS, r.JoinBytes = r.Join.Seconds, r.Join.Bytes
	r.Targets = r.targets()
}

// Target is a figure to reach.
type Target struct {
	Name    string  `json:"name"`
	Met     bool    `json:"met"`
	Figure  float64 `json:"figure"`
	Measure string  `json:"measure"` // the figure in words
}
