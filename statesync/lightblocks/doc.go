// Package lightblocks fetches headers, commits and validator sets from untrusted peers, and
// verifies them from one trusted header.
//
//	block and state stores ──► Server ──► transport ──► Provider ─┐
//	                                                    Provider ─┤   trusted height and hash
//	                                        an RPC server, NewRPC ─┤              │
//	                                                              ▼              ▼
//	                                                  Verifier, using package lightclient:
//	                                                  bisection upwards, hash links downwards
//	                                                              │
//	                         LightBlock, AppHash, Commit, State ◄─┴─► ErrConflict, evidence kept and reported
//
// CometBFT's light client has one primary peer and needs at least one witness in addition. It stops
// when the last witness is gone. Here all peers are equal. A block that any peer proves is accepted
// and compared with the other peers' blocks at the same height, and one honest peer is enough to
// make progress. Package hedge decides which peer is asked when.
// docs/spec/lightblocks.md#what-trust-remains lists what must still be trusted.
package lightblocks
