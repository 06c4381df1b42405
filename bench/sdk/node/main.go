// Package node is a Cosmos SDK application over one store. starling-bench cosmos times its blocks:
// alone, while it serves its states (cosmos/sdk/serve), and while a joiner reads them.
package node

import (
	"bufio"
	"fmt"
	"io"

	"github.com/starling-kv/starling/internal/child"
)

// Modes of a node.
const (
	modePlain  = "plain"  // only makes blocks: the application is not wrapped
	modeServed = "served" // also serves the state of each snapshot height
	modeJoined = "joined" // also serves a joiner, which reads chunks as fast as it can
)

// Begin configures the application.
type Begin struct {
	Dir      string `json:"dir"`     // folder of the application's database
	Backend  string `json:"backend"` // goleveldb or pebbledb
	Mode     string `json:"mode"`
	Interval int64  `json:"interval"` // heights between two served states
}

// Request is a request. A commit is followed by N changes.
type Request struct {
	Op string `json:"op"` // commit, end
	N  int    `json:"n,omitempty"`
}

// Answer has the fields of its request's op.
type Answer struct {
	Nanos      int64  `json:"nanos,omitempty"`       // time of Commit
	BlockNanos int64  `json:"block_nanos,omitempty"` // time of FinalizeBlock and Commit
	Root       []byte `json:"root,omitempty"`

	// For end: bytes sent to the joiner, states offered, and the highest resident memory.
	Bytes     int64 `json:"bytes,omitempty"`
	Snapshots int   `json:"snapshots,omitempty"`
	PeakBytes int64 `json:"peak_bytes,omitempty"`
}

// Run runs a child process.
func Run(in io.Reader, out io.Writer) error {
	return child.Run(in, out, func(b Begin) (child.Worker[Request, Answer], Answer, error) {
		n, err := openNode(b)
		return n, Answer{}, err
	})
}

// Do implements child.Worker.
func (n *node) Do(r Request, in *bufio.Reader) (Answer, error) {
	switch r.Op {
	case "commit":
		changes, err := child.ReadChanges(in, r.N)
		if err != nil {
			return Answer{}, err
		}
		return n.commit(changes)
	case "end":
		return n.end()
	}
	return Answer{}, fmt.Errorf("unknown request %q", r.Op)
}
