package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/runner"
)

const (
	statusDiskFull = 5

	// ownMounts is set in the process that has a mount namespace of its own.
	ownMounts = "STARLING_TEST_OWN_MOUNTS"

	smallDisk, largeDisk = "size=192m", "size=512m"
	minFree              = 48 << 20
)

// A disk becomes full under a node, which ends with its own exit status and says what to do. With
// space it resumes, and everything that was committed is there.
//
// The disk is a tmpfs in a mount namespace of its own, so that nothing of it outlives the test.
func TestFullDisk(t *testing.T) {
	if os.Getenv(ownMounts) != "" {
		t.Run("watched", func(t *testing.T) { fullDisk(t, minFree, "min_free_bytes") })
		// Nobody looks: whatever first fails to write ends the node.
		t.Run("not watched", func(t *testing.T) { fullDisk(t, 0, "no space left on device") })
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFullDisk$", "-test.v", "-test.timeout=3m")
	cmd.Env = append(os.Environ(), ownMounts+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
	if os.Geteuid() != 0 { // then root of a user namespace, where the system lets us
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if len(out) == 0 && errors.Is(err, syscall.EPERM) {
		t.Skipf("NOT RUN: a full disk needs a mount namespace, which takes root here: %v", err)
	}
	t.Logf("%s", out)
	require.NoError(t, err)
	if strings.Contains(string(out), notMounted) {
		t.Skip(notMounted)
	}
}

const notMounted = "NOT RUN: a tmpfs cannot be mounted here"

func fullDisk(t *testing.T, minFree int, message string) {
	disk := t.TempDir()
	mount := func(options string) error {
		return syscall.Mount("none", disk, "tmpfs", mountFlags(options), strings.TrimPrefix(options, "remount,"))
	}
	if err := errors.Join(syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""), mount(smallDisk)); err != nil {
		t.Skipf("%s: %v", notMounted, err)
	}
	defer func() { require.NoError(t, syscall.Unmount(disk, syscall.MNT_DETACH)) }()
	_, ctx := processes(t, time.Minute)
	dir := filepath.Join(disk, "home")
	home, err := runner.NewHome(ctx, "node", dir, starlingd, "init", "node", "--chain-id", "full", "--open", "--home", dir)
	require.NoError(t, err)
	require.NoError(t, home.Configure(func(c *cfg.Config) { c.Consensus.TimeoutCommit = 10 * time.Millisecond }))
	home.Release()
	logs := filepath.Join(t.TempDir(), "node.log") // on another disk

	node := startOnDisk(t, home, logs, minFree)
	committed := fill(t, ctx, home, node.Done())
	requireDiskFull(t, node, disk, message)
	require.NotEmpty(t, committed)
	t.Logf("ended after %d transactions", len(committed))
	if minFree > 0 { // cleanly, and not before there is space
		require.Contains(t, strings.Join(runner.Tail(logs, 100), "\n"), "Starling node stopped")
		again := startOnDisk(t, home, logs, minFree)
		requireDiskFull(t, again, disk, message)
	}

	require.NoError(t, mount("remount,"+largeDisk))
	node = startOnDisk(t, home, logs, minFree)
	await(t, ctx, home, 1)
	c, err := client.Dial(ctx, []string{home.RPC()}, client.WithChainID("full"))
	require.NoError(t, err)
	written, err := c.PutText(ctx, []byte("one"), []byte("more"))
	require.NoError(t, err)
	for key, value := range committed {
		got, err := c.Get(ctx, []byte(key))
		require.NoError(t, err)
		require.True(t, bytes.Equal(value, got.Value), "%s, %d bytes, has %d", key, len(value), len(got.Value))
		require.GreaterOrEqual(t, got.State.Height, written.Height-1)
	}
	require.NoError(t, node.Stop(20*time.Second))
	require.NoError(t, node.ExitError())
}

func mountFlags(options string) uintptr {
	if strings.HasPrefix(options, "remount,") {
		return syscall.MS_REMOUNT
	}
	return 0
}

// startOnDisk starts a node under a supervisor of its own: this one is meant to end.
func startOnDisk(t *testing.T, home *runner.Home, logs string, minFree int) *runner.Process {
	t.Helper()
	p, _ := processes(t, time.Minute)
	node, err := p.Start(runner.Spec{
		Name: "node", Path: starlingd, Log: logs, Ends: true,
		Args: []string{"start", "--home", home.Dir, "--storage.min_free_bytes", fmt.Sprint(minFree), "--log_level", "info"},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(strings.Join(runner.Tail(logs, 40), "\n"))
		}
	})
	return node
}

// fill writes until the node ends, and returns what it confirmed.
func fill(t *testing.T, ctx context.Context, home *runner.Home, ended <-chan struct{}) map[string][]byte {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, cancel)
	go func() {
		select {
		case <-ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	await(t, ctx, home, 1)
	c, err := client.Dial(ctx, []string{home.RPC()}, client.WithChainID("full"))
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(1, 1))
	committed := map[string][]byte{}
	for i := 0; ; i++ {
		key, value := fmt.Sprintf("key-%04d", i), make([]byte, 600<<10)
		for j := range value {
			// a text transaction carries no "=" or control characters
			value[j] = 'a' + byte(random.IntN(26))
		}
		if _, err := c.PutText(ctx, []byte(key), value); err != nil {
			<-ended
			return committed
		}
		committed[key] = value
	}
}

// requireDiskFull waits for the end of the node.
func requireDiskFull(t *testing.T, node *runner.Process, disk, message string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-node.Done():
	case <-ctx.Done():
		t.Fatal("the node continues on a full disk")
	}
	var exit *exec.ExitError
	require.ErrorAs(t, node.ExitError(), &exit)
	said := strings.Join(runner.Tail(node.Log(), 6), "\n")
	require.Equal(t, statusDiskFull, exit.ExitCode(), said)
	require.Contains(t, said, message)
	require.Contains(t, said, filepath.Join(disk, "home", "data"))
	require.Regexp(t, "make (space|room) on the disk", said)
}
