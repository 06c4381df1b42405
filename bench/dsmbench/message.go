package dsmbench

import "github.com/starling-kv/starling/avlstar"

// ChildName is the name of the child processes.
const ChildName = "dsm"

// Roles of a child that is not a validator. A validator's role is its mode.
const (
	roleNode   = "storage node"
	roleJoiner = "joiner"
	roleFeeder = "feeder"
)

// begin is the first line that a child receives.
type begin struct {
	Role       string `json:"role"`
	Spec       spec   `json:"spec"`
	Retain     int    `json:"retain,omitempty"`
	Window     int    `json:"window,omitempty"`
	Dir        string `json:"dir,omitempty"`
	PagedBytes int64  `json:"paged_bytes,omitempty"`
	// Ranges are the ranges of a storage node, PagedBytes its memory, Heights the number of heights
	// that it serves (0: the default).
	Ranges  []keyRange `json:"ranges,omitempty"`
	Heights int        `json:"heights,omitempty"`
	// Nodes are the storage nodes that a joiner uses.
	Nodes []shard `json:"nodes,omitempty"`
	// DelayMS is added to each of its calls.
	DelayMS int `json:"delay_ms,omitempty"`
}

// keyRange is an avlstar.KeyRange.
type keyRange struct {
	First []byte `json:"first,omitempty"`
	After []byte `json:"after,omitempty"`
}

func (r keyRange) tree() avlstar.KeyRange { return avlstar.KeyRange{First: r.First, After: r.After} }

// shard is a range and the address of the storage node that keeps it.
type shard struct {
	Range   keyRange `json:"range"`
	Address string   `json:"address"`
}

// op is the kind of a request.
type op string

const (
	opBlocks   op = "blocks"   // validator: execute n blocks
	opProve    op = "prove"    // storage node: accept the headers with these app hashes as proved
	opUsage    op = "usage"    // storage node
	opJoin     op = "join"     // joiner: join at a height, then execute these blocks
	opPrefetch op = "prefetch" // joiner: join at a height, then fetch ahead for these blocks
	opFeed     op = "feed"     // feeder: make n blocks with the updates of this number of ranges
)

type request struct {
	Op        op             `json:"op"`
	N         int            `json:"n,omitempty"`
	Deletions bool           `json:"deletions,omitempty"`
	Height    int64          `json:"height,omitempty"`
	Hashes    []avlstar.Hash `json:"hashes,omitempty"` // opProve: from Height on
	Txs       [][][]byte     `json:"txs,omitempty"`    // opJoin: of the blocks after Height
	// opPrefetch: the blocks, how many of them are fetched ahead at a time, and a multiproof of all
	// system keys.
	Cold    []coldBlock `json:"cold,omitempty"`
	Batch   int         `json:"batch,omitempty"`
	Records []byte      `json:"records,omitempty"`
	Ranges  int         `json:"ranges,omitempty"` // opFeed
}

// answer has the fields of its request's op.
type answer struct {
	// One value for each block.
	Nanos      []int64 `json:"nanos,omitempty"`
	GraftNanos []int64 `json:"graft_nanos,omitempty"` // included in Nanos
	CPUNanos   []int64 `json:"cpu_nanos,omitempty"`

	Fetched   int          `json:"fetched,omitempty"` // requests during blocks
	Height    int64        `json:"height,omitempty"`
	AppHash   avlstar.Hash `json:"app_hash,omitzero"`
	TreeBytes uint64       `json:"tree_bytes,omitempty"`

	Address string  `json:"address,omitempty"` // storage node
	CPU     float64 `json:"cpu,omitempty"`     // seconds of this process so far
	RSS     int64   `json:"rss,omitempty"`     // anonymous resident memory
	Written uint64  `json:"written,omitempty"` // bytes of the state written to disk so far

	Join     Joined      `json:"join,omitzero"`
	Prefetch PrefetchRow `json:"prefetch,omitzero"`
	Feed     FeedRow     `json:"feed,omitzero"`
}
