package smalldisk

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// T is the part of *testing.T that this package needs.
type T interface {
	Helper()
	Name() string
	Context() context.Context
	Cleanup(func())
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// ownMounts is set to the name of the test that the process was started for.
const ownMounts = "STARLING_TEST_OWN_MOUNTS"

const notMounted = "NOT RUN: a tmpfs cannot be mounted here"

// Alone runs the body of a top-level test in a process with its own mounts, so that no mount
// outlives the test.
func Alone(t T, body func()) {
	t.Helper()
	if os.Getenv(ownMounts) == t.Name() {
		if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			t.Skipf("%s: %v", notMounted, err)
		}
		body()
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=0") //nolint:gosec // this test again
	cmd.Env = append(os.Environ(), ownMounts+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
	if os.Geteuid() != 0 { // root in a user namespace, if the system permits it
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	runtime.LockOSThread() // the kernel ends the child when the thread that started it ends
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	if len(out) == 0 && errors.Is(err, syscall.EPERM) {
		t.Skipf("NOT RUN: a full disk needs a mount namespace, which needs root here: %v", err)
	}
	t.Logf("%s", out)
	switch {
	case err != nil:
		t.Fatalf("%v", err)
	case strings.Contains(string(out), notMounted):
		t.Skipf("%s", notMounted)
	}
}

// Small mounts an empty disk at a folder for the rest of a test that runs Alone.
func Small(t T, at string, bytes int64) {
	t.Helper()
	if err := Mount(at, bytes); err != nil {
		t.Skipf("%s: %v", notMounted, err)
	}
	t.Cleanup(func() {
		if err := Unmount(at); err != nil {
			t.Errorf("%v", err)
		}
	})
}
