package transportbench

import "time"

// Paths of answers.
const (
	pathTCP  = "tcp"
	pathTLS  = "tls"
	pathRDMA = "rdma"
)

// ChildCommand is the hidden command of the children.
const ChildCommand = "transport-side"

// Roles of children.
const (
	roleServer = "server"
	roleClient = "client"
)

// begin is what a child is told first.
type begin struct {
	Role    string
	Host    string // its address
	Paths   []string
	Largest int // of the answers
	// Of a client: where the server listens, by path.
	Servers map[string]string
}

// Operations that children are asked for.
const (
	opUsed    = "used"    // what the child has used so far
	opConnect = "connect" // a client's connections, on all paths; they replace those before
	opFetch   = "fetch"
)

// request is what a child is asked for.
type request struct {
	Op    string
	Peers int // of opConnect
	// Of opFetch, which ends when Bytes have come or Limit has passed.
	Path   string
	Size   int
	Flight int
	Bytes  int64
	Limit  time.Duration
}

// answer is a child's.
type answer struct {
	Error   string
	Servers map[string]string // of a server's begin: where it listens
	Used    used
	// Of opFetch. Machine is the CPU time of the whole machine, in seconds; negative: unknown.
	Bytes   int64
	Seconds float64
	Machine float64
}

// Failure implements harness.Answer.
func (a answer) Failure() string { return a.Error }

// used is what a process has used since it began.
type used struct {
	CPU    float64 // in seconds
	Events uint64  // of completion channels
}
