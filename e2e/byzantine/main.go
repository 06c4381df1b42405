// Command byzantine is a Byzantine node; package peer implements it.
package main

import (
	"os"

	"github.com/starling-kv/starling/e2e/byzantine/peer"
)

func main() { os.Exit(peer.Main()) }
