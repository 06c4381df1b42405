// Package testnet makes the network of a manifest, runs it, and executes the manifest's steps on
// it.
//
//	manifest ──► Setup ──► Start ──► Load ──► StartLate ──► Perturb, Perturb … ──► (tests) ──► Close
//	               │         │                                 │
//	               │         └─ Provider: nodes as processes   ├─ Provider: kill, pause, stop, disconnect …
//	               │                      or as containers     └─ relay: cut, delay, bandwidth
//	               └─ homes, one genesis, the peers that each node dials
//
//	node A ──dials──► relay ──► node B     every connection between two nodes goes through the relay (e2e/relay)
//	test ──── RPC, metrics ───► node       and no other, so that the test can observe a node while its links are perturbed
//
// The package is black-box: it knows binaries, files, RPC and metrics. A node that ends
// unexpectedly ends all waits, with its last log lines.
package testnet
