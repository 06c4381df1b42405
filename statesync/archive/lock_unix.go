//go:build unix

package archive

import (
	"os"
	"syscall"
)

// lock takes an exclusive lock on the file until it is closed.
func lock(file *os.File) error { return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
