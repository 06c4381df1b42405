//go:build race

package storage

import "bytes"

// unowned returns what can be written to a file in place of b, which the caller goes on using: with
// the race detector, Pebble's file system in memory changes what is written to it, to find who
// relies on it. Files of the operating system do not.
func unowned(b []byte) []byte { return bytes.Clone(b) }
