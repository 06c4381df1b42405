// Package e2e tests Starling from outside, with real processes and sockets: the tests use only
// binaries, files and RPC.
//
//	e2e (tests) ──► testnet ──► a whole network from a manifest, by processes or containers, through the relay
//	        │
//	        └─────► runner ──► starlingd, starlingd abci
//	                      ├──► byzantine   the Byzantine node
//	                      ├──► cometbft    stock CometBFT of another version, by go install
//	                      └──► localnet    the demonstration, as the README runs it
package e2e
