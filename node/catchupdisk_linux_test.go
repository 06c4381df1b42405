package node

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/storage/blocks"
)

// served is a validator with a chain of heights blocks, each with so many values that cannot be
// compressed, and the home of a node that is to catch up from it.
func served(t *testing.T, heights, values, valueBytes int) (n *Node, joiner string) {
	t.Helper()
	c := newMadeChain(t, nil)
	random := rand.NewChaCha8([32]byte{1})
	for h := range heights {
		txs := make([]types.Tx, values)
		for i := range txs {
			raw := make([]byte, valueBytes*3/4)
			_, _ = random.Read(raw)
			txs[i] = fmt.Appendf(nil, "key-%d-%d=%s", h, i, base64.RawStdEncoding.EncodeToString(raw))
		}
		require.NoError(t, c.add(c.block(txs, nil, nil)))
	}
	c.close()
	n = start(t, c.home, log.NewNopLogger())
	joiner, _ = nodetest.Home(t, func(o *home.InitOptions) {
		o.GenesisFile = c.conf.CometBFT.GenesisFile()
		edit := o.Edit
		o.Edit = func(comet *cfg.Config, a *config.App) {
			edit(comet, a)
			peer := n.nodeKey.ID()
			comet.P2P.PersistentPeers = fmt.Sprintf("%s@%s", peer, c.conf.CometBFT.P2P.ListenAddress[len("tcp://"):])
			a.Join.Peers = fmt.Sprintf("%s@%s", peer, n.serving.server.Addr())
			a.Storage.MinFreeBytes = 0 // nobody looks before it is full
		}
	})
	return n, joiner
}

// endsOnAFullDisk starts a node in a process of its own, which must end because its disk is
// full, after block to at most. It returns how far it came.
func endsOnAFullDisk(t *testing.T, home, how string, to int64) (height int64) {
	t.Helper()
	process := exec.CommandContext(t.Context(), os.Args[0])
	process.Env = append(os.Environ(), failingHome+"="+home, failingHow+"="+how)
	var output bytes.Buffer
	process.Stdout, process.Stderr = &output, &output
	_, err := process.StdinPipe() // open until the test ends, however it does
	require.NoError(t, err)
	var status *exec.ExitError
	require.ErrorAs(t, process.Run(), &status, output.String())
	require.Equal(t, disk.ExitFull, status.ExitCode(), output.String())
	require.NotContains(t, output.String(), "goroutine ", "a panic is no reason")
	c := nodetest.Load(t, home)
	databases := comet.NewDatabases(c.CometBFT, log.NewNopLogger(), blocks.Options{Logger: log.NewNopLogger()})
	have, err := databases.Open()
	require.NoError(t, err)
	require.NoError(t, databases.Close())
	t.Logf("it ended after block %d: %s", have.Block, strings.TrimSpace(output.String()))
	require.LessOrEqual(t, have.Block, to)
	return have.Block
}

// resumes requires that a node continues to catch up, and has all blocks then.
func resumes(t *testing.T, n *Node, home string) {
	t.Helper()
	logs := new(nodetest.LogBuffer)
	j := start(t, home, logs.Logger(t), eager)
	require.True(t, logs.Has("Caught up by blocks over the transport"))
	follows(t, j, n)
	require.Equal(t, int64(1), j.Comet().BlockStore().Base())
}

// A table that cannot be written ends a node that catches up with the reason, and the next start
// continues.
func TestCatchUpOnAFailingDisk(t *testing.T) {
	for _, zone := range []string{"blocks: ", "state: "} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel() // it waits for blocks
			n, joiner := served(t, 60, 4, 8<<10)
			endsOnAFullDisk(t, joiner, zone+atOnce+writeEDQUOT, 60)
			resumes(t, n, joiner)
		})
	}
}

// catchingMounts is set in the process that has a mount namespace of its own.
const catchingMounts = "STARLING_TEST_CATCHING_MOUNTS"

// A disk that becomes full ends a node that catches up. With space it continues.
//
// The disk is a tmpfs in a mount namespace of its own, so that nothing of it outlives the test.
func TestCatchUpOnAFullDisk(t *testing.T) {
	if os.Getenv(catchingMounts) != "" {
		catchUpOnAFullDisk(t)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCatchUpOnAFullDisk$", "-test.v", "-test.timeout=8m")
	cmd.Env = append(os.Environ(), catchingMounts+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
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

func catchUpOnAFullDisk(t *testing.T) {
	n, joiner := served(t, 48, 16, 64<<10)
	data := filepath.Join(joiner, "data")
	mount := func(flags uintptr, size string) error { return syscall.Mount("none", data, "tmpfs", flags, size) }
	signed, err := os.ReadFile(nodetest.Load(t, joiner).CometBFT.PrivValidatorStateFile())
	require.NoError(t, err)
	if err := errors.Join(syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""), mount(0, "size=72m")); err != nil {
		t.Skipf("%s: %v", notMounted, err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(data, syscall.MNT_DETACH)) })
	require.NoError(t, os.WriteFile(nodetest.Load(t, joiner).CometBFT.PrivValidatorStateFile(), signed, 0o600))
	require.Positive(t, endsOnAFullDisk(t, joiner, "state: "+nothing, 46))
	require.NoError(t, mount(syscall.MS_REMOUNT, "size=1g"))
	resumes(t, n, joiner)
}
