// Package link carries TCP connections between the nodes of a test network, and treats their bytes
// as a bad network would.
//
//	node A ── dials ──► listener of (A, B) ─── reader ─► [ bounded queue ] ─► writer ──► B    treatment of what A sends B
//	           A ◄───── writer ◄─ [ bounded queue ] ◄─ reader ──────────────── B              treatment of what B sends A
//
//	control: PUT /treatment {from, to, cut, delay, bandwidth} ──► holds at once, for connections that are there as for those to come
//
// It runs in user space, where a kernel has no netem and a test no rights. TCP stays TCP: bytes are
// late, or wait, and are never lost; a partition is a link that holds everything back, so that both
// ends see what they would see of one, silence, and their own time-outs decide.
package link
