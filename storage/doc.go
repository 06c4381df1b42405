// Package storage keeps one version of the state durably on disk: all leaves, the heights of their
// inner nodes, and the block whose state it is. A Zone is such a store. The package depends neither
// on the tree nor on the chain: package treestore connects it to the tree.
//
//	Write(block) ─► queue ─► flusher: many blocks ──one batch, one flush──►  'k' ‖ key  → height of the inner node whose key it is ‖ value
//	   microseconds                                                          'l' ‖ …    → the owner's page list of the tree
//	                                                                         'm'        → meta: format, height, app hash, B, chain id
//	Scan, Page, PageList, Kept.Get   ◄───────────────────────────────────────
//
// A change of only the height is a merge operand, which Pebble merges into the record: see leaf.go.
//
//	        Write
//	       ┌─────┐
//	       ▼     │      BeginRestore            Restore.Commit
//	empty ───► at height H ───► restoring (no meta) ───► at height H', unsettled ───► at height H'
//	  ▲            │             │   │          ▲              flusher makes tables
//	  └── Reset ───┴─── Abort ───┘   └─ Close, ─┘ ResumeRestore
//	                                   killed
//
// There is no write-ahead log: the blockchain is the log. The height in meta is the durable height,
// called safe in this package. After a crash the zone opens at that height, and the later blocks
// are executed again. A batch and its meta become durable atomically, so the zone always opens with
// the state after some block.
//
// A restore removes meta first, so the zone counts as empty until the restore ends. The files of a
// restore lie in a folder of their own, so an interrupted restore can be resumed. After Commit that
// folder is the state until the flusher has settled it: it converts the files to tables and ingests
// these with meta (settle.go). Close does not wait for that.
//
// The states of past flushes can stay readable for a while (generations). Pins are snapshots that
// survive a restart: databases of their own that share the files of the zone.
//
// # Lock order
//
// A goroutine takes locks in this order, and may skip any of them:
//
//	users          entered: Close waits until all have left; never blocks except in Close
//	Zone.admin     the zone is emptied, or a restore committed, resumed or closed; held during I/O
//	Restore.life   read: the restore is used; write: it ends, or becomes readable; held during I/O
//	Restore.journal, Restore.label        held during I/O of their files; never both
//	pins.mu        the list of pins; held during I/O by Open only
//	pinEntry.mu    one pin is opened, closed or removed; held during I/O; never with pins.mu
//	Zone.mu, Restore.mu, generations.mu, generation.mu
//	               leaves of the order: none is held during I/O, or while another lock is taken
//
// The flusher takes neither admin nor life, so the holder of admin may wait for it. The syncers
// take only journal and the locks below it, so the holder of life may wait for them. Owner.Take is
// called with no lock except that of its block (waiting.once), which is never taken while Zone.mu
// is held. Owner.Done is called with at most admin held, and Options.Failed with no lock. Pebble
// holds locks of its own when it calls Zone.background, so that method neither blocks nor calls the
// database.
package storage
