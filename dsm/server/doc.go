// Package server implements a storage node, which keeps ranges of a sharded state. For each range
// it has a partial tree that is complete inside the range, and serves witnesses from it
// (RainBlock's DSM-Tree, section 4).
//
//	validators ── update parts ──► waiting ──┐ a header proves the result of an update
//	                                         ▼
//	                              Replay ─► Log ─► acknowledged ─► versions ── witness, upper ──► validators
//	                                         │                        │
//	                                         ▼                        ▼ every so often
//	              start:  newest state ‖ updates since ◄──────────── Disk: stored states
//
// A storage node trusts no peer. It applies an update only if the update leads to the app hash of a
// proved header, so storage nodes need no consensus of their own: the chain orders the updates, and
// each replica verifies them itself. Requesters verify its answers by hashes. A Replica keeps one
// range and a Server several; a range may have any number of replicas.
//
// The package opens no sockets and starts no processes. docs/spec/storagenode.md describes its
// files.
package server
