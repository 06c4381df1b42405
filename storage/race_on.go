//go:build race

package storage

import "bytes"

// unowned returns a copy of b to be written to a file, because the caller continues to use b. Under
// the race detector, Pebble's in-memory file system modifies the bytes written to it, to find
// callers that rely on them. Real file systems do not.
func unowned(b []byte) []byte { return bytes.Clone(b) }
