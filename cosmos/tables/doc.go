// Package tables makes databases of goleveldb and Pebble of runs that are sorted already.
//
//	run ─▶ tables of some MB ─┐
//	run ─▶ …                 ─┼─ goleveldb: a manifest that names them, in a level that holds as much
//	run ─▶ …                 ─┘  Pebble:    one Ingest, into its lowest level
//
// Nothing is logged, sorted or compacted. The databases are those that cosmos-db opens: same
// options, same formats. A database is complete when Commit has returned; what a crash leaves of
// one is removed by the next NewGoLevelDB or NewPebble. ReadGoLevelDB and ReadPebble read databases
// that are there.
package tables
