// Command sdkstore is the Cosmos SDK's store as a contestant of starling-bench, which builds it and
// talks to it over a pipe.
//
//	           stdin: a JSON line, then the changes it announces
//	parent ───────────────────────────────────────────────────▶ source   rootmulti ─▶ iavl v1.2.6 ─▶ goleveldb, Pebble
//	       ◀───────────────────────────────────────────────────   │ Create                      ▲
//	           stdout: a JSON line for each                       ▼                             │ RestoreChunk
//	                                                        snapshot files ──── chunks ──▶ target, empty before
//	                                                              └── or by cosmos/nodedb ─────┘
//
// It is a module of its own because the SDK's store needs another version of IAVL than the rest of
// the benchmark. Everything is configured as the SDK's server does by default: a cache of 781,250
// nodes, fast storage, a snapshot store in its own database and folder; go.mod replaces goleveldb
// as the SDK's does.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/bench/ops"
)

// Request is a line from the parent. Commit is followed by N changes (ops.ReadChanges).
type Request struct {
	Op string `json:"op"` // commit, create, restore, join
	N  int    `json:"n,omitempty"`
	// Snapshot of a commit starts a snapshot of its height in the background, as a node does at its
	// interval.
	Snapshot bool `json:"snapshot,omitempty"`
}

// Name is for ops.Answers.
func (r Request) Name() string { return r.Op }

// Answer is the line for a request that has not failed: the fields of its op.
type Answer struct {
	Nanos int64  `json:"nanos,omitempty"` // of a commit, from the sorted changes to its hash
	Root  []byte `json:"root,omitempty"`

	Seconds float64 `json:"seconds,omitempty"` // of create, restore
	CPUS    float64 `json:"cpu_s,omitempty"`   // of create, restore, join
	Chunks  int     `json:"chunks,omitempty"`
	Bytes   int64   `json:"bytes,omitempty"` // of the chunks; the SDK's are compressed

	// Of join: its stages, each alone, and what travels beside keys and values, in bytes a leaf.
	ManifestMS float64 `json:"manifest_ms,omitempty"`
	ServeCPUS  float64 `json:"serve_cpu_s,omitempty"`
	VerifyCPUS float64 `json:"verify_cpu_s,omitempty"`
	WriteCPUS  float64 `json:"write_cpu_s,omitempty"`
	AgainS     float64 `json:"again_s,omitempty"` // all of it, from a server that served before
	AgainCPUS  float64 `json:"again_cpu_s,omitempty"`
	Overhead   float64 `json:"overhead_bytes_per_leaf,omitempty"`

	// Snapshots finished in the background so far, and whether one is being made.
	Snapshots int  `json:"snapshots,omitempty"`
	Busy      bool `json:"busy,omitempty"`
}

func main() {
	dir := flag.String("dir", "", "an empty folder for databases")
	backend := flag.String("backend", string(dbm.GoLevelDBBackend), "goleveldb or pebbledb")
	flag.Parse()
	if *dir == "" {
		fmt.Fprintln(os.Stderr, "sdkstore: only starling-bench runs this program, with --dir FOLDER")
		os.Exit(2)
	}
	if err := serve(*dir, dbm.BackendType(*backend), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "sdkstore: %v\n", err)
		os.Exit(1)
	}
}

// serve answers requests until there are no more. An error ends it, since changes that follow the
// request may be unread.
func serve(dir string, backend dbm.BackendType, stdin io.Reader, stdout io.Writer) (err error) {
	n, err := openNode(dir, backend)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	return ops.Answers(stdin, stdout, n.answer)
}

func (n *node) answer(r Request, in *bufio.Reader) (Answer, error) {
	switch r.Op {
	case "commit":
		changes, err := ops.ReadChanges(in, r.N)
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
	return Answer{}, errors.New("no such request")
}
