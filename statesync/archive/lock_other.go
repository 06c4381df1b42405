//go:build !unix

package archive

import "os"

// lock does nothing on this platform: the user must not run two processes that write one file.
func lock(*os.File) error { return nil }
