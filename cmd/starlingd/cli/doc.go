// Package cli is the command line of starlingd. It is a separate package so that other programs can
// run as starlingd: cmd/localnet starts its nodes by starting itself.
//
//	starlingd init ──► home folder ──► starlingd start ──► a CometBFT node with the application inside
//	                   config/           starlingd abci ──► the application alone, for a stock cometbft
//	                     config.toml
//	                     app.toml        starlingd status, tx, get, range, watch, … ──► RPC of a running node
//	                     genesis.json
//	                   data/
//
// Exit status: 0 success (start and abci: stopped by SIGTERM or SIGINT, or at halt_height), 1
// failure, 2 invalid usage or settings, 3 refused by the chain or by a proof, 4 key absent, 5 disk
// full, 6 data on disk damaged, 7 program too old for the chain or for the data on disk, 8 a header
// is missing that a block's evidence refers to (the next start fetches it). Results go to standard
// output, logs and errors to standard error.
// go to standard output, logs and errors to standard error.
package cli
