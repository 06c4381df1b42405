// Package storage keeps one version of the state durably on disk: every leaf, the height of its inner node, and which block it is.
//
//	Write(block) ─► queue ─► flusher: many blocks ──one batch, one flush──►  'k' ‖ key  → value
//	   microseconds                                                          'h' ‖ key  → height of the inner node whose key it is
//	                                                                         'm'        → meta: format, height, app hash, B, chain id
//	Scan, Page   ◄──────────── 'k' and 'h' side by side ─────────────────────
//
//	        Write
//	       ┌─────┐
//	       ▼     │      BeginRestore            Restore.Commit
//	empty ───► at height H ───► restoring (no meta) ───► at height H'
//	  ▲            │             │   │          ▲
//	  └── Reset ───┴─── Abort ───┘   └─ Close, ─┘ ResumeRestore
//	                                   killed
//
// There is no log of writes: the blockchain is the log. The height in meta is the *safe* height; after a crash the zone opens at
// it, and the blocks since are executed again. A batch becomes durable as a whole, and meta is in it, so what opens is always the
// state after one of the blocks. A restore removes meta first and writes it last, so the zone counts as empty in between; what a
// killed one has written lies in a folder of its own, from which it can go on. The states of past flushes can stay readable for a while (generations), and beyond a restart as databases of
// their own that share the files (pins).
package storage
