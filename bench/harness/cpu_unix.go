//go:build unix

package harness

import (
	"syscall"
	"time"
)

// CPUTime is what all threads of this process have used so far.
func CPUTime() CPU {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return CPU{}
	}
	return CPU{time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())}
}
