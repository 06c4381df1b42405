// Package oracle compares iavlsync with cosmos/iavl v1.3; oracle/sdk compares it with v1.2 and the
// Cosmos SDK's multi-store.
//
//	random blocks, vectors ─┬─▶ iavl.MutableTree ──▶ hash, Export ──┐
//	                        └─▶ naive trees, iavlsync ──────────────┴─▶ equal, and verified
//
// Each is a module of its own, since the two versions of iavl cannot be in one, and so that neither
// becomes part of a program.
package oracle
