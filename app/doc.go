// Package app is Starling's ABCI 2.0 application: transactions in, AppHash out.
//
//	CheckTx ──────────► check      nonces of pending transactions, on the last committed version
//	                     ▲ reset
//	InitChain ─► genesis │
//	                │    │
//	                ▼    │
//	FinalizeBlock ─► overlay over the committed version ─► changes ─► avlstar.Version (pending)
//	   one by one:   nonce, then the operations,                          │
//	   all or        undone together if one fails                         │ Commit: Store, then publish
//	   nothing                                                            ▼
//	Query ───────────────────────────────────────────────► published versions (the last keep_recent)
//
// One goroutine executes blocks. Queries, CheckTx and snapshot calls read only what is published
// and never wait for it. The whole state, bookkeeping included, is one tree (docs/spec/records.md).
// How it reaches the disk, how snapshots travel, and how what a sharded validator's tree lacks
// comes from others is hidden behind the interfaces Store, Snapshots and Source.
//
// Versions are counted references: every field that keeps one says so, and every reader holds one
// of its own until it is done. What reads the state returns an error if a part of it cannot be
// read; then no block, proposal or answer may be made of it.
package app

//go:generate ../scripts/generate-proto.sh app
