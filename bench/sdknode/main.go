// Program sdknode is an application of the Cosmos SDK over one store. starling-bench cosmos times
// its blocks: as it is, serving its states (cosmos/sdk/serve), or serving them to a joiner. It is a
// program of its own, so that the SDK's modules stay out of the others.
//
//	starling-bench ── {"op":"commit","n":1000} and the changes ──▶ FinalizeBlock, Commit ──▶ {"nanos":…}
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

// What a node does beside its blocks.
const (
	modePlain  = "plain"  // nothing: the application is not wrapped
	modeServed = "served" // it serves each state at a snapshot height
	modeJoined = "joined" // and a joiner reads chunks as fast as it can
)

// Request is a line of JSON. Those of commit are followed by N changes (ops.ReadChanges).
type Request struct {
	Op string `json:"op"` // commit, end
	N  int    `json:"n,omitempty"`
}

// Name is for ops.Answers.
func (r Request) Name() string { return r.Op }

// Answer is the line for a request that has not failed: the fields of its op.
type Answer struct {
	Nanos      int64  `json:"nanos,omitempty"`       // of Commit
	BlockNanos int64  `json:"block_nanos,omitempty"` // of FinalizeBlock and Commit
	Root       []byte `json:"root,omitempty"`

	// Of end: what was sent to the joiner, the states that were offered, and the most memory that
	// was resident.
	Bytes     int64 `json:"bytes,omitempty"`
	Snapshots int   `json:"snapshots,omitempty"`
	PeakBytes int64 `json:"peak_bytes,omitempty"`
}

func main() {
	dir := flag.String("dir", "", "the folder of an application's database")
	backend := flag.String("backend", string(dbm.GoLevelDBBackend), "goleveldb or pebbledb")
	mode := flag.String("mode", modePlain, "plain, served or joined")
	interval := flag.Int64("interval", 10, "heights between two states that are served")
	flag.Parse()
	if *dir == "" {
		fmt.Fprintln(os.Stderr, "sdknode: only starling-bench runs this program, with --dir FOLDER")
		os.Exit(2)
	}
	if err := run(*dir, dbm.BackendType(*backend), *mode, *interval, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "sdknode: %v\n", err)
		os.Exit(1)
	}
}

// run answers requests until there are no more. An error ends it, since changes that follow the
// request may be unread.
func run(dir string, backend dbm.BackendType, mode string, interval int64, stdin io.Reader, stdout io.Writer) (err error) {
	n, err := openNode(dir, backend, mode, interval)
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
		return n.commit(changes)
	case "end":
		return n.end()
	}
	return Answer{}, errors.New("no such request")
}
