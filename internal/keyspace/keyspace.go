// Package keyspace computes with the keys of ordered stores.
package keyspace

import "bytes"

// PrefixEnd returns the least key above all keys that begin with prefix, or nil if there is none.
func PrefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			end := bytes.Clone(prefix[:i+1])
			end[i]++
			return end
		}
	}
	return nil
}
