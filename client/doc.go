// Package client lets Go programs use a Starling network: signed writes, proved reads, and a watch
// on changes.
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
// Without verification a client trusts the node it talks to. With it (WithVerification), a read is
// returned only if its proof leads to the app hash of a block header that validators signed, in a
// chain of trust that starts at Trust: the hash of a header, or a genesis document. What must still
// be trusted:
//
//   - With several addresses, the first that answers is the primary and the others are witnesses. A
//     read is returned only if a witness has the same header and no witness has another one that is
//     signed as well. To deceive the client, an attacker must control more than a third of the voting
//     power and every witness.
//   - With one address there is no witness: an attacker with more than a third of the voting power and
//     that one node can present a fork. A node alone cannot invent anything. It can only withhold
//     answers, or answer from an old height (see State.Time).
//
// Writes need less trust: a node cannot change what is signed. But the node reports which nonce is
// next. A lying node can claim repeatedly that the nonce was wrong, and keep the signed
// transactions: it can thus have operations executed up to eight times, if it also gets the nonces
// in between used. Where that matters, use CompareAndPut.
//
// CometBFT's light client refuses to work without witnesses, and gives up for good when the last
// one fails. So this package decides itself whom to ask, and verifies by package lightclient.
package client
