// Command starlingd runs a Starling node and operates it. Package cli implements it.
package main

import (
	"os"

	"github.com/starling-kv/starling/cmd/starlingd/cli"
)

func main() { os.Exit(cli.Run(os.Args[1:], os.Stdout, os.Stderr)) }
