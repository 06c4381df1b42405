package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"
)

const (
	// ownMounts is set in the process that runs in a separate mount namespace.
	ownMounts  = "STARLING_TEST_OWN_MOUNTS"
	notMounted = "NOT RUN: a tmpfs cannot be mounted here"
)

// TestFullDisk: on a full disk a join reports how much space it needs, and resumes when there is
// space.
//
// The disk is a tmpfs in a separate mount namespace, so that nothing of it outlives the test.
func TestFullDisk(t *testing.T) {
	if os.Getenv(ownMounts) != "" {
		for _, backend := range []dbm.BackendType{dbm.GoLevelDBBackend, dbm.PebbleDBBackend} {
			t.Run(string(backend), func(t *testing.T) { fullDisk(t, backend) })
			t.Run("CometBFT on "+string(backend), func(t *testing.T) { fullDiskInComet(t, backend) })
		}
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFullDisk$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), ownMounts+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
	if os.Geteuid() != 0 { // become root of a user namespace, if the system permits it
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if len(out) == 0 && errors.Is(err, syscall.EPERM) {
		t.Skipf("NOT RUN: a full disk needs a mount namespace, which needs root here: %v", err)
	}
	t.Logf("%s", out)
	require.NoError(t, err)
	if strings.Contains(string(out), notMounted) {
		t.Skip(notMounted)
	}
}

// newDisk mounts a disk of this size until the test ends; remount changes the size.
func newDisk(t *testing.T, bytes int64) (disk string, remount func(bytes int64, flags uintptr) error) {
	t.Helper()
	disk = t.TempDir()
	mount := func(bytes int64, flags uintptr) error {
		return syscall.Mount("none", disk, "tmpfs", flags, fmt.Sprintf("size=%d", bytes))
	}
	if err := errors.Join(syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""), mount(bytes, 0)); err != nil {
		t.Skipf("%s: %v", notMounted, err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(disk, syscall.MNT_DETACH)) })
	return disk, mount
}

// fullDiskInComet: the disk is full when the application's database is complete, or fills up while
// CometBFT's databases are written.
func fullDiskInComet(t *testing.T, backend dbm.BackendType) {
	disk, mount := newDisk(t, 256<<20)
	b := newBefore(t, backend)
	for _, step := range []string{"blockstore begun", "state begun"} {
		home := filepath.Join(disk, strings.Fields(step)[0])
		require.NoError(t, os.CopyFS(home, os.DirFS(b.home)))
		out, killed, err := child(t, home, "fill "+step, b.join(home, b.address)...)
		require.Error(t, err, "%s", out)
		require.False(t, killed)
		requireInvisible(t, home)
		require.Contains(t, out, "no space left on device")
		require.Contains(t, out, "The disk of "+dataDir(home)+" is full. The application's database is complete")
		require.Contains(t, out, "Make space and run the same command again: it resumes")

		out, killed, err = child(t, home, "", b.join(home, b.address)...)
		require.Error(t, err, "%s", out)
		require.False(t, killed)
		requireInvisible(t, home)
		require.Contains(t, out, "the disk of "+dataDir(home)+" has too little space. Resuming needs at least 16.8 MB")

		require.NoError(t, os.Remove(filepath.Join(dataDir(home), filler)))
		b.finish(t, home)
	}
	// The space that the error asks for is enough.
	home := filepath.Join(disk, "enough")
	require.NoError(t, os.CopyFS(home, os.DirFS(b.home)))
	var fs syscall.Statfs_t
	require.NoError(t, syscall.Statfs(disk, &fs))
	require.NoError(t, mount(int64(fs.Blocks-fs.Bfree)*fs.Bsize+cometBytes, syscall.MS_REMOUNT))
	b.finish(t, home)
}

func fullDisk(t *testing.T, backend dbm.BackendType) {
	disk, mount := newDisk(t, 1<<20)
	l := newLarge(t, backend)
	home := filepath.Join(disk, "joiner")
	full := func() (chunks, database int64) {
		out, killed, err := child(t, home, "", l.join(home, backend)...)
		require.Error(t, err)
		require.False(t, killed)
		requireInvisible(t, home)
		require.NoDirExists(t, dbDir(home, joiningDB), "what is rebuilt later uses no space")
		require.Contains(t, out, "no space left on device")
		require.Contains(t, out, "The disk of "+dataDir(home)+" is full")
		require.Contains(t, out, "Make space and run the same command again: it resumes")
		m := regexp.MustCompile(`still writes about [0-9.]+ MB: ([0-9.]+) MB of chunks and ([0-9.]+) MB of the database`).FindStringSubmatch(out)
		require.NotNil(t, m, "%s", out)
		t.Log(m[0])
		var n [2]float64
		for i := range n {
			n[i], err = strconv.ParseFloat(m[i+1], 64)
			require.NoError(t, err)
		}
		return int64(n[0] * 1e6), int64(n[1] * 1e6)
	}
	// The disk has space for one of the chunks. It grows until it has space for all of them: the
	// estimates come from the chunks that arrived first, whose leaves may be smaller than others'.
	chunks, database := full()
	require.Positive(t, chunks)
	for rounds := 0; chunks > 0; rounds++ {
		require.Less(t, rounds, 5)
		require.NoError(t, mount(size(dataDir(home))+max(chunks*3/2, 1<<20), syscall.MS_REMOUNT))
		chunks, database = full()
	}
	// It has no space for the database: first for half of it, then for almost all of it.
	kept := size(dataDir(home))
	for _, more := range []int64{l.bytes / 2, l.bytes * 9 / 10} {
		require.NoError(t, mount(kept+more, syscall.MS_REMOUNT))
		chunks, database = full()
		require.Zero(t, chunks)
		require.Greater(t, database, l.bytes)
		require.Less(t, database, 3*l.bytes)
	}
	require.NoError(t, mount(size(dataDir(home))+database+database/10, syscall.MS_REMOUNT))
	out, _, err := child(t, home, "", l.join(home, backend)...)
	require.NoError(t, err, "%s", out)
	require.Contains(t, out, ", 0 of them fetched now")
	require.Equal(t, l.content, l.check(t, home, backend))
}
