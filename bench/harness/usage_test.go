package harness

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process is observed from outside: this one allocates 64 MiB in the middle.
func TestWatch(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("NOT RUN: memory is read from /proc")
	}
	self, err := os.FindProcess(os.Getpid())
	require.NoError(t, err)
	before := OwnMemory()
	require.Positive(t, before.Files)
	stop := Watch(&Process{cmd: &exec.Cmd{Process: self}})
	held := make([]byte, 64<<20)
	for i := range held {
		held[i] = 1
	}
	most := stop()
	require.Len(t, most, 1)
	require.GreaterOrEqual(t, most[0].Anon, before.Anon+60<<20)
	require.GreaterOrEqual(t, most[0].Peak, most[0].Anon)
	require.Equal(t, byte(1), held[len(held)-1])
	require.Equal(t, Memory{Anon: 5, Files: 7, Peak: 9}, Memory{1, 2, 3}.Plus(Memory{4, 5, 6}))
}

// The last sample has the CPU time of this process so far, up to the clock of a process.
func TestWatchCPU(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("NOT RUN: CPU time is read from /proc")
	}
	used := WatchCPU(t.Context(), os.Getpid())
	began := CPUTime()
	for CPUTime() < began+200*time.Millisecond {
		runtime.Gosched()
	}
	ended := CPUTime().Seconds()
	samples := used()
	require.GreaterOrEqual(t, len(samples), 3, "the first two and the last one")
	require.GreaterOrEqual(t, samples[len(samples)-1].Total(), ended-0.03)
	require.GreaterOrEqual(t, samples[len(samples)-1].Total()-samples[0].Total(), 0.15)
	for i, s := range samples[1:] {
		require.GreaterOrEqual(t, s.At, samples[i].At)
		require.GreaterOrEqual(t, s.User, 0.0)
		require.GreaterOrEqual(t, s.Kernel, 0.0)
	}
	require.Positive(t, PeakCPU(samples, 1e-3))
}

func TestPeakCPU(t *testing.T) {
	require.Zero(t, PeakCPU(nil, 1))
	require.Zero(t, PeakCPU([]CPUSample{{At: 1, User: 5}}, 1))
	require.InDelta(t, 2.5, PeakCPU([]CPUSample{{}, {At: 0.2, User: 0.5, Kernel: 0}}, 1), 1e-9, "a short time as a whole")
	// Half a processor, two for a second and a half, none.
	samples := []CPUSample{{0, 0, 0}, {1, 0.5, 0}, {1.5, 1, 0.5}, {2, 2, 0.5}, {2.5, 2.5, 1}, {4, 2.5, 1}}
	require.InDelta(t, 2, PeakCPU(samples, 1), 1e-9)
	require.InDelta(t, 3.0/1.5, PeakCPU(samples, 1.5), 1e-9)
	require.InDelta(t, 3.5/4, PeakCPU(samples, 4), 1e-9)
	require.InDelta(t, 3.5/4, PeakCPU(samples, 60), 1e-9)
}
