// Package lightblocks gets headers, commits and validator sets from peers that need not be trusted, and proves them from one trusted header.
//
//	block and state stores ──► Server ──► transport ──► Provider ─┐
//	                                                  Provider ─┤   trusted height and hash
//	                                      an RPC server, NewRPC ─┤              │
//	                                                              ▼              ▼
//	                                                           Verifier: bisection upwards, hash links downwards
//	                                                              │
//	                        LightBlock, AppHash, Commit, State ◄──┴──► ErrConflict, with evidence kept and reported
//
// CometBFT's light client leads with one peer, wants at least one witness beside it, and gives up when the last witness goes. Here all peers
// are equal: whatever one of them proves is taken, what the others say about the same height is compared, and one honest peer is enough for
// progress. docs/spec/lightblocks.md says what trust remains.
package lightblocks
