package harness

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// CPUTime returns the CPU time that this process has used so far, in user and kernel mode.
func CPUTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// MachineCPU returns the busy seconds of all processors, including kernel threads and interrupts,
// or false without /proc/stat. Its resolution is a hundredth of a second.
func MachineCPU() (seconds float64, known bool) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, false
	}
	stat, err := proc.Stat()
	if err != nil {
		return 0, false
	}
	c := stat.CPUTotal
	return c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ, true
}

// LoadAverage returns the load average of the last minute, or 0 if it is unknown.
func LoadAverage() float64 {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0
	}
	load, err := proc.LoadAvg()
	if err != nil {
		return 0
	}
	return load.Load1
}

// KernelRelease returns the kernel version, or "" if it is unknown.
func KernelRelease() string {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return ""
	}
	words, err := proc.SysctlStrings("kernel.osrelease")
	if err != nil || len(words) == 0 {
		return ""
	}
	return words[0]
}

// IO is what this process has read and written with system calls, including reads from the page
// cache. It is zero without /proc.
type IO struct{ Read, Written, Reads int64 } // bytes, bytes, calls

// OwnIO returns the IO of this process.
func OwnIO() IO {
	p, err := procfs.Self()
	if err != nil {
		return IO{}
	}
	io, err := p.IO()
	if err != nil {
		return IO{}
	}
	return IO{int64(io.RChar), int64(io.WChar), int64(io.SyscR)}
}

// Memory is the resident memory of a process in bytes. It is zero without /proc.
type Memory struct {
	Anon int64 `json:"anonymous_bytes"` // anonymous pages
	// Pages of files, which the kernel can drop: program text, mapped databases.
	Files int64 `json:"file_bytes"`
	Peak  int64 `json:"peak_bytes"` // highest sum of both so far
}

// Plus returns the memory of two processes together.
func (m Memory) Plus(n Memory) Memory {
	return Memory{m.Anon + n.Anon, m.Files + n.Files, m.Peak + n.Peak}
}

// OwnMemory returns the memory of this process.
func OwnMemory() Memory { return MemoryOf(os.Getpid()) }

// MemoryOf returns the memory of a process. It reads proc(5). The maximum of getrusage(2) would
// include the memory of the parent before the exec.
func MemoryOf(pid int) Memory {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return Memory{}
	}
	s, err := p.NewStatus()
	if err != nil {
		return Memory{}
	}
	return Memory{int64(s.RssAnon), int64(s.RssFile), int64(s.VmHWM)}
}

// ResetPeak resets the peak memory of a process to its resident memory (proc(5), clear_refs). If
// that fails, the peak stays that of the whole life of the process.
func ResetPeak(pid int) {
	_ = os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "clear_refs"), []byte("5"), 0)
}

// watchEvery is the interval between two samples of memory; a sample takes about 50 µs.
const watchEvery = 10 * time.Millisecond

// Watch samples the memory of processes until stop is called, which returns the highest values of
// each process, in the order of processes. Peak is exact; Anon and Files are each the highest
// sample.
func Watch(processes ...*Process) (stop func() []Memory) {
	most := make([]Memory, len(processes))
	for _, p := range processes {
		ResetPeak(p.cmd.Process.Pid)
	}
	end := sample(watchEvery, func() {
		for i, p := range processes {
			m := MemoryOf(p.cmd.Process.Pid)
			most[i] = Memory{max(most[i].Anon, m.Anon), max(most[i].Files, m.Files), max(most[i].Peak, m.Peak)}
		}
	})
	return func() []Memory {
		end()
		return most
	}
}

// WatchCPU samples the CPU time of a process each second until used is called. used returns the CPU
// seconds, and the highest use in a second, in processors. Sampling also ends with ctx.
func WatchCPU(ctx context.Context, pid int) (used func() (seconds, peak float64)) {
	greatest, last, at := 0.0, CPUOf(pid), time.Now()
	end := sample(time.Second, func() {
		now, seconds := time.Now(), CPUOf(pid)
		elapsed := now.Sub(at)
		if elapsed < time.Second/2 { // the process clock is too coarse for shorter intervals
			return
		}
		greatest = max(greatest, (seconds-last)/elapsed.Seconds())
		last, at = seconds, now
	})
	stop := sync.OnceFunc(end)
	context.AfterFunc(ctx, stop)
	return func() (float64, float64) {
		seconds := CPUOf(pid)
		stop()
		return seconds, greatest
	}
}

// CPUOf returns the CPU time of processes in seconds. A process whose time is unknown counts as 0.
func CPUOf(pids ...int) (seconds float64) {
	for _, pid := range pids {
		p, err := procfs.NewProc(pid)
		if err != nil {
			continue
		}
		if s, err := p.Stat(); err == nil {
			seconds += s.CPUTime()
		}
	}
	return seconds
}

// sample calls look immediately, then at each interval, and once more when end is called.
func sample(interval time.Duration, look func()) (end func()) {
	ended := make(chan struct{})
	var looks sync.WaitGroup
	looks.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			look()
			select {
			case <-ended:
				look()
				return
			case <-ticker.C:
			}
		}
	})
	return func() {
		close(ended)
		looks.Wait()
	}
}
