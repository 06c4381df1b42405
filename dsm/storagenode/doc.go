// Package storagenode keeps what a storage node has on disk of a range of keys: a log of updates,
// and stored states (RainBlock's DSM-Tree, sections 4 and 5.2).
//
//	Disk   state 200          state 300
//	          │                  │
//	Log    ───┴─ updates 201 … ──┴── … 357 │ torn: cut off at the next start
//
// docs/spec/storagenode.md has the files.
package storagenode
