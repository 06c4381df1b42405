package syncbench

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// syncDisk waits until all files are on the disk, whoever wrote them, so that the next contestant
// does not wait for them.
func syncDisk() { unix.Sync() }

// cpuTime is the CPU time that this process has used, user and system.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resetPeak makes peakBytes begin anew, at what is resident now (proc(5), clear_refs).
func resetPeak() {
	// Where it fails, the peak is the process's.
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
}

// peakBytes is the peak of resident memory, VmHWM of proc(5). The maximum of getrusage(2) would
// include the process that started this one, before the exec.
func peakBytes() int64 {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
