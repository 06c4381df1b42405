package rootmulti

import (
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryWatch says in the log when the Starling stores take much of the memory that there is: they
// are in it as a whole, and nothing else limits them. It stops nothing: a node that ends itself is
// lost earlier than one that the system ends, and nodes of equal memory would end together.
type memoryWatch struct {
	limit  uint64 // bytes; 0: unknown, nothing is said
	said   int    // what was said last: 0 nothing, 1 a warning, 2 an error
	height int64  // when
}

const (
	lookEvery  = 16   // heights between two looks, which cost a few loads of memory
	sayEvery   = 1000 // heights after which the same is said again
	warnEighth = 4    // eighths of the memory, from which on there is a warning
	failEighth = 6    // the same of an error
)

// watchMemory looks at the stores after the commit or the loading of a height.
func (rs *Store) watchMemory(height int64) {
	w := &rs.memory
	if w.limit == 0 || rs.disk == nil {
		return
	}
	bytes := uint64(0)
	for _, s := range rs.stores {
		if s, ok := s.(*starling); ok {
			bytes += s.MemoryBytes()
		}
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
	say("the Starling stores take more than "+much+" of the memory, and the rest of the node needs some, too: give the node more, or keep fewer versions (pruning, HistoryBytes)",
		"stores_mib", bytes>>20, "memory_mib", w.limit>>20, "height", height)
}

// availableMemory returns the least of GOMEMLIMIT, the limits of this process's control groups and
// the machine's memory, in bytes; 0 if none is known. root is "/", but in tests.
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
	// "0::/a/b" is the group of version 2, "4:memory:/a/b" of version 1 (cgroups(7)). Each group's
	// limit holds for those below it. In a container, its own group may be the root.
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
