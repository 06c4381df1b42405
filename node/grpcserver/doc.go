// Package grpcserver is the gRPC endpoint of a node: service starling.v1.Node of package api.
//
//	Get, GetRange, Query, Watch ──────────► the application's queries
//	Submit, GetTransaction      ──┬───────► the application's results, for which it waits
//	                              └► CometBFT: mempool and index
//	Status, GetHeader, GetValidators ─────► CometBFT's stores
//
// A Server outlives the CometBFT behind it, because a state sync ends with another one: SetComet
// waits for the calls that use the old one.
package grpcserver
