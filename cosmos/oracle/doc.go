// Package oracle compares Starling with cosmos/iavl v1.3.
//
//	random blocks ─┬─▶ iavl.MutableTree ──▶ Export, hash, database ─┐
//	               ├─▶ avlstar.Version.Apply ──▶ Leaves ────────────┼─▶ the same shape
//	               ├─▶ avlstar.Version.Apply ──▶ Leaves ────────────┼─▶ the same shape
//	               └─▶ naive trees, iavlsync, nodedb ───────────────┴─▶ the same bytes, verified
//
// It is a module of its own: v1.3 cannot be in one module with the SDK's v1.2, and neither may
// become part of a program.
package oracle
