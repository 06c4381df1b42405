package treebench

import (
	"bufio"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// memory is what a process holds after a garbage collection, in bytes. Resident counts memory outside of the Go heap, too, and what
// lies unused between objects; it is 0 where /proc does not tell it.
type memory struct {
	Heap     int64 `json:"heap"`
	Resident int64 `json:"resident"`
}

// larger is the measure that the table shows.
func (m memory) larger() int64 { return max(m.Heap, m.Resident) }

func measureMemory() memory {
	runtime.GC() // objects with finalizers and pools take two
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return memory{Heap: int64(stats.HeapInuse), Resident: residentBytes()}
}

// residentBytes reads RssAnon of proc(5): memory of files, such as this program's text or a mapped database, is not counted.
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
