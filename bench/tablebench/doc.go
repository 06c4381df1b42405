// Package tablebench sets our writer of sorted tables beside Pebble's sstable.Writer, for what a
// restore writes.
//
//	leaves of a chunk ──► a writer ──► a file ──► removed
//	                       ├── rowtable               internal/rowtable
//	                       ├── row, row 32 KiB        sstable.Writer, format Pebble,v1
//	                       └── columnar …, + Snappy   sstable.Writer, the newest format
//
// All writers run in this process, one after another in each round, on the same records. Each
// gathers 256 KiB before it writes to the file, and computes the CRC-32C of the whole file, which
// the journal of a restore needs. Nothing is synced. What each one wrote first is read back with
// Pebble.
package tablebench
