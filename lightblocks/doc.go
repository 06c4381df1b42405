// Package lightblocks gets headers, commits and validator sets from peers that need not be trusted,
// and proves them from one trusted header.
//
//	block and state stores ──► Server ──► transport ──► Provider ─┐
//	                                                    Provider ─┤   trusted height and hash
//	                                        an RPC server, NewRPC ─┤              │
//	                                                              ▼              ▼
//	                                                  Verifier, by package lightclient:
//	                                                  bisection upwards, hash links downwards
//	                                                              │
//	                         LightBlock, AppHash, Commit, State ◄─┴─► ErrConflict, evidence kept and reported
//
// CometBFT's light client has one primary peer, needs at least one witness beside it, and gives up
// when the last witness is gone. Here all peers are equal: whatever one of them proves is accepted,
// what the others have at the same height is compared with it, and one honest peer suffices for
// progress. Package hedge decides when which peer is asked.
// docs/spec/lightblocks.md#what-trust-remains lists what must still be trusted.
package lightblocks
