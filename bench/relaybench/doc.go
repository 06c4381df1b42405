// Package relaybench measures the time from a block's proposal until the last validator has its
// last part, over p2p and with transport.relay, in networks of three validators.
//
//	load: all mempools full ─► full blocks, one every few seconds ─► the nodes' logs ─► times
//	sends, in this process: a block ─► its parts, at once to both receivers ─► the last answer ─► times
//
// The nodes are separate processes on this machine. Their mempools exchange no transactions, so
// only proposals, parts and votes are sent between them. The sends have no consensus: they compare
// what the nodes' transport is made of, TLS and RDMA, with plain sockets, which no node has. With
// two RDMA devices, the receivers have the first and the sender has the second; all validators have
// the first, because the kernel connects two local addresses from the one that is dialed.
package relaybench
