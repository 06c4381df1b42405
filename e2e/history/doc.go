// Package history records the results that concurrent clients of a network saw, and checks that one
// sequence of transactions explains them.
//
//	clients ──transactions──► nodes ──► blocks ─────────────┐
//	   │                        │                           │
//	   │ called, returned,      │ proved reads              │ replay, one transaction after the other
//	   │ outcome, results       ▼                           ▼
//	   └───────────────────► History ◄──────────── results, order and values must be the same
//	                            │
//	                            └──► Porcupine: is there any order, within real time, that gives these results?
//
// Two checkers check one history. History.CheckLinearizable (Porcupine) does not use the blocks: it
// works with any store, and no report of a node can mislead it. History.CheckBlocks is exact: it
// executes the transactions of the chain itself, in the order of the blocks, and compares every
// result, every proved read and the order in real time.
//
// A transaction whose answer was lost is a "maybe": it may take effect at any time after the call,
// or never. So its client abandons the account, whose next nonce is unknown, and continues as
// another process of the history (K. Kingsbury's Jepsen treats "info" operations in this way).
package history
