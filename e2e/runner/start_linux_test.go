package runner

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A child lives on when the thread of the goroutine that started it ends.
func TestStartCommandOutlivesItsCaller(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "cat")
	cmd.SysProcAttr = attributes()
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	thread, started := make(chan int, 1), make(chan error, 1)
	var start func()
	start = func() {
		runtime.LockOSThread() // never unlocked, so this thread ends with the goroutine
		if tid := syscall.Gettid(); tid != os.Getpid() {
			thread <- tid
			started <- StartCommand(cmd)
			return
		}
		go start() // on another thread: the main thread, which is held here, never ends
		<-t.Context().Done()
		runtime.UnlockOSThread()
	}
	go start()
	require.NoError(t, <-started)
	tid := <-thread
	require.Eventually(t, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
		return os.IsNotExist(err)
	}, time.Minute, time.Millisecond, "the thread does not end")
	_, err = fmt.Fprintln(stdin, "alive")
	require.NoError(t, err)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "alive\n", line)
	require.NoError(t, stdin.Close())
	require.NoError(t, cmd.Wait())
}
