//go:build !linux

package syncbench

import "time"

// Figures that other systems do not report are 0 in the result.

func syncDisk() {}

func cpuTime() time.Duration { return 0 }

func resetPeak() {}
