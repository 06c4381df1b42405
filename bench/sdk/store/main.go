// Package store uses the Cosmos SDK's store as a source of states.
//
//	source   rootmulti ─▶ iavl v1.2.6 ─▶ goleveldb, Pebble
//	  │ Create                      ▲
//	  ▼                             │ RestoreChunk
//	snapshot files ──── chunks ──▶ target, initially empty
//	  └── or cosmos/nodedb ────────┘
package store

import (
	"bufio"
	"fmt"
	"io"

	"github.com/starling-kv/starling/internal/child"
)

// Begin names an empty folder for the databases, and their engine.
type Begin struct {
	Dir     string `json:"dir"`
	Backend string `json:"backend"` // goleveldb or pebbledb
	// Records makes commits write records like those of a chain's modules, instead of random bytes.
	Records bool `json:"records,omitempty"`
}

// Request is a request. A commit is followed by N changes.
type Request struct {
	Op string `json:"op"` // commit, create, restore, join
	N  int    `json:"n,omitempty"`
	// Snapshot makes a commit start a snapshot of its height in the background, as a node does at
	// each snapshot interval.
	Snapshot bool `json:"snapshot,omitempty"`
}

// Answer has the fields of its request's op.
type Answer struct {
	Nanos int64  `json:"nanos,omitempty"` // commit: time from the sorted changes to the hash
	Root  []byte `json:"root,omitempty"`

	Seconds float64 `json:"seconds,omitempty"` // create, restore
	CPUS    float64 `json:"cpu_s,omitempty"`   // create, restore, join
	Chunks  int     `json:"chunks,omitempty"`
	// Bytes is the length of all chunks as they are sent, for join with the manifest.
	Bytes int64 `json:"bytes,omitempty"`

	// For join: the cost of each stage alone, and the bytes per leaf sent in addition to keys and
	// values.
	ManifestMS float64 `json:"manifest_ms,omitempty"`
	ServeCPUS  float64 `json:"serve_cpu_s,omitempty"`
	PackCPUS   float64 `json:"pack_cpu_s,omitempty"`
	UnpackCPUS float64 `json:"unpack_cpu_s,omitempty"`
	VerifyCPUS float64 `json:"verify_cpu_s,omitempty"`
	WriteCPUS  float64 `json:"write_cpu_s,omitempty"`
	AgainS     float64 `json:"again_s,omitempty"` // the join, from a server that has served before
	AgainCPUS  float64 `json:"again_cpu_s,omitempty"`
	Overhead   float64 `json:"overhead_bytes_per_leaf,omitempty"`
	PlainBytes int64   `json:"plain_bytes,omitempty"` // Bytes without compression

	// Number of snapshots finished in the background so far, and whether one is in progress.
	Snapshots int  `json:"snapshots,omitempty"`
	Busy      bool `json:"busy,omitempty"`
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
		return n.commit(changes, r.Snapshot)
	case "create":
		return n.create()
	case "restore":
		return n.restore()
	case "join":
		return n.join()
	}
	return Answer{}, fmt.Errorf("unknown request %q", r.Op)
}
