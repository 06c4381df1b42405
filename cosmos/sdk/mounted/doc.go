// Package mounted tests the SDK's baseapp on our multi-store. An application with Starling and IAVL
// stores must have the same app hashes through restarts, snapshots, rollbacks and upgrades.
//
//	InitChain ─▶ CheckTx, FinalizeBlock, Commit … ─▶ restart · snapshot and restore · rollback · upgrade
//	                        │
//	                      Query with proof, verified by cosmos/ics23
//
// The package is not in the module of cosmos/store, so that cosmos/store does not depend on the
// whole SDK. It contains only tests.
package mounted
