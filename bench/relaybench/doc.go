// Package relaybench measures the time from a block's proposal until the last validator has its
// last part, over p2p and with transport.relay, in networks of three validators.
//
//	load: all mempools full ─► blocks of 4 MiB, one every few seconds ─► the nodes' logs ─► times
//
// The nodes are separate processes on this machine. Their mempools exchange no transactions, so
// only proposals, parts and votes are sent between them.
package relaybench
