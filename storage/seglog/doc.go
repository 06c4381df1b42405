// Package seglog stores records, which are keys with values, in append-only segments: files of
// which only the last one grows.
//
//	Append ─► Sync      000001.seg  [record ‖ record ‖ … ‖ record]      full
//	   │                000002.seg  [record ‖ record ‖ … torn]          begun
//	   ▼                                            ▲
//	  Ref ──► Read(key, ref)                        end: the next record overwrites what follows
//
//	record:  head: 0x53 'S' ‖ length of key:u16 ‖ length of value:u32 ‖ CRC-32C of value:u32 ‖ CRC-32C of head:u32
//	         ‖ key ‖ value                       (all numbers big-endian)
//
// The checksum of the head covers the bytes before it, the key, and the location: the number of the
// segment:u32 ‖ the offset of the record:u64, and in a Log its salt:16. So a record is valid only
// at its own location, and the records of a segment are found one after another without reading
// values.
//
// The valid records are determined in one of two ways:
//
//	        known by                                  removed                        used by
//	Store   the user's index, which it gives to Open  a segment without references   parts of blocks
//	Log     OpenLog, which reads all records          the oldest segment             updates of storage nodes
//
// A record is durable when a Sync after its Append has returned; the name of a segment is durable
// before its first record. After a crash a Store still has all records in the index, if the index
// took a Ref only after Sync. A Log has every record that was durable, and perhaps some after it,
// without gaps. An incomplete end is overwritten. In a Log, damage to a record is ErrDamaged if a
// later record proves that it was durable. Records that were appended with one Sync (AppendGroup)
// prove nothing about each other, and an incomplete group is cut off when the log is opened.
//
// The user must not call Append, Sync and the removing methods concurrently. All other methods may
// be called concurrently.
//
// Pebble's package record is not suitable. It detects a lost record only if a later block of 32 KiB
// proves it, its logs cannot be continued, and records cannot be read by location.
package seglog
