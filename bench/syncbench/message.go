package syncbench

import "github.com/starling-kv/starling/bench/workload"

// Parent and child exchange JSON values, one on each line: a begin and its answer, then requests
// and their answers. (bench/sdkstore has its own messages.)

// Roles of a child.
const (
	roleServer    = "server"
	roleJoiner    = "joiner"
	roleMemiavl   = nameMemiavl   // makes a snapshot
	roleImporter  = "importer"    // of memiavl's snapshot, a new process each time
	roleValidator = "validator"   // hiccup
	roleDownload  = "downloaders" // hiccup, siege
	roleBesieger  = "besieger"    // siege: everybody who attacks
)

// begin is the first line that a child gets.
type begin struct {
	Role   string        `json:"role"`
	Spec   workload.Spec `json:"spec"`
	Dir    string        `json:"dir"`
	Blocks int           `json:"blocks,omitempty"` // validator: at most
	// Server: of the tree; 0: the default.
	ChunkBytes uint64 `json:"chunk_bytes,omitempty"`
}

// op is the kind of a request.
type op string

const (
	opBegin op = "begin"
	opLoad  op = "load"  // n batches, or what is left
	opServe op = "serve" // server, validator: listen, and answer with the target
	opUsage op = "usage" // server
	opJoin  op = "join"  // joiner: from the target; importer: from the snapshot
	opWrite op = "write" // memiavl: a snapshot

	opBlocks   op = "blocks"   // validator: n blocks
	opDownload op = "download" // downloaders: n of them, from now on
	opBesiege  op = "besiege"  // besieger: peers of a kind for a join, and who tells of them
	opAttack   op = "attack"   // besieger: a server, from now on
)

type request struct {
	Op     op     `json:"op"`
	N      int    `json:"n,omitempty"`
	Target Target `json:"target,omitzero"`

	Peers int      `json:"peers,omitempty"` // opServe: number of addresses
	Lies  []string `json:"lies,omitempty"`  // of the last peers, one each
	Rate  int64    `json:"rate,omitempty"`  // bytes/s for each peer; 0: no limit

	LimitS float64 `json:"limit_s,omitempty"` // opJoin: give up then; 0: never
	Memory int64   `json:"memory,omitempty"`  // opJoin: budget of a paged state; 0: it is in memory
	Commit bool    `json:"commit,omitempty"`  // opJoin: and blocks behind it

	PauseMS   int  `json:"pause_ms,omitempty"`   // opBlocks: between the starts of two blocks
	ResetPeak bool `json:"reset_peak,omitempty"` // opBlocks: the peak of memory begins anew

	Probe bool   `json:"probe,omitempty"` // opDownload: newcomers ask for a status beside it
	Kind  string `json:"kind,omitempty"`  // opBesiege, opAttack: of attackers; empty: none
	Seed  uint64 `json:"seed,omitempty"`  // opBesiege: of the order in which peers are told
}

// answer has the fields set that belong to its request's op, or Error.
type answer struct {
	Error  string  `json:"error,omitempty"`
	Done   int     `json:"done,omitempty"` // batches
	Target Target  `json:"target,omitzero"`
	CPU    float64 `json:"cpu,omitempty"` // seconds of this process; of opJoin those during it
	RSS    int64   `json:"rss,omitempty"` // peak of resident memory, in bytes

	Ended   bool      `json:"ended,omitempty"`   // opJoin, false: not within the limit
	Seconds float64   `json:"seconds,omitempty"` // opJoin, opBlocks
	Stats   JoinStats `json:"stats,omitzero"`
	Bytes   int64     `json:"bytes,omitempty"` // importer: records; downloaders: received so far
	Nanos   []int64   `json:"nanos,omitempty"` // of each block; opJoin: while the state was settled
	Later   []int64   `json:"later,omitempty"` // opJoin: of as many blocks after it

	// Downloaders, since the last answer: the slowest newcomer, and how many were not answered.
	StatusMS float64 `json:"status_ms,omitempty"`
	Refused  int     `json:"refused,omitempty"`
}

// Failure is the error of the request.
func (a *answer) Failure() string { return a.Error }

// sdkRequest and sdkAnswer are the Request and Answer of bench/sdkstore and of bench/sdknode; what
// they mean stands there.
type sdkRequest struct {
	Op       string `json:"op"`
	N        int    `json:"n,omitempty"`
	Snapshot bool   `json:"snapshot,omitempty"`
}

type sdkAnswer struct {
	Error     string  `json:"error"`
	Nanos     int64   `json:"nanos"`
	Seconds   float64 `json:"seconds"`
	CPUS      float64 `json:"cpu_s"`
	Chunks    int     `json:"chunks"`
	Bytes     int64   `json:"bytes"`
	Snapshots int     `json:"snapshots"`
	Busy      bool    `json:"busy"`

	ManifestMS float64 `json:"manifest_ms"`
	ServeCPUS  float64 `json:"serve_cpu_s"`
	VerifyCPUS float64 `json:"verify_cpu_s"`
	WriteCPUS  float64 `json:"write_cpu_s"`
	AgainS     float64 `json:"again_s"`
	AgainCPUS  float64 `json:"again_cpu_s"`
	Overhead   float64 `json:"overhead_bytes_per_leaf"`

	// Of bench/sdknode.
	BlockNanos int64  `json:"block_nanos"`
	Root       []byte `json:"root"`
	PeakBytes  int64  `json:"peak_bytes"`
}

// Failure is the error of the request.
func (a *sdkAnswer) Failure() string { return a.Error }
