// Package events is a node's log of what its last blocks have changed, for watchers.
//
//	Commit(H) ──► newest blocks in memory ──writer──► disk: segments of events, by height and number
//	                     ▲        │ Committed(H): the state is published
//	                     │        └──► those who wait for a key that H has changed are woken
//	Answer(from, keys) ──┴──────► what is older: disk
//
// The log is derived: CometBFT executes the blocks again that the state on disk does not have, and
// hands their events over again. So it is only ever behind what is in memory, and Sync keeps it
// from being behind the state on disk. Where it is, or is missing, it begins anew (Begin).
package events
