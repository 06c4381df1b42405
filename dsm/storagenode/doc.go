// Package storagenode keeps ranges of a sharded state: of each it has a partial tree that is full
// inside the range, and answers witnesses of it (RainBlock's DSM-Tree, section 4).
//
//	validators ── update parts ──► waiting ──┐ a header proves where an update leads
//	                                         ▼
//	                              Replay ─► Log ─► acknowledged ─► versions ── witness, upper ──► validators
//	                                         │                        │
//	                                         ▼                        ▼ every so often
//	              start:  newest state ‖ updates since ◄──────────── Disk: stored states
//
// It trusts nobody. An update counts only if it leads to the app hash of a proved header, so no
// consensus is needed below that of the chain: the order of updates is the chain's, and each
// replica finds for itself which are true. What it answers is proved by hashes to whoever asked. A
// Replica keeps one range, a Node several, and a range has any number of replicas.
//
// The package has no sockets and starts no process. docs/spec/storagenode.md has its files.
package storagenode
