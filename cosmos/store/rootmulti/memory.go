package rootmulti

import (
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryWatch logs a warning or an error when the Starling stores use much of the memory. They are
// entirely in memory, and nothing else limits their size. memoryWatch does not stop the node: the
// node would stop before memory actually runs out, and nodes with equal memory would stop at the
// same time.
type memoryWatch struct {
	limit  uint64 // memory of the node in bytes; 0: unknown, nothing is logged
	said   int    // level of the last log entry: 0 none, 1 a warning, 2 an error
	height int64  // of the last log entry
}

const (
	lookEvery  = 16   // heights between two checks
	sayEvery   = 1000 // heights after which the same level is logged again
	warnEighth = 4    // eighths of the memory at which a warning is logged
	failEighth = 6    // eighths of the memory at which an error is logged
)

// watchMemory checks the memory of the stores after a height was committed or loaded.
func (rs *Store) watchMemory(height int64) {
	w := &rs.memory
	if w.limit == 0 || rs.disk == nil {
		return
	}
	bytes := uint64(0)
	for _, s := range rs.stores {
		bytes += s.MemoryBytes()
	}
	level := 0
	switch {
	case bytes >= w.limit/8*failEighth:
		level = 2
	case bytes >= w.limit/8*warnEighth:
		level = 1
	}
	if level == 0 || level == w.said && height < w.height+sayEvery {
		if level < w.said {
			w.said = level
		}
		return
	}
	w.said, w.height = level, height
	say, much := rs.logger.Warn, "half"
	if level == 2 {
		say, much = rs.logger.Error, "three quarters"
	}
	say("the Starling stores use more than "+much+" of the memory: give the node more memory, or keep fewer versions (pruning, HistoryBytes)",
		"stores_mib", bytes>>20, "memory_mib", w.limit>>20, "height", height)
}

// availableMemory returns the minimum of GOMEMLIMIT, the limits of this process's cgroups and the
// machine's memory, in bytes, or 0 if none is known. root is "/" except in tests.
func availableMemory(root string) uint64 {
	least := uint64(math.MaxUint64)
	note := func(text string, unit uint64) {
		if n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 54); err == nil && n > 0 {
			least = min(least, n*unit)
		}
	}
	read := func(elem ...string) string {
		b, err := os.ReadFile(path.Join(append([]string{root}, elem...)...))
		if err != nil {
			return ""
		}
		return string(b)
	}
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		note(strconv.FormatInt(limit, 10), 1)
	}
	for line := range strings.Lines(read("proc/meminfo")) {
		if total, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			note(strings.TrimSuffix(strings.TrimSpace(total), " kB"), 1<<10)
		}
	}
	// "0::/a/b" is the group in cgroup v2, "4:memory:/a/b" in cgroup v1 (cgroups(7)). A group's
	// limit also applies to the groups below it. In a container, the process's own group may be the
	// root.
	for line := range strings.Lines(read("proc/self/cgroup")) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		var folder, file string
		switch {
		case fields[0] == "0":
			folder, file = "sys/fs/cgroup", "memory.max"
		case strings.Contains(","+fields[1]+",", ",memory,"):
			folder, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for group := path.Clean("/" + fields[2]); ; group = path.Dir(group) {
			note(read(folder, group, file), 1)
			if group == "/" {
				break
			}
		}
	}
	if least == math.MaxUint64 {
		return 0
	}
	return least
}
