// Package e2e tests Starling from outside: real processes, real sockets, nothing but binaries,
// files and RPC.
//
//	e2e (tests) ──► testnet ──► a whole network from a manifest, by processes or containers, through the relay
//	        │
//	        └─────► runner ──► starlingd, starlingd abci
//	                      ├──► byzantine   the lying node
//	                      ├──► cometbft    a stock one, of another version, built in the module stock/
//	                      └──► localnet    the demonstration, as the README runs it
package e2e
