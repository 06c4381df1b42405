// Package serve makes an application of the Cosmos SDK serve its states in verified chunks while it
// runs, and join by them, with one line where its command is made:
//
//	server.AddCommands(root, home, serve.Creator(newApp), …)
//
//	Commit at a snapshot height ─▶ snapshot of the database ─▶ cosmos/serve over Starling's transport
//	                                                       └▶ ABCI snapshots 0x5301 … 0x5303, beside the SDK's 3
//
// The application's hash, its blocks and its pruning are what they were: nothing is written to its
// database. It has a module of its own, since it needs the SDK.
package serve
