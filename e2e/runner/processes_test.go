package runner_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

func shell(t *testing.T, name, script string) runner.Spec {
	t.Helper()
	return runner.Spec{Name: name, Path: "/bin/sh", Args: []string{"-c", script}, Log: filepath.Join(t.TempDir(), name)}
}

func TestStopEndsTheWholeGroup(t *testing.T) {
	processes := runner.NewProcesses(t.Context())
	// The shell's child would outlive a signal that goes to the shell alone.
	proc, err := processes.Start(shell(t, "parent", "sleep 300 & echo $!; wait"))
	require.NoError(t, err)
	var child int
	require.Eventually(t, func() bool {
		lines := runner.Tail(proc.Log(), 1)
		child = 0
		if len(lines) == 1 {
			child, _ = strconv.Atoi(lines[0])
		}
		return child > 0
	}, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, processes.Stop(10*time.Second))
	require.Eventually(t, func() bool { return gone(child) }, 10*time.Second, 10*time.Millisecond)
	require.ErrorIs(t, context.Cause(processes.Context()), context.Canceled)
	require.NoError(t, processes.Stop(time.Second), "a second call does nothing")
	_, err = processes.Start(shell(t, "late", "true"))
	require.ErrorContains(t, err, "being stopped")
}

func TestStopKillsWhoIgnoresSIGTERM(t *testing.T) {
	processes := runner.NewProcesses(t.Context())
	proc, err := processes.Start(shell(t, "stubborn", "trap '' TERM; echo ready; while :; do sleep 0.1; done"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(runner.Tail(proc.Log(), 1)) == 1 }, 10*time.Second, 10*time.Millisecond)
	require.ErrorContains(t, processes.Stop(50*time.Millisecond), "stubborn did not end within 50ms of being asked to (terminated) and was killed")
	require.Error(t, proc.ExitError())
}

func TestADeathIsToldWithTheLastLogLines(t *testing.T) {
	processes := runner.NewProcesses(t.Context())
	defer processes.Stop(time.Second)
	_, err := processes.Start(shell(t, "survivor", "sleep 300"))
	require.NoError(t, err)
	_, err = processes.Start(shell(t, "victim", "seq 100; echo 'address already in use' >&2; exit 3"))
	require.NoError(t, err)
	<-processes.Context().Done()
	var died *runner.DiedError
	require.True(t, errors.As(context.Cause(processes.Context()), &died))
	require.Equal(t, "victim", died.Name)
	require.ErrorContains(t, died, "exit status 3")
	require.Equal(t, "address already in use", died.Tail[len(died.Tail)-1])
	require.NotContains(t, died.Tail, "1", "only the last lines are shown")
}

func TestAProcessThatIsMeantToEnd(t *testing.T) {
	processes := runner.NewProcesses(t.Context())
	defer processes.Stop(time.Second)
	spec := shell(t, "once", "exit 4")
	spec.Ends = true
	proc, err := processes.Start(spec)
	require.NoError(t, err)
	require.ErrorContains(t, proc.ExitError(), "exit status 4")
	require.NoError(t, processes.Context().Err())

	proc, err = processes.Start(shell(t, "shell", "trap 'exit 0' INT; echo ready; while :; do sleep 0.1; done"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(runner.Tail(proc.Log(), 1)) == 1 }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, proc.Interrupt(10*time.Second))
	require.NoError(t, proc.ExitError())
	require.NoError(t, processes.Context().Err())
}

func TestKill(t *testing.T) {
	processes := runner.NewProcesses(t.Context())
	defer processes.Stop(time.Second)
	proc, err := processes.Start(shell(t, "stubborn", "trap '' TERM INT; echo ready; while :; do sleep 0.1; done"))
	require.NoError(t, err)
	proc.Kill()
	require.ErrorContains(t, proc.ExitError(), "killed")
	require.NoError(t, processes.Context().Err(), "it was asked to")
	proc.Kill()
}

func TestStartSaysWhatDoesNotStart(t *testing.T) {
	processes := runner.NewProcesses(t.Context())
	defer processes.Stop(time.Second)
	_, err := processes.Start(runner.Spec{Name: "ghost", Path: "/does/not/exist", Log: filepath.Join(t.TempDir(), "log")})
	require.ErrorContains(t, err, "ghost does not start")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, processes.Context().Err())
}

// gone reports whether a process has ended (a zombie has, too, where init is slow to reap it).
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestAPausedProcess(t *testing.T) {
	processes := runner.NewProcesses(t.Context())
	defer processes.Stop(time.Second)
	proc, err := processes.Start(shell(t, "ticking", "trap 'exit 7' TERM; while :; do echo tick; sleep 0.01; done"))
	require.NoError(t, err)
	size := func() int64 {
		info, err := os.Stat(proc.Log())
		require.NoError(t, err)
		return info.Size()
	}
	grows := func() bool {
		before := size()
		return runner.Poll(t.Context(), "the next tick", func() bool { return size() > before }) == nil
	}
	require.True(t, grows())
	proc.Pause()
	state := func(pid string) string {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			return ""
		}
		_, after, _ := strings.Cut(string(stat), ") ")
		return after[:1]
	}
	pid := strconv.Itoa(proc.Pid())
	if state(pid) == "" {
		t.Skip("NOT RUN: whether a process is paused is read from /proc")
	}
	// A shell that has just called vfork is not stopped itself: it waits (D) for its child, which
	// is.
	paused := func() bool {
		children, _ := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
		return state(pid) == "T" || state(pid) == "D" && state(strings.TrimSpace(string(children))) == "T"
	}
	require.Eventually(t, paused, 10*time.Second, 10*time.Millisecond)
	proc.Resume()
	require.True(t, grows())
	proc.Pause()
	proc.MayEnd()
	require.NoError(t, proc.Stop(10*time.Second), "it ends although it is paused")
	require.Equal(t, 7, proc.ExitStatus())
	proc.Resume() // has no effect
	require.NoError(t, processes.Context().Err())
}
