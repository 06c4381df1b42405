package syncbench

import "github.com/starling-kv/starling/bench/harness"

// Result is the outcome of a run. Peers that did not take part are missing. Seconds are medians
// over the joins.
type Result struct {
	Keys        int     `json:"keys"`
	StarlingS   float64 `json:"starling_s"` // from connecting to durable, verified state
	SettledS    float64 `json:"settled_s"`  // until the state is also ingested into tables
	SDKRestoreS float64 `json:"sdk_restore_s,omitempty"`
	SDKCreateS  float64 `json:"sdk_create_s,omitempty"` // not part of a join
	MemiavlS    float64 `json:"memiavl_s,omitempty"`
	FloorS      float64 `json:"floor_s"`
	CPUS        float64 `json:"cpu_s"` // server and joiner, until the state is ingested
	JoinerCPUS  float64 `json:"joiner_cpu_s"`
	ServerCPUS  float64 `json:"server_cpu_s"`
	Bytes       int64   `json:"bytes"`     // bytes received by the joiner
	RSSBytes    int64   `json:"rss_bytes"` // peak memory of the joiner

	// Details.
	Starling      Starling         `json:"starling"`
	Paged         *Paged           `json:"paged,omitempty"`
	DefaultChunks *DefaultChunks   `json:"default_chunks,omitempty"`
	SDK           *SDK             `json:"sdk,omitempty"`
	Memiavl       *Memiavl         `json:"memiavl,omitempty"`
	Floor         Floor            `json:"floor"`
	Seed          uint64           `json:"seed"`
	Repeat        int              `json:"repeat"`
	Machine       harness.Machine  `json:"machine"`
	Targets       []harness.Target `json:"targets"`
}

// Starling has the details of Starling's joins.
type Starling struct {
	ChunkBytes   uint64         `json:"chunk_bytes"` // chunk limit
	Seconds      []float64      `json:"seconds"`     // for each join
	ServerMemory harness.Memory `json:"server_memory"`
	JoinerMemory harness.Memory `json:"joiner_memory"`
	// BesideTree is the peak of the joiner's anonymous memory, minus its tree.
	BesideTree int64           `json:"joiner_beside_tree_bytes"`
	Join       JoinStats       `json:"join"` // the join of median time
	Blocks     *SettlingBlocks `json:"blocks,omitempty"`
}

// SettlingBlocks are blocks committed one after another after a separate join: while the state is
// ingested, and the same number after that.
type SettlingBlocks struct {
	Blocks     int     `json:"blocks"` // number during ingestion, and again after it
	Keys       int     `json:"keys"`   // changed by each block
	SettledS   float64 `json:"settled_s"`
	P99MS      float64 `json:"p99_ms"`
	LaterP99MS float64 `json:"later_p99_ms"`
}

// Paged has the joins into a state that may exceed memory (state_in_memory = false).
type Paged struct {
	StarlingS float64   `json:"starling_s"`
	Seconds   []float64 `json:"seconds"`
	// memory_bytes; the eighth for the block store is not used.
	BudgetBytes int64 `json:"budget_bytes"`
	// The join with the highest peak of anonymous memory: its tree above the pages, which is part
	// of the budget, and its peak minus the budget.
	JoinerMemory harness.Memory `json:"joiner_memory"`
	TreeBytes    int64          `json:"tree_bytes"`
	BesideBudget int64          `json:"joiner_beside_budget_bytes"`
}

// DefaultChunks has the joins of the same keys in chunks of the default limit.
type DefaultChunks struct {
	StarlingS float64   `json:"starling_s"`
	SettledS  float64   `json:"settled_s"`
	Seconds   []float64 `json:"seconds"`
}

// SDK has the details of the SDK's store.
type SDK struct {
	CreateS float64        `json:"create_s"`
	Seconds []float64      `json:"restore_seconds"`
	CPUS    float64        `json:"restore_cpu_s"`
	Chunks  int            `json:"chunks"`
	Bytes   int64          `json:"bytes"`  // bytes of the compressed chunks
	Memory  harness.Memory `json:"memory"` // one process is both sides
}

// Memiavl has the details of memiavl.
type Memiavl struct {
	Seconds []float64      `json:"seconds"`
	CPUS    float64        `json:"cpu_s"`
	Bytes   int64          `json:"bytes"`  // bytes of the leaf records
	Memory  harness.Memory `json:"memory"` // one process is both sides
}
