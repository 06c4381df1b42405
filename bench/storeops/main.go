// Command storeops is the SDK's store, or ours under the SDK's interfaces, as a contestant of
// starling-bench, which builds it (package ops).
//
//	starling   our rootmulti   ─▶ AVL* in memory ─▶ goleveldb (records), zone
//	iavl       the SDK's       ─▶ iavl v1.2.6    ─▶ goleveldb
//
// It is a module of its own: memiavl needs another version of IAVL than the SDK's store.
package main

import (
	"fmt"
	"os"

	"github.com/starling-kv/starling/bench/ops"
)

func main() {
	if err := ops.Serve(open, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "storeops: %v; only starling-bench runs this program\n", err)
		os.Exit(1)
	}
}

func open(name, dir string) (ops.Store, error) {
	switch name {
	case "starling":
		return openStarling(dir, true)
	case "starling, not synced":
		return openStarling(dir, false)
	case "starling, tree alone":
		return openStarlingTree()
	case "iavl":
		return openIAVL(dir)
	}
	return nil, fmt.Errorf("no store is called %q", name)
}
