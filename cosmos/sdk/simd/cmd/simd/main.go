// Command simd is a node and a client of a small chain of the Cosmos SDK, for tests: see package
// simd.
package main

import (
	"fmt"
	"os"

	svrcmd "github.com/cosmos/cosmos-sdk/server/cmd"

	"github.com/starling-kv/starling/cosmos/sdk/simd"
)

func main() {
	root, err := simd.Command(simd.Creator)
	if err == nil {
		err = svrcmd.Execute(root, "SIMD", simd.DefaultHome())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "simd: %v\n", err)
		os.Exit(1)
	}
}
