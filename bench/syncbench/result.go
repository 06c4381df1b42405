package syncbench

import "github.com/starling-kv/starling/bench/harness"

// Result is the outcome of a run. Peers that did not take part are left out. Seconds are medians
// over the joins.
type Result struct {
	Keys        int     `json:"keys"`
	StarlingS   float64 `json:"starling_s"` // from connecting to durable, verified state
	SettledS    float64 `json:"settled_s"`  // and until it lies in tables
	SDKRestoreS float64 `json:"sdk_restore_s,omitempty"`
	SDKCreateS  float64 `json:"sdk_create_s,omitempty"` // no joiner waits for it
	MemiavlS    float64 `json:"memiavl_s,omitempty"`
	FloorS      float64 `json:"floor_s"`
	CPUS        float64 `json:"cpu_s"`     // of server and joiner until the state is settled
	Bytes       int64   `json:"bytes"`     // received by the joiner
	RSSBytes    int64   `json:"rss_bytes"` // peak of the joiner

	// Details.
	Starling      Starling        `json:"starling"`
	Paged         *Paged          `json:"paged,omitempty"`
	DefaultChunks *DefaultChunks  `json:"default_chunks,omitempty"`
	SDK           *SDK            `json:"sdk,omitempty"`
	Memiavl       *Memiavl        `json:"memiavl,omitempty"`
	Floor         Floor           `json:"floor"`
	Seed          uint64          `json:"seed"`
	Repeat        int             `json:"repeat"`
	Machine       harness.Machine `json:"machine"`
	Goals         []Goal          `json:"targets"`
}

// Starling are the details of its joins.
type Starling struct {
	ChunkBytes   uint64         `json:"chunk_bytes"` // limit of a chunk
	Seconds      []float64      `json:"seconds"`     // of each join
	ServerCPUS   float64        `json:"server_cpu_s"`
	JoinerCPUS   float64        `json:"joiner_cpu_s"`
	ServerMemory harness.Memory `json:"server_memory"`
	JoinerMemory harness.Memory `json:"joiner_memory"`
	// BesideTree is the peak of the joiner's anonymous memory without its tree.
	BesideTree int64           `json:"joiner_beside_tree_bytes"`
	Join       JoinStats       `json:"join"` // the median one
	Blocks     *SettlingBlocks `json:"blocks,omitempty"`
}

// SettlingBlocks are blocks that are committed one after another behind a join of their own, while
// its state is settled, and as many after that.
type SettlingBlocks struct {
	Blocks     int     `json:"blocks"` // of each
	Keys       int     `json:"keys"`   // that each changes
	SettledS   float64 `json:"settled_s"`
	P99MS      float64 `json:"p99_ms"`
	LaterP99MS float64 `json:"later_p99_ms"`
}

// Paged are joins into a state that need not fit into memory (state_in_memory = false).
type Paged struct {
	StarlingS float64   `json:"starling_s"`
	Seconds   []float64 `json:"seconds"`
	// memory_bytes, of which the eighth for the block zone is not used.
	BudgetBytes int64 `json:"budget_bytes"`
	// Of the join with the largest peak of anonymous memory: the tree above the pages, which is
	// in the budget, and that peak without the budget.
	JoinerMemory harness.Memory `json:"joiner_memory"`
	TreeBytes    int64          `json:"tree_bytes"`
	BesideBudget int64          `json:"joiner_beside_budget_bytes"`
}

// DefaultChunks are joins of the same keys in chunks of the default limit.
type DefaultChunks struct {
	StarlingS float64   `json:"starling_s"`
	SettledS  float64   `json:"settled_s"`
	Seconds   []float64 `json:"seconds"`
}

// SDK are the details of the SDK's store.
type SDK struct {
	CreateS float64        `json:"create_s"`
	Seconds []float64      `json:"restore_seconds"`
	CPUS    float64        `json:"restore_cpu_s"`
	Chunks  int            `json:"chunks"`
	Bytes   int64          `json:"bytes"`  // of the chunks, compressed
	Memory  harness.Memory `json:"memory"` // of one process that is both sides
}

// Memiavl are the details of memiavl.
type Memiavl struct {
	Seconds []float64      `json:"seconds"`
	CPUS    float64        `json:"cpu_s"`
	Bytes   int64          `json:"bytes"`  // leaf records
	Memory  harness.Memory `json:"memory"` // of one process that is both sides
}
