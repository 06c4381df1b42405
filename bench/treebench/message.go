package treebench

import "github.com/starling-kv/starling/bench/workload"

// Parent and child exchange JSON values, one on each line: a begin and its answer, then requests
// and their answers.

// begin is the first line that a child gets.
type begin struct {
	Name       string        `json:"name"`
	Spec       workload.Spec `json:"spec"`
	Versions   int           `json:"versions"` // at most
	ExportRate float64       `json:"export_rate"`
	Dir        string        `json:"dir"`
	// Snapshot is the folder of memiavl's snapshot of the loaded tree, which is mapped; "": the
	// child loads the tree itself.
	Snapshot string `json:"snapshot,omitempty"`
}

// op is the kind of a request.
type op string

const (
	opBegin    op = "begin"
	opLoad     op = "load"     // n batches, or what is left
	opVersions op = "versions" // n versions, beside an export or not
	opMemory   op = "memory"
	opGet      op = "get"      // n gets
	opProve    op = "prove"    // n proofs, of which some are verified
	opExport   op = "export"   // one version untimed, then an export and its import
	opHash     op = "hash"     // time for each image
	opRead     op = "read"     // latency of random reads in n bytes
	opCheck    op = "check"    // compare the tree with the workload's model
	opSnapshot op = "snapshot" // memiavl: write one of the newest version
)

type request struct {
	Op     op     `json:"op"`
	N      int    `json:"n,omitempty"`
	Export bool   `json:"export,omitempty"`
	Warm   int    // steps before the N that are not measured
	Round  uint64 `json:"round,omitempty"`
	Procs  int    `json:"procs,omitempty"` // GOMAXPROCS meanwhile; 0: as it is
}

// answer has the fields set that belong to its request's op, or Error.
type answer struct {
	Error string `json:"error,omitempty"`

	// Nanos has one figure for each commit; the mean of a get or prove; one each for export and
	// import.
	Nanos []int64  `json:"nanos,omitempty"`
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
