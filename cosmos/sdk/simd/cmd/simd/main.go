// Command simd is a node and client of a small Cosmos SDK chain for tests. See package simd.
package main

import (
	"fmt"
	"os"

	svrcmd "github.com/cosmos/cosmos-sdk/server/cmd"

	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
	"github.com/starling-kv/starling/cosmos/sdk/simd"
)

func main() {
	root, err := simd.Command(generation.Creator(simd.Creator))
	if err == nil {
		err = svrcmd.Execute(root, "SIMD", simd.DefaultHome())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "simd: %v\n", err)
		os.Exit(1)
	}
}
