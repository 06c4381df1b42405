package treebench

import "github.com/starling-kv/starling/bench/workload"

// begin is the first line that a child receives.
type begin struct {
	Name       string        `json:"name"`
	Spec       workload.Spec `json:"spec"`
	Versions   int           `json:"versions"` // maximum number of versions
	ExportRate float64       `json:"export_rate"`
	Dir        string        `json:"dir"`
	// Snapshot is the folder of memiavl's snapshot of the loaded tree, which the child maps; "":
	// the child loads the tree itself.
	Snapshot string `json:"snapshot,omitempty"`
}

// op is the kind of a request.
type op string

const (
	opLoad     op = "load"     // load n batches, or the rest
	opVersions op = "versions" // make n versions, with or without a concurrent export
	opMemory   op = "memory"
	opGet      op = "get"      // time n gets
	opProve    op = "prove"    // make n proofs, and verify some
	opExport   op = "export"   // make one version untimed, then export it and import the export
	opHash     op = "hash"     // measure the time of each kind of hash
	opRead     op = "read"     // measure the latency of random reads in n bytes
	opCheck    op = "check"    // compare the tree with the workload's model
	opSnapshot op = "snapshot" // memiavl: write a snapshot of the newest version
)

type request struct {
	Op     op     `json:"op"`
	N      int    `json:"n,omitempty"`
	Export bool   `json:"export,omitempty"`
	Warm   int    // unmeasured steps before the N steps
	Round  uint64 `json:"round,omitempty"`
	Procs  int    `json:"procs,omitempty"` // GOMAXPROCS during the request; 0: unchanged
}

// answer has the fields of its request's op.
type answer struct {
	// Nanos has one time for each commit, the mean of a get or proof, and one each for export and
	// import.
	Nanos []int64  `json:"nanos,omitempty"`
	Roots []string `json:"roots,omitempty"` // for each commit
	Step  int      `json:"step,omitempty"`  // commits so far
	Keys  int      `json:"keys,omitempty"`

	Inner  uint64 `json:"inner,omitempty"` // nodes hashed in these versions
	Leaves uint64 `json:"leaves,omitempty"`

	Streamed      int     `json:"streamed,omitempty"` // bytes exported during the commits
	StreamSeconds float64 `json:"stream_seconds,omitempty"`

	Bytes    int      `json:"bytes,omitempty"` // length of a proof or an export
	Memory   memory   `json:"memory,omitzero"`
	Hash     hashCost `json:"hash,omitzero"`
	Read     float64  `json:"read,omitempty"` // ns per read
	Verified int      `json:"verified,omitempty"`
}
