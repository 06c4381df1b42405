package node

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/smalldisk"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/storage/blocks"
)

// served is a validator with a chain of blocks with incompressible values, and the home of a node
// that will catch up from it.
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
			a.Join.Peers = fmt.Sprintf("%s@%s", peer, n.server.Load().Addr())
			a.Disk.MinFreeBytes = 0 // no check before the disk is full
		}
	})
	return n, joiner
}

// endsOnAFullDisk starts a node in a separate process, which must end because its disk is full. It
// returns the height reached.
func endsOnAFullDisk(t *testing.T, home, how string) (height int64) {
	t.Helper()
	process := exec.CommandContext(t.Context(), os.Args[0])
	process.Env = append(os.Environ(), failingHome+"="+home, failingHow+"="+how)
	var output bytes.Buffer
	process.Stdout, process.Stderr = &output, &output
	_, err := process.StdinPipe() // open until the test ends, in any way
	require.NoError(t, err)
	var status *exec.ExitError
	require.ErrorAs(t, process.Run(), &status, output.String())
	require.Equal(t, disk.ExitFull, status.ExitCode(), output.String())
	require.NotContains(t, output.String(), "goroutine ", "the process panicked")
	c := nodetest.Load(t, home)
	databases := comet.NewDatabases(c.CometBFT, log.NewNopLogger(), blocks.Options{Logger: log.NewNopLogger()})
	have, err := databases.Open()
	require.NoError(t, err)
	require.NoError(t, databases.Close())
	t.Logf("it ended after block %d: %s", have.Block, strings.TrimSpace(output.String()))
	return have.Block
}

// resumes requires that a node continues to catch up, and then has all blocks.
func resumes(t *testing.T, n *Node, home string) {
	t.Helper()
	logs := new(nodetest.LogBuffer)
	j := start(t, home, logs.Logger(t), eager)
	require.True(t, logs.Has("Caught up by blocks over the transport"))
	follows(t, j, n)
	require.Equal(t, int64(1), j.Comet().BlockStore().Base())
}

// If a table cannot be written, a node that catches up ends with the reason, and the next start
// continues.
func TestCatchUpOnAFailingDisk(t *testing.T) {
	for _, zone := range []string{"blocks: ", "state: "} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel() // it waits for blocks
			n, joiner := served(t, 60, 4, 8<<10)
			// How many blocks it executes before it ends depends on the machine.
			endsOnAFullDisk(t, joiner, zone+atOnce+writeEDQUOT)
			resumes(t, n, joiner)
		})
	}
}

// A full disk ends a node that catches up. With free space it continues.
//
// The disk is a tmpfs in a separate mount namespace, which does not outlive the test.
func TestCatchUpOnAFullDisk(t *testing.T) {
	smalldisk.Alone(t, func() { catchUpOnAFullDisk(t) })
}

func catchUpOnAFullDisk(t *testing.T) {
	n, joiner := served(t, 48, 16, 64<<10)
	data := filepath.Join(joiner, "data")
	signed, err := os.ReadFile(nodetest.Load(t, joiner).CometBFT.PrivValidatorStateFile())
	require.NoError(t, err)
	smalldisk.Small(t, data, 72<<20)
	require.NoError(t, os.WriteFile(nodetest.Load(t, joiner).CometBFT.PrivValidatorStateFile(), signed, 0o600))
	height := endsOnAFullDisk(t, joiner, "state: "+nothing)
	require.Positive(t, height)
	require.LessOrEqual(t, height, int64(46), "the disk has no space for more")
	require.NoError(t, smalldisk.Resize(data, 1<<30))
	resumes(t, n, joiner)
}
