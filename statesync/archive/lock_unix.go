//go:build unix

package archive

import (
	"os"
	"syscall"
)

// lock makes this process the one that writes the file, until it is closed.
func lock(file *os.File) error { return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
