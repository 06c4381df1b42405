// Package store is a store of the Cosmos SDK over Starling's tree: a CommitKVStore whose root is an
// AppHash of package avlstar, so that its chunks verify alone (docs/spec/cosmosstore.md).
//
//	Set, Delete ──► pending ──Apply──► working ──Commit──► version H     one *avlstar.Version each
//	                   ▲                  │                   │
//	Get, Iterator ─────┴── (merged) ──────│───────────────────┤
//	WorkingHash ──────────────────────────┘                   │
//	Query, GetImmutable ◄──────── H, H−1, H−2 … in memory ◄───┘
//
// It is memory only. Package rootmulti mounts it beside IAVL stores, and keeps it on disk with
// package storage.
package store
