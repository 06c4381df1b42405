//go:build unix

package harness

import (
	"os"
	"syscall"
)

// freeze stops a process until proceed: a garbage collection or compaction that is running
// continues in the process's own next slice.
func freeze(p *os.Process) {
	_ = p.Signal(syscall.SIGSTOP) // a process that is gone is noticed at the next request
}

// proceed undoes freeze.
func proceed(p *os.Process) { _ = p.Signal(syscall.SIGCONT) }
