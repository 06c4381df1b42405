package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/smalldisk"
)

const (
	statusDiskFull = 5

	smallDisk, largeDisk = 192 << 20, 512 << 20
	minFree              = 48 << 20
)

// The disk of a node becomes full. The node ends with its own exit status and a message with the
// remedy. Once there is space it resumes, and has all committed data.
// The disk is a tmpfs in a separate mount namespace, so that nothing of it outlives the test.
func TestFullDisk(t *testing.T) {
	smalldisk.Alone(t, func() {
		t.Run("watched", func(t *testing.T) { fullDisk(t, minFree, "min_free_bytes") })
		// No free space is required: the first write that fails ends the node.
		t.Run("not watched", func(t *testing.T) { fullDisk(t, 0, "no space left on device") })
	})
}

func fullDisk(t *testing.T, minFree int, message string) {
	disk := t.TempDir()
	smalldisk.Small(t, disk, smallDisk)
	_, ctx := processes(t, time.Minute)
	dir := filepath.Join(disk, "home")
	home, err := runner.NewHome(ctx, "node", dir, starlingd, "init", "node", "--chain-id", "full", "--open", "--home", dir)
	require.NoError(t, err)
	require.NoError(t, home.Configure(func(c *cfg.Config) {
		c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval = 10*time.Millisecond, 0
	}))
	home.Release()
	logs := filepath.Join(t.TempDir(), "node.log") // on another disk

	node := startOnDisk(t, home, logs, minFree)
	committed := fill(t, ctx, home, node.Done())
	requireDiskFull(t, node, disk, message)
	require.NotEmpty(t, committed)
	t.Logf("ended after %d transactions", len(committed))
	if minFree > 0 { // cleanly, while there is still space
		require.Contains(t, strings.Join(runner.Tail(logs, 100), "\n"), "Starling node stopped")
		again := startOnDisk(t, home, logs, minFree)
		requireDiskFull(t, again, disk, message)
	}

	require.NoError(t, smalldisk.Resize(disk, largeDisk))
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

// startOnDisk starts a node under a separate supervisor, since this node has to end.
func startOnDisk(t *testing.T, home *runner.Home, logs string, minFree int) *runner.Process {
	t.Helper()
	p, _ := processes(t, time.Minute)
	node, err := p.Start(runner.Spec{
		Name: "node", Path: starlingd, Log: logs, Ends: true,
		Args: []string{"start", "--home", home.Dir, "--disk.min_free_bytes", fmt.Sprint(minFree), "--log_level", "info"},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(strings.Join(runner.Tail(logs, 40), "\n"))
		}
	})
	return node
}

// fill writes until the node ends, and returns the values that the node confirmed.
func fill(t *testing.T, parent context.Context, home *runner.Home, ended <-chan struct{}) map[string][]byte {
	t.Helper()
	ctx, cancel := context.WithCancel(parent)
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
			// a text transaction must not contain "=" or control characters
			value[j] = 'a' + byte(random.IntN(26))
		}
		if _, err := c.PutText(ctx, []byte(key), value); err != nil {
			select {
			case <-ended:
				return committed
			case <-parent.Done():
				t.Fatal(err)
			}
		}
		committed[key] = value
	}
}

// requireDiskFull waits for the end of the node.
func requireDiskFull(t *testing.T, node *runner.Process, disk, message string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
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
