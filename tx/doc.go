// Package tx defines the format of Starling's transactions: the text and protobuf encodings, the
// bytes that are signed, and the checks that need no state.
//
//	transaction ─┬─ text      key=value                      (or key:value) first byte ≠ 0x00
//	             └─ protobuf  0x00 ‖ SignedTx { body, signature }
//	                                           │       └ ed25519 over "starling/tx/v1" ‖ 0x00 ‖ uvarint(len id) ‖ id ‖ body
//	                                           └ Body { account, nonce, operations 1 … 10,000 }
//
// Decode checks everything that can be checked without the state: that the encoding is the only
// one, the sizes, the reserved keys, and the signature. Package app checks what needs the state:
// nonce, grants and quotas. Its refusals carry codes of this package too, so that clients need only
// one list. docs/spec/transactions.md is the normative description for other implementations.
package tx

//go:generate ../scripts/generate-proto.sh tx
