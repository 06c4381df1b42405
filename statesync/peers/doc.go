// Package peers finds nodes to fetch from, keeps connections to them, and records their behaviour.
// No peer is trusted, and a peer that advertises many addresses cannot displace an honest peer.
//
//	peers.go     Peers: addresses ──dial──► connections ──status──► snapshots that each peer has
//	connect.go   the life of a connection
//	book.go      addresses that peers advertise: up to four per node
//	draws.go     which node to dial next, and whose budget is charged if it turns out to be Byzantine
//	visits.go    what a dialled node has sent, and which node makes room for another
//	hosts.go     the networks of a host; public addresses
//
// # Words
//
//	advertiser         a peer that names addresses of other nodes and is accountable for them
//	discovered peer    a node named only by advertisers
//	operator's peer    a node configured by the operator: every chain of advertisers begins at one
package peers
