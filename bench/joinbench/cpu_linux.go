package joinbench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

// ticksPerSecond is the unit of /proc/PID/stat on all of Go's Linux platforms (USER_HZ, man 5
// proc).
const ticksPerSecond = 100

// watchCPU samples a process each second until used is called: the CPU time of it, in seconds, and
// the greatest use of a second, in processors.
func watchCPU(ctx context.Context, pid int) (used func() (seconds, peak float64)) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var peak float64
	wg.Go(func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		before, at := cpuSeconds(pid), time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			now, when := cpuSeconds(pid), time.Now()
			peak = max(peak, (now-before)/when.Sub(at).Seconds())
			before, at = now, when
		}
	})
	return func() (float64, float64) {
		seconds := cpuSeconds(pid)
		cancel()
		wg.Wait()
		return seconds, peak
	}
}

// cpuSeconds is the CPU time of a process so far; 0: it is not known.
func cpuSeconds(pid int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // from the third field on
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(string(fields[11]), 64)
	system, _ := strconv.ParseFloat(string(fields[12]), 64)
	return (user + system) / ticksPerSecond
}
