// Package disk keeps the stores of one multi-store on disk (docs/spec/cosmosstore.md#on-disk).
//
//	Commit(H) ──Log──► the SDK's database: record H, in the same synced batch as the commit info of H
//	             └─Write──► storage's queue ──flusher──► the zone: all leaves at a height ≤ H ──every PinEvery──► pins
//
//	Load(H) ◄── the zone, a pin, or nothing, at a height ≤ H ◄── records up to H
//
// The zone is a store of package storage. It lags behind the commits and has no log of its own: the
// records hold the changes that the zone does not have yet. So a commit costs one write, the one
// that makes the SDK's stores durable. Past heights can be loaded, back to the oldest pin, which is
// a snapshot of the zone that is kept on disk.
package disk
