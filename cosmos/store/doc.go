// Package store implements a Cosmos SDK CommitKVStore on Starling's tree. The store's root is an
// AppHash of package avlstar, so each chunk can be verified on its own (docs/spec/cosmosstore.md).
//
//	Set, Delete ──► pending ──Apply──► working ──Commit──► version H     one *avlstar.Version each
//	                   ▲                  │                   │
//	Get, Iterator ─────┴── (merged) ──────│───────────────────┤
//	WorkingHash ──────────────────────────┘                   │
//	Query, GetImmutable ◄──────── H, H−1, H−2 … in memory ◄───┘
//
// A Store exists in memory only. Package rootmulti mounts it alongside IAVL stores and keeps it on
// disk with package storage.
package store
