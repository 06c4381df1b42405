package transportbench

import "time"

// Paths over which responses are sent.
const (
	pathTCP  = "tcp"
	pathTLS  = "tls"
	pathRDMA = "rdma"
)

// ChildName is the name of the child processes.
const ChildName = "transport"

// Roles of children.
const (
	roleServer = "server"
	roleClient = "client"
)

// begin is the first line that a child receives.
type begin struct {
	Role    string
	Host    string // address of this side
	Paths   []string
	Largest int // largest response
	// For a client: the server's addresses, by path.
	Servers map[string]string
}

// Requests to children.
const (
	opUsed    = "used"    // return what the child has used so far
	opConnect = "connect" // replace a client's connections on all paths
	opFetch   = "fetch"
)

// request is a request to a child.
type request struct {
	Op    string
	Peers int // for opConnect
	// For opFetch, which ends when Bytes have arrived or Limit has passed.
	Path   string
	Size   int
	Flight int
	Bytes  int64
	Limit  time.Duration
}

// answer is the response of a child.
type answer struct {
	Servers map[string]string // for a server's begin: its listen addresses
	Used    used
	// For opFetch. Machine is the CPU time of the whole machine, in seconds; negative if unknown.
	Bytes   int64
	Seconds float64
	Machine float64
}

// used is what a process has used since it started.
type used struct {
	CPU    float64 // in seconds
	Events uint64  // completion channel events
}
