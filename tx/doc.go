// Package tx is the format of Starling's transactions: text, protobuf, what is signed, and what is refused on sight.
//
//	transaction ─┬─ text      key=value                      (or key:value) first byte ≠ 0x00
//	             └─ protobuf  0x00 ‖ SignedTx { body, signature }
//	                                           │       └ ed25519 over "starling/tx/v1" ‖ 0x00 ‖ uvarint(len id) ‖ id ‖ body
//	                                           └ Body { account, nonce, operations 1 … 10,000 }
//
// Decode checks everything that can be checked without the state: one encoding only, sizes, reserved keys, the signature. What
// needs the state (nonce, grants, quotas) is the application's business; its refusals carry codes of this package all the same, so
// that clients read one list. The binding description for other implementations is docs/spec/transactions.md.
package tx

//go:generate ../scripts/generate-proto.sh tx
