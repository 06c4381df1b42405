// Package segments keeps large values in append-only files, so that a database holds their places
// and moves no value when it compacts.
//
//	Group.Add(key, value)          a batch's records, in memory
//	      │
//	      ▼
//	Store.Append ─► Store.Sync     000001.seg  [record ‖ record ‖ … ‖ record]      full
//	      │                        000002.seg  [record ‖ record ‖ …]               begun
//	      ▼                                     ▲                  ▲
//	     Ref ──► the user's index ──► Store.Read(key, ref)         end of what the index knows
//
//	record:  head: 0x53 'S' ‖ length of key:u16 ‖ length of value:u32 ‖ CRC-32C of value:u32 ‖ CRC-32C of head:u32
//	         ‖ key ‖ value                       (all numbers big-endian)
//
// The checksum of the head is over what is before it, the key, and the place: the number of the
// segment:u32 ‖ the offset of the record:u64. So a record counts in one place only, and the records
// of a segment are found one after another without reading values.
//
// The user is the index: it says at Open which segments there are and where each ends, and removes
// one that it has no Ref into. What lies behind an end was written and never indexed, as in a
// crash: the next records overwrite it. The user calls Append, Sync and Remove one at a time;
// everything else may be called concurrently.
package segments
