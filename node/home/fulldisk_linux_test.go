package home

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cometbft/cometbft/privval"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
)

// initMounts is set in the process that has a mount namespace of its own.
const initMounts = "STARLING_TEST_INIT_MOUNTS"

const notMounted = "NOT RUN: a tmpfs cannot be mounted here"

// A disk that is full at whatever file ends Init with the reason, and leaves nothing behind that
// the next Init would refuse.
func TestInitOnAFullDisk(t *testing.T) {
	if os.Getenv(initMounts) != "" {
		initOnAFullDisk(t)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInitOnAFullDisk$", "-test.v", "-test.timeout=8m")
	cmd.Env = append(os.Environ(), initMounts+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
	out, err := cmd.CombinedOutput()
	if len(out) == 0 && errors.Is(err, syscall.EPERM) {
		t.Skipf("NOT RUN: a full disk needs a mount namespace, which takes root here: %v", err)
	}
	t.Logf("%s", out)
	require.NoError(t, err)
	require.NotContains(t, string(out), "panic")
	if strings.Contains(string(out), notMounted) {
		t.Skip(notMounted)
	}
}

func initOnAFullDisk(t *testing.T) {
	small := t.TempDir()
	if err := errors.Join(syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""), syscall.Mount("none", small, "tmpfs", 0, "size=4m")); err != nil {
		t.Skipf("%s: %v", notMounted, err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(small, syscall.MNT_DETACH)) })
	o := InitOptions{Home: filepath.Join(small, "home"), Moniker: "m", ChainID: "demo-1", App: app.Genesis{Open: true}}
	for _, pages := range []int{0, 1, 4, 11, 12, 60} { // free: none, for settings, for keys, …
		filler := filepath.Join(small, "filler")
		require.NoError(t, os.WriteFile(filler, make([]byte, 4<<20-pages*4096), 0o600))
		_, err := Init(o)
		require.ErrorIs(t, err, syscall.ENOSPC, "%d pages", pages)
		require.NoDirExists(t, o.Home, "%d pages", pages)
		require.NoError(t, os.Remove(filler))
	}
	_, err := Init(o)
	require.NoError(t, err)
}

// A validator's key that cannot be written is an error, not a panic.
func TestKeyThatCannotBeWritten(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	err := saveValidator(privval.GenFilePV(filepath.Join(nowhere, "key.json"), filepath.Join(nowhere, "state.json")))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "write the validator's key")
}

// What was there before an Init that failed stays: empty folders, and links to them.
func TestFailedInitKeepsFolders(t *testing.T) {
	home, elsewhere := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(home, "data")))
	require.NoError(t, os.Symlink(filepath.Join(elsewhere, "missing"), filepath.Join(home, "config")))
	_, err := Init(InitOptions{Home: home, ChainID: "demo-1"})
	require.Error(t, err)
	for _, link := range []string{"data", "config"} {
		_, err := os.Lstat(filepath.Join(home, link))
		require.NoError(t, err)
	}
	require.DirExists(t, elsewhere)
}
