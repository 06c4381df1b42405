// Package tables writes databases of goleveldb and Pebble from sorted runs, and reads such
// databases.
//
//	run ─▶ tables of some MB ─┐
//	run ─▶ …                 ─┼─ goleveldb: a manifest that lists them, in a level with enough capacity
//	run ─▶ …                 ─┘  Pebble:    one Ingest, into its lowest level
//
// Nothing is logged, sorted or compacted. cosmos-db can open these databases, because they have its
// options and formats. A database is complete when Commit has returned; the next NewGoLevelDB or
// NewPebble removes what a crash has left. ReadGoLevelDB and ReadPebble read any such database
// without copies.
package tables
