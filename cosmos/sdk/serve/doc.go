// Package serve lets a Cosmos SDK application serve its states in verified chunks while it runs,
// and join from such chunks. A chain enables it with one line in its root command:
//
//	server.AddCommands(root, home, serve.Creator(newApp), …)
//
//	Commit at a snapshot height ─▶ snapshot of the database ─▶ cosmos/serve over Starling's transport
//	                                                       └▶ ABCI snapshots 0x5301 … 0x5303, next to the SDK's 3
//
// Serving writes nothing to the application's database, so its app hash, blocks and pruning do not
// change. The module cosmos/sdk holds the code that needs the whole SDK.
package serve
