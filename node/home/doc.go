// Package home works on the home folder of a stopped node. The locks of both zones prevent its use
// while the node runs.
//
//	Init, InitFrom ──────► create a home: for a new network, or from the address of a network's member
//	ImportSnapshot ──────► makes a snapshot file the state of a home without state
//	ExportSnapshot ──────► writes a snapshot file
//	Verify, Inspect ─────► read the state and both zones
//	Compact ─────────────► rewrites both zones
//	Rollback ────────────► the state zone first, then CometBFT's state
//	Reset ───────────────► removes all data except keys and the validator's signing state
package home
