// Package client lets Go programs use a Starling network: signed writes, proved reads, and a watch
// on changes.
//
//	         Put, Txn, Submit …                        Get, Range, Scan                     Watch
//	                 │                                        │                               │
//	nonce ─► sign ─► broadcast ─► wait for the block    query at H, with proof         events from a token on
//	                 │                                        │                               │
//	                 │                                  proof ─► app hash ◄─ header H+1       │
//	                 │                                        (light client, from Trust)      │
//	                 ▼                                        ▼                               ▼
//	            ═══════════════════════════ RPC of CometBFT nodes ════════════════════════════════
//
// With several addresses, the client survives the failure of one node, whether the node is killed,
// stopped or unreachable without an error:
//
//   - A read goes to the nearest node, by its recent response times, that is not behind. After 200 ms
//     it also goes to another node, or at once if the first one fails or reports that it is catching
//     up. The first good answer is returned.
//   - A write goes to the node that accepted the last one, and to the next node after two seconds.
//     The bytes and the nonce are the same each time, so a write is executed at most once. Earlier
//     transactions that only a lost node has accepted are sent again first.
//   - Verified reads never go back in height: an older answer is refused, and the read waits. This
//     floor is the height of a verified header. A height that a node only reports, for a write or an
//     unverified read, is waited for at most two seconds. A node that reports a height that the chain
//     has not reached delays a read by a second.
//   - A watch moves to another node when its own is lost, is silent for nine seconds, or stays at one
//     height for ten seconds while another node advances. No event is lost or repeated.
//   - When every node fails, the error is a *CallError with the address and the error of each.
//
// An idle client runs nothing, so it need not be closed.
//
// Without verification, a client trusts the nodes that it uses. With verification
// (WithVerification), a read is returned only if its proof leads to the app hash of a block header
// that validators signed, in a chain of trust that starts at Trust: the hash of a header, or a
// genesis document. The remaining assumptions are:
//
//   - With several addresses, each header comes from one node, and the other nodes are witnesses. A
//     read is returned only if a witness has the same header; so of two addresses, both must work.
//     WithWitnesses adds nodes that are only witnesses.
//     Once a witness has confirmed, the others have 200 ms to contradict, 500 ms if they are far away.
//     A contradiction that is also signed ends this and all later verified reads with ErrConflict,
//     even if it arrives later. To deceive the client, an attacker must control more than a third of
//     the voting power, the node that is asked and a witness, and delay all other witnesses.
//   - With one address there is no witness: an attacker with more than a third of the voting power and
//     that one node can present a fork. A node alone cannot forge data. It can only withhold answers,
//     or answer from an old height (see State.Time).
//
// Writes need less trust, because a node cannot change signed operations. But the node reports the
// next nonce and the result of the transaction. A Byzantine node can claim repeatedly that the
// nonce was wrong, and keep the signed transactions. It can thus have operations executed up to
// eight times, if it also gets the nonces in between used. Where that matters, use CompareAndPut.
//
// CometBFT's light client requires witnesses, and fails permanently when the last one fails. So
// this package chooses the nodes itself, and verifies with package lightclient.
package client
