// Package disk keeps the stores of one multi-store on disk (docs/spec/cosmosstore.md#on-disk).
//
//	Commit(H) ──Log──► the SDK's database: record H, in the same synced batch as the commit info of H
//	             └─Write──► storage's queue ──flusher──► the zone: all leaves at a height ≤ H ──every PinEvery──► pins
//
//	Load(H) ◄── the zone, a pin, or nothing, at a height ≤ H ◄── records up to H
//
// The zone is behind, and has no log of its own; what it lacks is in the records. So a commit costs
// one write, and is durable when the SDK's own is; and past heights can be loaded, back to the
// oldest pin.
package disk
