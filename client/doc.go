// Package client is how Go programs use a Starling network: signed writes, reads that are proved, and a watch on changes.
//
//	            Put, Submit …                          Get, Range, Scan                     Watch
//	                 │                                        │                               │
//	nonce ─► sign ─► broadcast ─► wait for the block    query at H, with proof         events of transactions
//	                 │                                        │                               │
//	                 │                                  proof ─► app hash ◄─ header H+1       │
//	                 │                                        (light client, from Trust)      │
//	                 ▼                                        ▼                               ▼
//	            ═══════════════════════════ RPC of a CometBFT node ═══════════════════════════════
//
// Without verification a client believes the node it talks to. With it (WithVerification), a read is returned only if its proof
// leads to the app hash of a block header that validators signed, in a chain of trust that starts at Trust: a header's hash
// or a genesis document. What remains to be believed then:
//
//   - With several addresses, the first that answers is the primary and the others are witnesses. A read is returned only if a
//     witness has the same header and none has another that is signed as well. Somebody must then control more than a third of
//     the voting power and every witness to lie.
//   - With one address there is no witness: more than a third of the voting power together with that one node can show a
//     fork. A node alone can still not invent anything; it can only withhold, or answer from an old height (State.Time tells).
//
// Writes need less trust: a node cannot change what is signed. But it says which nonce is the next, and a lying one can claim again
// and again that the nonce was wrong, and keep what was signed: so it can have operations executed up to eight times, if it also
// gets the nonces in between used. Where that matters, use CompareAndPut.
//
// CometBFT's light client refuses to work without witnesses and gives up for good when the last one fails, so the rules here are
// our own, made of its verification functions (light.Verify, light.VerifyBackwards).
package client
