// Package mounted is the test that baseapp of SDK v0.53 works over our multi-store: with stores of
// ours beside IAVL's, it gets to the same app hashes whatever it has been through.
//
//	InitChain ─▶ CheckTx, FinalizeBlock, Commit … ─▶ restart · snapshot and restore · rollback · upgrade
//	                        │
//	                      Query with proof, verified by cosmos/ics23
//
// It is a module of its own, so that the SDK does not reach cosmos/store. Nothing imports it.
package mounted
