package storagebench

// Parent and child exchange JSON values, one on each line: a begin and its answer, then requests
// and their answers.

// begin is the first line that a child gets.
type begin struct {
	Role   string `json:"role"` // a contestant's name, or one of those below
	Spec   Spec   `json:"spec"`
	Dir    string `json:"dir"`    // its own
	Traces string `json:"traces"` // folder of the requests
	Budget int64  `json:"budget"`
}

// Roles of children that are not contestants.
const (
	roleMaker   = "maker"   // makes the requests
	roleWriter  = "writer"  // writes a state and kills itself
	roleOpener  = "opener"  // opens the files that a writer left
	roleDurable = "durable" // commits with storage
	roleMemory  = "memory"  // commits without storage
	rolePaged   = "paged"   // commits with storage, and queries, in a budget of memory
)

// request is a request to a child.
type request struct {
	Op string `json:"op"`
	N  int    `json:"n,omitempty"`

	// Of reads.
	Cache        cacheMode    `json:"cache,omitzero"`
	Cold         bool         `json:"cold,omitempty"`
	Mix          mix10        `json:"mix,omitempty"`
	Then         mix10        `json:"then,omitempty"` // the mix of the second half
	Distribution distribution `json:"distribution,omitempty"`
	Warm         int          `json:"warm,omitempty"` // queries before those that are measured
	Round        uint64       `json:"round,omitempty"`

	Paced bool `json:"paced,omitempty"` // commits
}

const (
	opBegin   = "begin"
	opMake    = "make"    // n steps of the requests
	opModel   = "model"   // the end of them
	opReplay  = "replay"  // n steps
	opDrain   = "drain"   // wait until everything is durable
	opSettle  = "settle"  // wait for background work
	opReopen  = "reopen"  // open for reading
	opRead    = "read"    // n queries of one mix
	opChange  = "change"  // n queries of a mix and n of another, with one cache
	opWrite   = "write"   // n steps of a state to recover
	opDie     = "die"     // by SIGKILL, in the middle of blocks
	opRecover = "recover" // opens the zones and rebuilds the tree
	opCommit  = "commit"  // n blocks
	opUnpaced = "unpaced" // n blocks as fast as they go
	opPage    = "page"    // opens the zones with a budget of memory
	opGet     = "get"     // n values of accounts
	opAbsent  = "absent"  // n accounts that there are not
	opProve   = "prove"   // n proofs of accounts
)

// answer has the fields set that belong to its request's op, or Error.
type answer struct {
	Error string `json:"error,omitempty"`

	Done    int        `json:"done,omitempty"` // steps, queries
	Seconds float64    `json:"seconds,omitempty"`
	CPU     float64    `json:"cpu,omitempty"`     // s, of all threads
	Written int64      `json:"written,omitempty"` // bytes since the child began
	Disk    int64      `json:"disk,omitempty"`
	Counts  counts     `json:"counts,omitzero"` // since the files were opened
	Zones   zoneCounts `json:"zones,omitzero"`  // Starling: of Counts
	Plan    memoryPlan `json:"plan,omitzero"`

	Model modelSizes `json:"model,omitzero"`

	Reads     int64     `json:"reads,omitempty"`      // system calls that read
	ReadBytes int64     `json:"read_bytes,omitempty"` // by them
	Hits      cacheHits `json:"hits,omitzero"`
	Wrong     int       `json:"wrong,omitempty"` // answers other than what was written

	Millis    []float64 `json:"millis,omitempty"`  // of each commit
	Reclaim   float64   `json:"reclaim,omitempty"` // ms, the longest of a commit
	Keys      int       `json:"keys,omitempty"`
	Height    int64     `json:"height,omitempty"`
	Open      float64   `json:"open,omitempty"` // s of Seconds
	Waited    float64   `json:"waited,omitempty"`
	FirstWait int       `json:"first_wait,omitempty"` // blocks before Write waited
	Pages     uint64    `json:"pages,omitempty"`      // that commits read
}

// Failure is the error of the request.
func (a *answer) Failure() string { return a.Error }

// modelSizes are the sizes of the chain, for the table.
type modelSizes struct {
	Keys       int   `json:"keys"`
	Height     int   `json:"tree_height"`
	StateBytes int64 `json:"state_bytes"`
	// Logical bytes of the blocks, which every contestant has to store.
	BlockLogical int64 `json:"block_bytes"`
	StateLogical int64 `json:"changed_state_bytes"`
	// Requests of the two layouts for the changes of the state.
	NodeOps   int64 `json:"node_requests"`
	NodeBytes int64 `json:"node_request_bytes"`
	LeafOps   int64 `json:"leaf_requests"`
	LeafBytes int64 `json:"leaf_request_bytes"`
}
