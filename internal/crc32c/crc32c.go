// Package crc32c computes CRC-32C, the checksum with the Castagnoli polynomial (RFC 3720, appendix
// B.4) that all files of Starling use.
package crc32c

import "hash/crc32"

var table = crc32.MakeTable(crc32.Castagnoli)

// Sum returns the checksum of the concatenated parts.
func Sum(parts ...[]byte) (sum uint32) {
	for _, b := range parts {
		sum = crc32.Update(sum, table, b)
	}
	return sum
}

// Update returns the checksum of b appended to bytes with checksum sum.
func Update(sum uint32, b []byte) uint32 { return crc32.Update(sum, table, b) }
