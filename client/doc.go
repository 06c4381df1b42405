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
// With several addresses, one node that dies does not stop the client, whether it is killed,
// stopped or swallows packets:
//
//   - A read goes to the nearest node, by the time of its last answers, that is not behind. It goes
//     to another one beside it after 200 ms, and at once if the node fails or answers that it is
//     catching up. The first good answer counts.
//   - A write goes to the node that accepted the last one, and to the next after two seconds. The
//     bytes are the same each time, with the same nonce, so they are executed once at most. What was
//     sent before to a node that is lost is sent again first.
//   - What the client has verified never goes back in height: an older answer is refused, and the
//     read waits. This floor is the height of a verified header. A height that a node only reports,
//     of a write or of a read without verification, is waited for two seconds at most. A node that
//     reports a height that the chain has not reached delays a read by a second.
//   - A watch moves to another node when its own is lost, is silent for nine seconds, or stands at
//     one height for ten seconds while another node advances. Nothing is lost and nothing repeated.
//   - When every node fails, the error is a *CallError with the address and the words of each.
//
// Nothing runs while a client is not used, so it need not be closed.
//
// Without verification a client trusts the nodes it talks to. With it (WithVerification), a read is
// returned only if its proof leads to the app hash of a block header that validators signed, in a
// chain of trust that starts at Trust: the hash of a header, or a genesis document. What must still
// be trusted:
//
//   - With several addresses, each header comes from one node, and the other nodes are witnesses. A
//     read is returned only if a witness has the same header; so of two addresses, both must work.
//     WithWitnesses adds nodes that are only witnesses.
//     Once a witness has confirmed, others have 200 ms to contradict, 500 ms if they are far away. A
//     contradiction that is signed as well, even a later one, ends this and all later verified reads
//     with ErrConflict. To deceive the client, an attacker must control more than a third of the
//     voting power, the node that is asked and a witness, and delay all other witnesses.
//   - With one address there is no witness: an attacker with more than a third of the voting power and
//     that one node can present a fork. A node alone cannot invent anything. It can only withhold
//     answers, or answer from an old height (see State.Time).
//
// Writes need less trust: a node cannot change what is signed. But the node reports which nonce is
// next, and what became of the transaction. A lying node can claim repeatedly that the nonce was
// wrong, and keep the signed transactions: it can thus have operations executed up to eight times,
// if it also gets the nonces in between used. Where that matters, use CompareAndPut.
//
// CometBFT's light client refuses to work without witnesses, and gives up for good when the last
// one fails. So this package decides itself whom to ask, and verifies by package lightclient.
package client
