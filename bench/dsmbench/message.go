package dsmbench

import "github.com/starling-kv/starling/avlstar"

// Parent and child exchange JSON values, one on each line: a begin and its answer, then requests
// and their answers.

// ChildCommand is the hidden command with which this program runs itself for each role.
const ChildCommand = "dsm-contestant"

// Roles of a child, beside the modes of a validator.
const (
	roleNode   = "storage node"
	roleJoiner = "joiner"
)

// begin is the first line that a child gets.
type begin struct {
	Role       string `json:"role"`
	Spec       spec   `json:"spec"`
	Retain     int    `json:"retain,omitempty"`
	Window     int    `json:"window,omitempty"`
	Dir        string `json:"dir,omitempty"`
	PagedBytes int64  `json:"paged_bytes,omitempty"`
	// Range is what a storage node keeps.
	Range keyRange `json:"range,omitzero"`
	// Nodes are those that a joiner asks.
	Nodes []shard `json:"nodes,omitempty"`
}

// keyRange is an avlstar.KeyRange.
type keyRange struct {
	First []byte `json:"first,omitempty"`
	After []byte `json:"after,omitempty"`
}

func (r keyRange) tree() avlstar.KeyRange { return avlstar.KeyRange{First: r.First, After: r.After} }

// shard is a range and the address of its storage node.
type shard struct {
	Range   keyRange `json:"range"`
	Address string   `json:"address"`
}

// op is the kind of a request.
type op string

const (
	opBegin  op = "begin"
	opBlocks op = "blocks" // validator: n blocks
	opProve  op = "prove"  // storage node: headers with these app hashes are proved
	opUsage  op = "usage"  // storage node
	opJoin   op = "join"   // joiner: at a height, then these blocks
)

type request struct {
	Op        op             `json:"op"`
	N         int            `json:"n,omitempty"`
	Deletions bool           `json:"deletions,omitempty"`
	Height    int64          `json:"height,omitempty"`
	Hashes    []avlstar.Hash `json:"hashes,omitempty"` // opProve: of Height and those after it
	Txs       [][][]byte     `json:"txs,omitempty"`    // opJoin: of the blocks after Height
}

// answer has the fields set that belong to its request's op, or Error.
type answer struct {
	Error string `json:"error,omitempty"`

	// Of each block.
	Nanos      []int64 `json:"nanos,omitempty"`
	GraftNanos []int64 `json:"graft_nanos,omitempty"` // of Nanos
	CPUNanos   []int64 `json:"cpu_nanos,omitempty"`

	Fetched   int          `json:"fetched,omitempty"` // requests during blocks
	Height    int64        `json:"height,omitempty"`
	AppHash   avlstar.Hash `json:"app_hash,omitzero"`
	TreeBytes uint64       `json:"tree_bytes,omitempty"`

	Address string  `json:"address,omitempty"` // storage node
	CPU     float64 `json:"cpu,omitempty"`     // seconds of this process so far
	RSS     int64   `json:"rss,omitempty"`     // resident memory of its own

	Join Joined `json:"join,omitzero"`
}

// Failure is the error of the request.
func (a *answer) Failure() string { return a.Error }
