// Package tx is the format of Starling's transactions: text, protobuf, what is signed, and what is
// refused without looking at the state.
//
//	transaction ─┬─ text      key=value                      (or key:value) first byte ≠ 0x00
//	             └─ protobuf  0x00 ‖ SignedTx { body, signature }
//	                                           │       └ ed25519 over "starling/tx/v1" ‖ 0x00 ‖ uvarint(len id) ‖ id ‖ body
//	                                           └ Body { account, nonce, operations 1 … 10,000 }
//
// Decode checks everything that can be checked without the state: that this is the only encoding,
// sizes, reserved keys, the signature. What needs the state (nonce, grants, quotas) is checked by
// package app; its refusals carry codes of this package too, so that clients read a single list.
// docs/spec/transactions.md is the binding description for other implementations.
package tx

//go:generate ../scripts/generate-proto.sh tx
