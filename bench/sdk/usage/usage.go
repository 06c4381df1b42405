// Package usage measures the CPU time and memory of this process.
package usage

import (
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// CPUSeconds returns the CPU time used so far, in user and kernel mode.
func CPUSeconds() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// Memory returns the anonymous resident memory, and the peak of all resident memory, in bytes. Both
// are 0 without /proc.
func Memory() (anonymous, peak int64) {
	p, err := procfs.Self()
	if err != nil {
		return 0, 0
	}
	s, err := p.NewStatus()
	if err != nil {
		return 0, 0
	}
	return int64(s.RssAnon), int64(s.VmHWM)
}
