package node

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/storage/blocks"
)

// joiningHome makes the test program a node that joins on that home, and is killed at step
// joiningStep: a write to the block zone, or its sync, counted from 1 once the upper tree is
// complete. If it reaches the commit of its first block before, it exits with status joinedStatus.
const (
	joiningHome  = "STARLING_TEST_JOINING_HOME"
	joiningStep  = "STARLING_TEST_JOINING_STEP"
	joinedStatus = 77
)

// endsAtCommit ends the process before the first commit, and prints the number of steps.
type endsAtCommit struct {
	abci.Application
	steps *atomic.Int64
}

func (e endsAtCommit) Commit(context.Context, *abci.RequestCommit) (*abci.ResponseCommit, error) {
	fmt.Print(e.steps.Load())
	os.Exit(joinedStatus)
	return nil, nil
}

func joinUntilKilled(home, at string) error {
	last, err := strconv.Atoi(at)
	if err != nil {
		return err
	}
	conf, err := config.Load(home, viper.New())
	if err != nil {
		return err
	}
	var (
		node  atomic.Pointer[Node]
		steps atomic.Int64
	)
	step := errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpCreate, errorfs.OpRename:
		default:
			return nil
		}
		if n := node.Load(); n == nil || n.application.joined.Load() == 0 || steps.Add(1) != int64(last) {
			return nil
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	})
	n, err := New(context.Background(), conf, log.NewNopLogger(),
		WithApp(func(a abci.Application) abci.Application { return endsAtCommit{a, &steps} }),
		func(o *options) {
			o.faults.blocks = func(o *blocks.Options) { o.FS = errorfs.Wrap(vfs.Default, step) }
		})
	if err != nil {
		return err
	}
	node.Store(n)
	if err := n.Start(context.Background()); err != nil {
		return err
	}
	return <-n.Failed()
}

// joinAndDie joins in a separate process, which is killed at a step.
func joinAndDie(t *testing.T, home string, step int) (steps int) {
	t.Helper()
	return runAndDie(t, joiningHome+"="+home, fmt.Sprint(joiningStep, "=", step))
}

// runAndDie runs this test binary with variables that make it a node which is killed at a step.
// steps is the number of steps if it reached the last one before, otherwise 0.
func runAndDie(t *testing.T, variables ...string) (steps int) {
	t.Helper()
	process := exec.CommandContext(t.Context(), os.Args[0])
	process.Env = append(os.Environ(), variables...)
	var output, errors bytes.Buffer
	process.Stdout, process.Stderr = &output, &errors
	_, err := process.StdinPipe() // open until the test ends, in any way
	require.NoError(t, err)
	var status *exec.ExitError
	require.ErrorAs(t, process.Run(), &status, errors.String())
	if status.ExitCode() == joinedStatus {
		steps, err = strconv.Atoi(output.String())
		require.NoError(t, err)
		return steps
	}
	signaled, is := status.Sys().(syscall.WaitStatus)
	require.True(t, is && signaled.Signaled() && signaled.Signal() == syscall.SIGKILL, "it ended by itself: %v: %s", status, &errors)
	return 0
}

// A joiner is killed at each write and each sync from the upper tree to its first commit: the next
// start continues, or joins again, and follows the head.
func TestShardedJoinIsKilled(t *testing.T) {
	t.Parallel() // it waits for blocks
	w := newShardedNetwork(t, []string{"key-10"}, [][]int{{0}, {0}})
	w.start(0)
	n := start(t, w.validator, log.NewNopLogger())
	client := nodetest.RPC(t, w.validator)
	for i := range 20 {
		nodetest.Put(t, client, fmt.Sprintf("key-%02d", i), fmt.Sprint("value ", i))
	}
	var anew, resumed atomic.Int64
	restart := func(t *testing.T, joiner string) {
		t.Helper()
		logs := new(nodetest.LogBuffer)
		j := start(t, joiner, logs.Logger(t))
		follows(t, j, n)
		if logs.Has("Joining: fetched the upper tree from the storage nodes") {
			anew.Add(1)
		} else {
			require.True(t, logs.Has("Fetched the upper tree from the storage nodes"))
			resumed.Add(1)
		}
		require.Greater(t, j.Comet().BlockStore().Base(), int64(1), "blocks were replayed from the first one")
		for i := range 20 {
			require.Equal(t, fmt.Sprint("value ", i), nodetest.Get(t, nodetest.RPC(t, joiner), fmt.Sprintf("key-%02d", i)))
		}
		require.NoError(t, j.Stop())
	}
	first := w.shardedJoiner(n)
	steps := joinAndDie(t, first, math.MaxInt)
	require.Greater(t, steps, 10)
	every := 1
	if testing.Short() {
		every = steps / 4
	}
	t.Run("step", func(t *testing.T) {
		// On a busy machine a join retries, and takes more steps than the first one: then all of
		// the kills precede CometBFT's state. The end of the first join never does.
		t.Run("commit", func(t *testing.T) {
			t.Parallel()
			restart(t, first)
		})
		for step := 1; step <= steps; step += every {
			joiner := w.shardedJoiner(n)
			t.Run(fmt.Sprint(step), func(t *testing.T) {
				t.Parallel()
				if joinAndDie(t, joiner, step) > 0 {
					return // it took fewer steps than the first run
				}
				restart(t, joiner)
			})
		}
	})
	t.Logf("of %d steps, one in %d: %d starts joined again, %d continued", steps, every, anew.Load(), resumed.Load())
	require.Positive(t, anew.Load(), "killed before CometBFT had the state")
	require.Positive(t, resumed.Load(), "killed after that")
}

// A joiner is killed when CometBFT has the state but no block, and restarts when the storage nodes
// no longer serve that height: it ends with the command that joins again from the header that it
// had proved.
func TestShardedJoinIsKilledAndAway(t *testing.T) {
	t.Parallel() // it waits for blocks
	w := newShardedNetwork(t, []string{"key-10"}, [][]int{{0}, {0}})
	conf := nodetest.Load(t, w.storage[0])
	conf.App.StorageNode.ServeHeights = 10
	w.startWith(0, conf)
	n := start(t, w.validator, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, w.validator), "a", "1")
	var joiner string
	var have int64
	for step := 1; have == 0; step++ {
		joiner = w.shardedJoiner(n)
		require.Zero(t, joinAndDie(t, joiner, step), "no step is between the state and the first block")
		have = stateWithoutBlock(t, joiner)
	}
	nodetest.Until(t, "storage nodes that have given the height up", func() bool {
		return n.Application().backing.(*sharded).store.Durable() > have+20
	})
	_, err := New(t.Context(), nodetest.Load(t, joiner), log.NewNopLogger())
	require.ErrorIs(t, err, ErrAway)
	hash := n.Comet().BlockStore().LoadBlockMeta(have).BlockID.Hash
	require.ErrorContains(t, err, fmt.Sprintf("--trust-height %d --trust-hash %s", have, strings.ToUpper(hash.String())))
}

// stateWithoutBlock returns the height of CometBFT's state in a home without blocks, 0 if the node
// cannot continue from it.
func stateWithoutBlock(t *testing.T, home string) int64 {
	t.Helper()
	d := comet.NewDatabases(nodetest.Load(t, home).CometBFT, log.NewNopLogger(), blocks.Options{})
	have, err := d.Open()
	require.NoError(t, err)
	require.NoError(t, d.Close())
	if have.None() || have.Block > 0 {
		return 0
	}
	return have.State
}
