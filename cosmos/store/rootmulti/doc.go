// Package rootmulti is the SDK's multi-store with Starling stores alongside IAVL stores.
//
//	             ┌─ *rootmulti.Store of the SDK: IAVL, transient, memory … ──► its database
//	Store ───────┤                                                  batch of a commit │
//	             └─ Starling stores (store.Store) ──────────────────► record ─────────┘
//	                                                                    later, package disk ──► folder
//
// The SDK's multi-store is embedded, not copied, and has no access to the Starling stores. This
// package combines both. It adds the Starling stores to the commit info in the batch with which the
// SDK makes a version durable (database.go). TestOneBatch fails if the SDK writes a version in any
// other way. TestMethods fails if the SDK's multi-store has a method that was not reviewed here.
//
// The tests of the SDK's multi-store are taken from the module cache and run over stores of both
// types (upstream_test.go).
package rootmulti
