// Package relaybench measures how long a block takes from its proposal to the last validator's last
// part, by p2p and with transport.relay, in networks of three validators.
//
//	load: all mempools full ─► blocks of 4 MiB, one every few seconds ─► the nodes' logs ─► times
//
// The nodes are processes of their own on this machine, and mempools tell each other nothing, so
// that only proposals, parts and votes are on the network.
package relaybench
