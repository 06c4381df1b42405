package harness

import (
	"os"
	"os/exec"
	"runtime"
	"testing"

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
