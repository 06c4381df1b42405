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
//	Query ───────────────────────────────────────────────► published versions (the last pruning_keep_recent)
//
// One goroutine executes blocks. Queries, CheckTx and snapshot calls read only published versions
// and never wait for that goroutine. The whole state, including system keys, is one tree
// (docs/spec/records.md). The interfaces Store, Snapshots and Source hide how the state reaches the
// disk, how snapshots are transferred, and how a sharded validator obtains missing nodes of its
// tree.
//
// Versions count their references: the comment of every field that keeps one says so, and every
// reader holds a reference of its own until it is done. Functions that read the state return an
// error if a part of it cannot be read; then no block, proposal or response may be made from it.
package app

//go:generate ../scripts/generate-proto.sh app
