// Package home works on the home folder of a node that does not run. The locks of both zones keep a
// running one out.
//
//	Init, InitFrom ──────► make one: alone, or from the address of a member of its network
//	ImportSnapshot ──────► a snapshot file becomes the state of one that has none
//	ExportSnapshot ──────► writes such a file
//	Verify, Inspect ─────► read the state and both zones
//	Compact ─────────────► rewrites both zones
//	Rollback ────────────► the state zone first, then CometBFT's state
//	Reset ───────────────► removes all data but keys and the validator's signing state
package home
