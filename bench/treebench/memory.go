package treebench

import (
	"runtime"
	"runtime/debug"

	"github.com/starling-kv/starling/bench/harness"
)

// memory is what a process holds after a garbage collection, in bytes. Resident is anonymous
// memory: it includes memory outside the Go heap, and unused space between objects; it is 0 if
// /proc does not report it.
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
	return memory{Heap: int64(stats.HeapInuse), Resident: harness.OwnMemory().Anon}
}
