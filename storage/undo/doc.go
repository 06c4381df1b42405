// Package undo keeps, for the last blocks, the records by which a node that was started again makes
// the states before its last one (avlstar.Undo). It knows nothing of what is in them.
//
//	Put(height) ──► the newest file ◄── Sync: before the state of that height is durable
//	                00000001.undo   [record ‖ record ‖ …]      removed when all its records are old
//	                00000002.undo   [record ‖ …]
//	                                                           or, after a start, put again
//	Get(height) ◄── the last record of a height that is whole
//
//	record:  head: length:u32 ‖ height:u64 ‖ CRC-32C of the value:u32 ‖ CRC-32C of the head before it:u32 ‖ value
//	         (all numbers big-endian)
//
// Nothing depends on these records but how far back queries reach: what is missing or damaged is
// not there, whoever goes back by a record checks where it led, and a log that cannot be written
// only says so.
package undo
