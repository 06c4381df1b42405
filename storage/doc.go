// Package storage keeps one version of the state durably on disk: every leaf, the height of its inner node, and which block it is.
//
//	Write(block)  ──one synced batch──►  'k' ‖ key  → value
//	                                     'h' ‖ key  → height of the inner node whose key it is
//	                                     'm'        → meta: format, height, app hash, chunk limit, chain id
//	Scan          ◄──one linear pass───  'k' and 'h' side by side
//
//	        Write
//	       ┌─────┐
//	       ▼     │      BeginRestore            Restore.Commit
//	empty ───► at height H ───► restoring (no meta) ───► at height H'
//	  ▲            │                 │
//	  └── Reset ───┴─── Abort, or killed: wiped at the next Open
//
// The meta record is the only witness of a whole state. A block's batch carries it, so a crash leaves the state before the block
// or after it; a restore removes it first and writes it last, so whatever a killed restore leaves behind counts as nothing.
package storage
