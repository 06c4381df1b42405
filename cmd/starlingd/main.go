// Command starlingd is a Starling node, and the tool to operate one.
//
//	starlingd init ──► home folder ──► starlingd start ──► a CometBFT node with the application inside
//	                   config/           starlingd abci ──► the application alone, for a stock cometbft
//	                     config.toml
//	                     app.toml        starlingd status, tx, get, range, watch, … ──► RPC of a running node
//	                     genesis.json
//	                   data/
//
// Exit status: 0 done (start and abci: stopped by SIGTERM or SIGINT, or at halt_height), 1 it
// failed, 2 wrong usage or settings, 3 refused by the chain or by a proof, 4 the key is absent, 5
// the disk is full, 6 data on disk are damaged, 7 this program is too old for the chain or for the
// data on disk, 8 a header is missing that evidence in a block is about (the next start asks for
// it). Results go to standard output, logs and errors to standard error.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}
