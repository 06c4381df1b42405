package harness

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Memory is what a process has resident, in bytes. It is zero where the system has no /proc.
type Memory struct {
	Anon int64 `json:"anonymous_bytes"` // its own
	// Pages of files, which the system can drop: program text, mapped databases.
	Files int64 `json:"file_bytes"`
	Peak  int64 `json:"peak_bytes"` // of both together so far
}

// Plus is the memory of two processes.
func (m Memory) Plus(n Memory) Memory {
	return Memory{m.Anon + n.Anon, m.Files + n.Files, m.Peak + n.Peak}
}

// OwnMemory is that of this process.
func OwnMemory() Memory { return memoryOf("self") }

// memoryOf reads RssAnon, RssFile and VmHWM of proc(5). The maximum of getrusage(2) would include
// the process that started this one, before the exec.
func memoryOf(pid string) (m Memory) {
	f, err := os.Open(filepath.Join("/proc", pid, "status"))
	if err != nil {
		return m
	}
	defer f.Close()
	fields := map[string]*int64{"RssAnon": &m.Anon, "RssFile": &m.Files, "VmHWM": &m.Peak}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if to := fields[name]; to != nil {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			*to = kib << 10
		}
	}
	return m
}

// watchEvery is the interval between two looks at the memory of processes: each takes about 50 µs.
const watchEvery = 10 * time.Millisecond

// Watch looks at the memory of processes until stop, which returns the most that each had
// meanwhile, in their order. Peak is exact; Anon and Files are the highest of the looks, each of
// its own.
func Watch(processes ...*Process) (stop func() []Memory) {
	most := make([]Memory, len(processes))
	look := func() {
		for i, p := range processes {
			m := memoryOf(strconv.Itoa(p.cmd.Process.Pid))
			most[i] = Memory{max(most[i].Anon, m.Anon), max(most[i].Files, m.Files), max(most[i].Peak, m.Peak)}
		}
	}
	for _, p := range processes {
		// The peak begins anew (proc(5), clear_refs); where that fails, it is the process's.
		_ = os.WriteFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "clear_refs"), []byte("5"), 0)
	}
	ended := make(chan struct{})
	var looks sync.WaitGroup
	looks.Go(func() {
		every := time.NewTicker(watchEvery)
		defer every.Stop()
		for {
			look()
			select {
			case <-ended:
				look()
				return
			case <-every.C:
			}
		}
	})
	return func() []Memory {
		close(ended)
		looks.Wait()
		return most
	}
}
