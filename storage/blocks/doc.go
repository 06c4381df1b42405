// Package blocks is the block zone: CometBFT's stores in one database, behind cometbft-db's
// interface.
//
//	 blockstore   state   evidence   tx_index        each a dbm.DB
//	     │          │         │          │
//	     └──────────┴────┬────┴──────────┘
//	                     │ Get ───► space-gaming cache ──miss──┐
//	                     │ Set, Delete, batches: drop there    │
//	                     ▼                                     ▼
//	one Pebble database, with a write-ahead log:
//	     0x00                          → layout version
//	     length of ID:u8 ‖ ID ‖ key    → value
//
// The stores share one log, so a synced write of one makes the earlier writes of all durable, and
// after a crash all of them are as they were in one moment.
package blocks
