// Command sdk runs the Cosmos SDK as an opponent of starling-bench, which builds it and talks to it
// over a pipe (internal/child).
//
//	sdk store   the SDK's store: its snapshots, and homes written by cosmos/nodedb   sync, hiccup, cosmos
//	sdk node    an application, with or without serving its states                   cosmos
//	sdk kv      the operations of one store: IAVL's, memiavl's or ours               cosmos
//
// It is a module of its own because the SDK's store needs a different version of IAVL than the rest
// of the benchmark. The configuration is the default of the SDK's server: a cache of 781,250 nodes,
// fast storage, and a snapshot store with its own database and folder. go.mod replaces goleveldb as
// the SDK does.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/starling-kv/starling/bench/sdk/kv"
	"github.com/starling-kv/starling/bench/sdk/node"
	"github.com/starling-kv/starling/bench/sdk/store"
)

var programs = map[string]func(in io.Reader, out io.Writer) error{"kv": kv.Run, "node": node.Run, "store": store.Run}

func main() {
	if len(os.Args) != 2 || programs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "sdk: this program is run by starling-bench, as kv, node or store")
		os.Exit(2)
	}
	if err := programs[os.Args[1]](os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "sdk %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}
