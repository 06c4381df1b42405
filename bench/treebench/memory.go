package treebench

import (
	"bufio"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// memory is what a process holds after a garbage collection, in bytes. Resident includes memory
// outside the Go heap, and unused space between objects; it is 0 if /proc does not report it.
type memory struct {
	Heap     int64 `json:"heap"`
	Resident int64 `json:"resident"`
}

// larger is the figure in the table.
func (m memory) larger() int64 { return max(m.Heap, m.Resident) }

func measureMemory() memory {
	runtime.GC() // objects with finalizers, and pools, take two collections
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return memory{Heap: int64(stats.HeapInuse), Resident: residentBytes()}
}

// residentBytes reads RssAnon of proc(5): memory of files, such as this program's text or a mapped
// database, does not count.
func residentBytes() int64 {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "RssAnon:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
