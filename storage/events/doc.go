// Package events is a node's log of the changes in its latest blocks, for watchers.
//
//	Commit(H) ──► newest blocks in memory ──writer──► disk: segments of events, by height and number
//	                     ▲        │ Committed(H): the state is published
//	                     │        └──► requests that wait for a key that H changed are woken
//	Answer(from, keys) ──┴──────► older blocks: disk
//
// The log is derived data: after a start, CometBFT executes the blocks that are missing in the
// state on disk, and their events are written again. Sync prevents the log from being behind the
// state on disk. A log that is behind, missing or damaged is replaced by an empty one that starts
// at the current height (Begin). Earlier events are not rebuilt.
package events
