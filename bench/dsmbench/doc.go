// Package dsmbench measures a state sharded over storage nodes: the figures that the RainBlock
// paper gives for its DSM-Tree (sections 4 and 7), on our tree and compared with full-state nodes.
//
//	sizes     this process        blocks ──► full tree ──multiproof──► trees of several depths r: bytes, misses, memory
//	apps      one process each    blocks ──► app.App: all in memory | multiproofs from the same process | paged; in turns
//	nodes     one per shard       this process ──witness, update──► transport/tcp ──► server.Server
//	join      one process         upper tree and first blocks from these nodes, in an app.App without CometBFT
//	prefetch  one process each    an app.App without CometBFT, with delays to one of these nodes
//	range     two processes       updates ──► a storage node with a quarter of the memory | one with all of it; SIGKILL, start
//	start     one process         a storage node with a whole state, of several sizes: SIGKILL, start
//	move      processes           4 sharded validators, 4 storage nodes; a replica of a range moves there and back under load
//
// The workload is the paper's: transfers between accounts, nine tenths of which touch a tenth of
// the accounts. A second workload also deletes accounts.
package dsmbench
