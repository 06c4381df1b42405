//go:build unix

package harness

import (
	"os"
	"syscall"
)

// freeze stops a process until proceed: a garbage collection or compaction that is under way goes on in its own next slice.
func freeze(p *os.Process)  { _ = p.Signal(syscall.SIGSTOP) } // a process that is gone shows when it is asked something
func proceed(p *os.Process) { _ = p.Signal(syscall.SIGCONT) }
