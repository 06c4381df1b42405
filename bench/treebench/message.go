package treebench

import "github.com/starling-kv/starling/bench/workload"

// Parent and child speak JSON values, one a line: a begin, its answer, then requests and their answers in turn.

// begin is the first line to a child.
type begin struct {
	Name       string        `json:"name"`
	Spec       workload.Spec `json:"spec"`
	Versions   int           `json:"versions"` // the most that will be made
	ExportRate float64       `json:"export_rate"`
	Dir        string        `json:"dir"`
}

// op is what a child is asked to do.
type op string

const (
	opBegin    op = "begin"
	opLoad     op = "load"     // n batches, or what is left
	opVersions op = "versions" // n versions, beside an export or not
	opMemory   op = "memory"
	opGet      op = "get"    // n gets
	opProve    op = "prove"  // n proofs, of which some are verified
	opExport   op = "export" // one version untimed, then an export and its import
	opHash     op = "hash"   // what the kernel needs for each image
	opRead     op = "read"   // latency of random reads in n bytes
	opCheck    op = "check"  // the tree is what the workload says
)

type request struct {
	Op     op     `json:"op"`
	N      int    `json:"n,omitempty"`
	Export bool   `json:"export,omitempty"`
	Warm   int    // steps before the N that are not measured
	Round  uint64 `json:"round,omitempty"`
}

// answer has the fields of its request's op set, or Error.
type answer struct {
	Error string `json:"error,omitempty"`

	Nanos []int64  `json:"nanos,omitempty"` // one for each commit; of get and prove the mean; of export and import one each
	Roots []string `json:"roots,omitempty"` // of each commit
	Step  int      `json:"step,omitempty"`  // commits in all
	Keys  int      `json:"keys,omitempty"`

	Inner  uint64 `json:"inner,omitempty"` // hashed in these versions
	Leaves uint64 `json:"leaves,omitempty"`

	Streamed      int     `json:"streamed,omitempty"` // bytes exported beside the commits
	StreamSeconds float64 `json:"stream_seconds,omitempty"`

	Bytes    int      `json:"bytes,omitempty"` // of a proof, of an export
	Memory   memory   `json:"memory,omitzero"`
	Hash     hashCost `json:"hash,omitzero"`
	Read     float64  `json:"read,omitempty"` // ns
	Verified int      `json:"verified,omitempty"`
}

// Failure is the error of the request.
func (a *answer) Failure() string { return a.Error }
