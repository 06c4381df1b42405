// Package programsbench measures programs (contracts): transfers of an ERC-20 token, alone and
// among puts. The token is that of examples/programs; the comparison is the RainBlock paper
// (section 8.4).
//
//	bank: accounts, their token, keys for puts ──► signed transactions, a share of them transfers
//	  │
//	  ├─ app      this process      blocks ──► app.App, all in memory, without CometBFT
//	  ├─ paged    this process      the same blocks ──► one in memory | one paged, with a quarter of the memory; in turns
//	  └─ network  processes         clients in this process ──gRPC──► 4 validators ──► 4 storage nodes; then 4 validators with
//	                                the whole state. Metrics say what the validators wait for, /proc what each role costs
//	     gets                       clients ──gRPC, proved──► a sharded node without a vote in the first of these networks
//	     reads                      clients ──simulate, then send──► the first of these networks. The calls follow state
//	     grid                       the same load through gateways, one network for each r
//
// A transfer names the gas that client.Fit would name, and all records that it touches, so its cost
// in a block is what a client's transfer has. Its records depend on its two addresses only, so its
// prediction cannot be wrong; the phase reads has calls whose records depend on the state. Accounts
// and recipients are drawn evenly.
package programsbench
