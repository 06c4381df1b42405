//go:build !linux

package syncbench

import (
	"syscall"
	"time"
)

// What is not told elsewhere is 0 in the result.

func attributes() *syscall.SysProcAttr { return nil }

func syncDisk() {}

func cpuTime() time.Duration { return 0 }

func peakBytes() int64 { return 0 }
