// Package storage keeps one version of the state durably on disk: every leaf, the height of its
// inner node, and the block whose state it is. It knows neither the tree nor the chain: package
// treestore joins it with the tree.
//
//	Write(block) ─► queue ─► flusher: many blocks ──one batch, one flush──►  'k' ‖ key  → height of the inner node whose key it is ‖ value
//	   microseconds                                                          'm'        → meta: format, height, app hash, B, chain id
//	Scan, Page, Kept.Get   ◄─────────────────────────────────────────────────
//
// A height that changes alone is an operand that Pebble merges into its record: see leaf.go.
//
//	        Write
//	       ┌─────┐
//	       ▼     │      BeginRestore            Restore.Commit
//	empty ───► at height H ───► restoring (no meta) ───► at height H', unsettled ───► at height H'
//	  ▲            │             │   │          ▲              flusher makes tables
//	  └── Reset ───┴─── Abort ───┘   └─ Close, ─┘ ResumeRestore
//	                                   killed
//
// There is no log of writes: the blockchain is the log. The height in meta is the *safe* height.
// After a crash the zone opens at that height, and the blocks since then are executed again. A
// batch becomes durable as a whole, with meta in it, so the state that opens is always the one
// after some block. A restore removes meta first, so that the zone counts as empty until it ends;
// what a killed restore has written lies in a folder of its own, from which it can be resumed. Once
// it is committed, that folder is the state, until the flusher has made tables of it and written
// meta (settle.go), which Close does not wait for. The states of past flushes can stay readable for
// a while (generations), and beyond a restart as databases of their own that share the files
// (pins).
//
// # Lock order
//
// A goroutine takes locks in this order, and may skip any of them:
//
//	users          entered: Close waits until all have left; never blocks except in Close
//	Zone.admin     who empties the zone, or commits, resumes or closes a restore; held during I/O
//	Restore.life   read: the restore is used; write: it ends, or becomes readable; held during I/O
//	Restore.journal, Restore.label        held during I/O of their files; never both
//	pins.mu        the list of pins; held during I/O by Open only
//	pinEntry.mu    one pin is opened, closed or removed; held during I/O; never with pins.mu
//	Zone.mu, Restore.mu, generations.mu, generation.mu
//	               leaves of the order: none is held during I/O, or while another lock is taken
//
// The flusher takes neither admin nor life, so whoever holds admin may wait for it. The syncers
// take only journal and below, so whoever holds life may wait for them. Block.Taken and
// Block.Heights are called with no lock but that of their block (waiting.once), which is never
// taken with Zone.mu; Block.Done with admin at most; Options.Failed with no lock. Pebble holds
// locks of its own where it calls Zone.background, which therefore neither blocks nor calls the
// database.
package storage
