// Package dsmbench measures a state that is sharded over storage nodes: the figures of RainBlock's
// DSM-Tree (sections 4 and 7 of the paper) on our tree, beside local mode.
//
//	sizes     this process        blocks ──► full tree ──bag──► trees of several depths r: bytes, misses, memory
//	apps      a process each      blocks ──► app.App: everything in memory | bags in place | paged; in turns
//	nodes     a process a shard   this process ──witness, update──► transport/tcp ──► storagenode.Node
//	join      a process           upper tree and first blocks from these nodes, in an app.App without CometBFT
//
// The workload is the paper's: transfers among accounts, of which a tenth take part in nine tenths
// of the transfers. A second one deletes accounts, too.
package dsmbench
