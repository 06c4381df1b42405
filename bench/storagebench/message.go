package storagebench

// begin is the first line that a child receives.
type begin struct {
	Role   string `json:"role"` // a contestant's name, or one of the roles below
	Spec   Spec   `json:"spec"`
	Dir    string `json:"dir"`    // the child's own folder
	Traces string `json:"traces"` // folder of the requests
	Budget int64  `json:"budget"`
}

// Roles of children other than contestants.
const (
	roleMaker   = "maker"   // makes the requests
	roleWriter  = "writer"  // writes a state and kills itself
	roleOpener  = "opener"  // opens the files left by a writer
	roleDurable = "durable" // commits with storage
	roleMemory  = "memory"  // commits without storage
	rolePaged   = "paged"   // commits with storage, and queries, with limited memory
)

// Starts that opRecover measures.
const (
	startLeaves = "leaves" // all leaves are read
	startMemory = "memory" // a node with its state in memory, from the page list
	startFill   = "fill"   // the same, before opFill
	startPaged  = "paged"  // a node whose state may exceed its memory, from the page list
)

// request is a request to a child.
type request struct {
	Op string `json:"op"`
	N  int    `json:"n,omitempty"`

	// For reads.
	Cache        cacheMode    `json:"cache,omitzero"`
	Cold         bool         `json:"cold,omitempty"`
	Mix          mix10        `json:"mix,omitempty"`
	Then         mix10        `json:"then,omitempty"` // mix of the second half
	Distribution distribution `json:"distribution,omitempty"`
	Warm         int          `json:"warm,omitempty"` // queries before the measured ones
	Round        uint64       `json:"round,omitempty"`

	Paced bool   `json:"paced,omitempty"` // commits at fixed intervals
	Start string `json:"start,omitempty"` // how opRecover starts
}

const (
	opMake    = "make"    // make the requests of n steps
	opModel   = "model"   // end the requests, and write the model
	opReplay  = "replay"  // replay n steps
	opDrain   = "drain"   // wait until everything is durable
	opSettle  = "settle"  // wait for background work
	opReopen  = "reopen"  // open for reading
	opRead    = "read"    // make n queries of one mix
	opChange  = "change"  // make n queries of one mix and n of another, with one cache
	opWrite   = "write"   // write n steps of a state to recover
	opDie     = "die"     // end by SIGKILL, n blocks after a flush
	opRecover = "recover" // open the stores and rebuild the tree
	opRedo    = "redo"    // execute the blocks that the crash lost, up to height n
	opFill    = "fill"    // commit blocks until the state is in memory, and n more
	opCommit  = "commit"  // commit n blocks
	opUnpaced = "unpaced" // commit n blocks as fast as possible
	opPage    = "page"    // open the stores with limited memory
	opGet     = "get"     // get the values of n accounts
	opAbsent  = "absent"  // look up n absent accounts
	opProve   = "prove"   // prove n accounts
)

// answer has the fields of its request's op.
type answer struct {
	Done    int        `json:"done,omitempty"` // number of steps or queries
	Seconds float64    `json:"seconds,omitempty"`
	CPU     float64    `json:"cpu,omitempty"`     // seconds of all threads
	Written int64      `json:"written,omitempty"` // bytes since the child started
	Disk    int64      `json:"disk,omitempty"`
	Counts  counts     `json:"counts,omitzero"` // since the files were opened
	Zones   zoneCounts `json:"zones,omitzero"`  // Starling only: parts of Counts
	Plan    memoryPlan `json:"plan,omitzero"`

	Model modelSizes `json:"model,omitzero"`

	Reads     int64     `json:"reads,omitempty"`      // read system calls
	ReadBytes int64     `json:"read_bytes,omitempty"` // bytes read by these calls
	Hits      cacheHits `json:"hits,omitzero"`
	Wrong     int       `json:"wrong,omitempty"` // results that differ from what was written

	Millis    []float64 `json:"millis,omitempty"`  // for each commit
	Reclaim   float64   `json:"reclaim,omitempty"` // longest in a commit, in ms
	Keys      int       `json:"keys,omitempty"`
	Height    int64     `json:"height,omitempty"`
	Open      float64   `json:"open,omitempty"` // part of Seconds
	Waited    float64   `json:"waited,omitempty"`
	FirstWait int       `json:"first_wait,omitempty"` // blocks before Write first waited
	Pages     uint64    `json:"pages,omitempty"`      // read by commits
}

// modelSizes are the sizes of the chain, for the table.
type modelSizes struct {
	Keys       int   `json:"keys"`
	Height     int   `json:"tree_height"`
	StateBytes int64 `json:"state_bytes"`
	// Logical bytes of the blocks, which every layout has to store.
	BlockLogical int64 `json:"block_bytes"`
	StateLogical int64 `json:"changed_state_bytes"`
	// Requests of the two layouts for the changes of the state.
	NodeOps   int64 `json:"node_requests"`
	NodeBytes int64 `json:"node_request_bytes"`
	LeafOps   int64 `json:"leaf_requests"`
	LeafBytes int64 `json:"leaf_request_bytes"`
	// The same of geth's schemes; zero without such a contestant.
	HashOps   int64 `json:"hash_requests,omitempty"`
	HashBytes int64 `json:"hash_request_bytes,omitempty"`
	// ColumnBytes is HashBytes with column prefixes. Row prefixes have a byte for each request.
	ColumnBytes int64 `json:"column_request_bytes,omitempty"`
	PathOps     int64 `json:"path_requests,omitempty"`
	PathBytes   int64 `json:"path_request_bytes,omitempty"`
}
