// Package testnet makes the network of a manifest, runs it, and does to it what the manifest says.
//
//	manifest ──► Setup ──► Start ──► Load ──► StartLate ──► Perturb, Perturb … ──► (tests) ──► Close
//	               │         │                                 │
//	               │         └─ Provider: nodes as processes   ├─ Provider: kill, pause, stop, disconnect …
//	               │                      or as containers     └─ relay: cut, delay, bandwidth
//	               └─ homes, one genesis, who dials whom
//
//	node A ──dials──► relay ──► node B     every connection between two nodes passes the relay (e2e/relay)
//	test ──── RPC, metrics ───► node       and no other: what the test sees of a node is not perturbed with it
//
// It is black-box: it knows binaries, files, RPC and metrics. A node that ends unasked ends
// everything that waits, with its last log lines.
package testnet
