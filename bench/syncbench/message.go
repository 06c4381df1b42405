package syncbench

import "github.com/starling-kv/starling/bench/workload"

// Roles of a child.
const (
	roleServer    = "server"
	roleJoiner    = "joiner"
	roleMemiavl   = nameMemiavl   // writes a snapshot
	roleImporter  = "importer"    // imports memiavl's snapshot; a new process each time
	roleValidator = "validator"   // hiccup
	roleDownload  = "downloaders" // hiccup, siege
	roleBesieger  = "besieger"    // siege; runs all attackers
	roleStrangers = "strangers"   // siege --sharded; runs all attackers
)

// begin is the first line that a child receives.
type begin struct {
	Role   string        `json:"role"`
	Spec   workload.Spec `json:"spec"`
	Dir    string        `json:"dir"`
	Blocks int           `json:"blocks,omitempty"` // validator: maximum number of blocks
	// Server: chunk limit of the tree; 0: the default.
	ChunkBytes uint64 `json:"chunk_bytes,omitempty"`
}

// op is the kind of a request.
type op string

const (
	opLoad  op = "load"  // load n batches, or the rest
	opServe op = "serve" // server, validator: listen, return the target; strangers: the relay
	opUsage op = "usage" // server, attackers: CPU time so far
	opJoin  op = "join"  // joiner: join from the target; importer: import the snapshot
	opWrite op = "write" // memiavl: write a snapshot

	opBlocks   op = "blocks"   // validator: make n blocks
	opDownload op = "download" // downloaders: run n of them from now on
	opBesiege  op = "besiege"  // besieger: start attackers of a joiner, and their advertisers
	opPrepare  op = "prepare"  // strangers: prepare an attack of a kind, before it is timed
	opAttack   op = "attack"   // besieger, strangers: attack a server or a network from now on
)

type request struct {
	Op     op     `json:"op"`
	N      int    `json:"n,omitempty"`
	Target Target `json:"target,omitzero"`

	Peers int      `json:"peers,omitempty"` // opServe: number of addresses
	Lies  []string `json:"lies,omitempty"`  // kinds of the last peers, one each
	Rate  int64    `json:"rate,omitempty"`  // bytes/s for each peer; 0: no limit

	LimitS float64 `json:"limit_s,omitempty"` // opJoin: time limit; 0: none
	Memory int64   `json:"memory,omitempty"`  // opJoin: budget of a paged state; 0: not paged
	Commit bool    `json:"commit,omitempty"`  // opJoin: also make blocks during ingestion

	PauseMS   int  `json:"pause_ms,omitempty"`   // opBlocks: between the starts of two blocks
	ResetPeak bool `json:"reset_peak,omitempty"` // opBlocks: reset the peak memory first

	Probe bool   `json:"probe,omitempty"` // opDownload: meanwhile, newcomers request a status
	Kind  string `json:"kind,omitempty"`  // opBesiege, opAttack: kind of attackers; empty: none
	Seed  uint64 `json:"seed,omitempty"`  // opBesiege: order of advertised peers

	Victims victims `json:"victims,omitzero"` // opAttack of strangers
}

// answer has the fields of its request's op.
type answer struct {
	Done   int     `json:"done,omitempty"` // batches; opUsage of strangers: transactions answered
	Target Target  `json:"target,omitzero"`
	CPU    float64 `json:"cpu,omitempty"` // CPU seconds of this process; opJoin: during the join
	RSS    int64   `json:"rss,omitempty"` // peak of resident memory, in bytes

	Ended   bool      `json:"ended,omitempty"`   // opJoin: whether the join ended within the limit
	Seconds float64   `json:"seconds,omitempty"` // opJoin, opBlocks
	Stats   JoinStats `json:"stats,omitzero"`
	Bytes   int64     `json:"bytes,omitempty"` // importer: records; downloaders: received so far
	Nanos   []int64   `json:"nanos,omitempty"` // of each block; opJoin: during ingestion
	Kept    Kept      `json:"kept,omitzero"`   // opBlocks: the most after a block
	Later   []int64   `json:"later,omitempty"` // opJoin: of as many blocks after ingestion

	// Downloaders, since the last response: the slowest newcomer, and the number without a
	// response. opUsage of strangers: the number of transactions refused as busy.
	StatusMS float64 `json:"status_ms,omitempty"`
	Refused  int     `json:"refused,omitempty"`
}
