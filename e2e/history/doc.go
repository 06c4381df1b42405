// Package history records what concurrent clients of a network saw and checks that one sequence of
// transactions explains it.
//
//	clients ──transactions──► nodes ──► blocks ─────────────┐
//	   │                        │                           │
//	   │ called, returned,      │ proved reads              │ replay, one transaction after the other
//	   │ outcome, results       ▼                           ▼
//	   └───────────────────► History ◄──────────── results, order and values must be the same
//	                            │
//	                            └──► Porcupine: is there any order, within real time, that gives these results?
//
// Two checkers look at one history. History.CheckLinearizable (Porcupine) knows nothing of blocks:
// it holds for whatever is behind the clients, and nothing that the nodes say about themselves can
// mislead it. History.CheckBlocks is exact: it executes the transactions of the chain itself, in
// the order of the blocks, and compares every result, every proved read and the order in real time.
//
// A transaction whose answer was lost is a "maybe": it may take effect at any time after it was
// called, or never. So its client leaves the account, whose nonce is in doubt, and continues as
// another process of the history (K. Kingsbury's Jepsen treats "info" operations so).
package history
