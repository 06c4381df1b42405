// Package blocks is the block zone: CometBFT's stores in one database, behind cometbft-db's
// interface.
//
//	 blockstore   state   evidence   tx_index        each a dbm.DB
//	     │          │         │          │
//	     └──────────┴────┬────┴──────────┘
//	                     │ Get ───► space-gaming cache ──miss──┐
//	                     │ Set, Delete, batches: drop there    │
//	                     ▼                                     ▼
//	one Pebble database, with a write-ahead log:            segments: parts of blocks
//	     0x00 …                        → the zone's own        000001.seg
//	     length of ID:u8 ‖ ID ‖ key    → value                 000002.seg
//	                                     or reference ───────► …
//
// Large parts of blocks are stored in segment files instead of Pebble: see parts, and
// docs/spec/segments.md.
//
// The stores share one log: a synced write of one makes the earlier writes of all durable. After a
// crash all stores have the state of the same moment.
package blocks
