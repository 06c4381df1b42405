// Package link forwards TCP connections between the nodes of a test network, and delays, throttles
// or cuts them like a bad network.
//
//	node A ── dials ──► listener of (A, B) ─── reader ─► [ bounded queue ] ─► writer ──► B    treatment of bytes from A to B
//	           A ◄───── writer ◄─ [ bounded queue ] ◄─ reader ──────────────── B              treatment of bytes from B to A
//
//	nodes ── dial ───► listener of (any, B): the relay finds out which node has dialled
//
//	control: PUT /treatment {from, to, cut, delay, bandwidth} ──► applies at once, to existing and new connections
//
// It runs in user space, for kernels without netem and tests without privileges. TCP semantics are
// kept: bytes are delayed or held back, but never lost. A partition is a link that holds everything
// back, so that both ends see silence, as in a real partition, and their own time-outs apply.
package link
