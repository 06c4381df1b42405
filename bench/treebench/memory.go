package treebench

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/starling-kv/starling/bench/harness"
)

// memory is what a process holds after a garbage collection, in bytes. Resident is anonymous
// memory, which includes memory outside the Go heap and unused space between objects. Huge is the
// part of Resident in huge pages. Both are 0 if /proc does not report them.
type memory struct {
	Heap     int64 `json:"heap"`
	Resident int64 `json:"resident"`
	Huge     int64 `json:"huge"`  // part of Resident in huge pages
	Files    int64 `json:"files"` // resident pages of files
}

// since returns the growth since before.
func (m memory) since(before memory) memory {
	return memory{m.Heap - before.Heap, m.Resident - before.Resident, m.Huge - before.Huge, max(0, m.Files-before.Files)}
}

// larger returns the figure for the table.
func (m memory) larger() int64 { return max(m.Heap, m.Resident) }

func measureMemory() memory {
	runtime.GC() // finalizers and pools need two collections
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	own := harness.OwnMemory()
	return memory{int64(stats.HeapInuse), own.Anon, hugeBytes(), own.Files}
}

// hugeBytes reads AnonHugePages (proc(5)).
func hugeBytes() int64 {
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "AnonHugePages:")
	kib, _, _ := strings.Cut(rest, " kB")
	n, err := strconv.ParseInt(strings.TrimSpace(kib), 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}
