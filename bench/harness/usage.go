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

// CPUSample is the CPU time that a process has used so far, in seconds.
type CPUSample struct {
	At     float64 `json:"at_s"` // since sampling began
	User   float64 `json:"user_s"`
	Kernel float64 `json:"kernel_s"`
}

// Total returns the CPU time in user and kernel mode.
func (s CPUSample) Total() float64 { return s.User + s.Kernel }

// cpuEvery is the interval between two samples of CPU time, whose resolution is 10 ms.
const cpuEvery = 100 * time.Millisecond

// WatchCPU samples the CPU time of a process until used is called, which returns the samples. There
// are none without /proc. Sampling also ends with ctx.
func WatchCPU(ctx context.Context, pid int) (used func() []CPUSample) {
	var samples []CPUSample
	from := time.Now()
	look := func() {
		if user, kernel, known := cpuOf(pid); known {
			samples = append(samples, CPUSample{time.Since(from).Seconds(), user, kernel})
		}
	}
	look()
	stop := sync.OnceFunc(sample(cpuEvery, look))
	context.AfterFunc(ctx, stop)
	return func() []CPUSample {
		stop()
		return samples
	}
}

// PeakCPU returns the highest use in a time of at least window seconds, in processors. If the
// samples cover less, it is the use over all of them.
func PeakCPU(samples []CPUSample, window float64) (peak float64) {
	for first, next := 0, 1; next < len(samples); next++ {
		for first+1 < next && samples[next].At-samples[first+1].At >= window {
			first++
		}
		from, to := samples[first], samples[next]
		if to.At-from.At >= window || first == 0 && next == len(samples)-1 {
			peak = max(peak, Ratio(to.Total()-from.Total(), to.At-from.At))
		}
	}
	return peak
}

// CPUOf returns the CPU time of processes in seconds. A process whose time is unknown counts as 0.
func CPUOf(pids ...int) (seconds float64) {
	for _, pid := range pids {
		user, kernel, _ := cpuOf(pid)
		seconds += user + kernel
	}
	return seconds
}

// cpuOf returns the CPU time of a process in user and in kernel mode, in seconds.
func cpuOf(pid int) (user, kernel float64, known bool) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, 0, false
	}
	s, err := p.Stat()
	if err != nil {
		return 0, 0, false
	}
	kernel = s.CPUTime() * Ratio(float64(s.STime), float64(s.UTime+s.STime))
	return s.CPUTime() - kernel, kernel, true
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
