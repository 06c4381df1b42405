package node

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/storage/blocks"
)

// catchingHome makes the test program a node that catches up on that home. It is killed at step
// catchingStep: a write to the block zone, its sync, or a call of the application about a block,
// counted from 1. If it reaches block catchingBlocks first, it exits with status joinedStatus.
const (
	catchingHome   = "STARLING_TEST_CATCHING_HOME"
	catchingStep   = "STARLING_TEST_CATCHING_STEP"
	catchingBlocks = 6
)

// stepsOfBlocks counts a step before and after each execution and each commit of a block.
type stepsOfBlocks struct {
	abci.Application
	step   func()
	height int64
	over   func()
}

func (s *stepsOfBlocks) FinalizeBlock(ctx context.Context, req *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	s.step()
	res, err := s.Application.FinalizeBlock(ctx, req)
	s.step()
	s.height = req.Height
	return res, err
}

func (s *stepsOfBlocks) Commit(ctx context.Context, req *abci.RequestCommit) (*abci.ResponseCommit, error) {
	s.step()
	res, err := s.Application.Commit(ctx, req)
	s.step()
	if s.height >= catchingBlocks {
		s.over()
	}
	return res, err
}

func catchUpUntilKilled(home, at string) error {
	last, err := strconv.Atoi(at)
	if err != nil {
		return err
	}
	conf, err := config.Load(home, viper.New())
	if err != nil {
		return err
	}
	var steps atomic.Int64
	var began atomic.Bool
	step := func() {
		if !began.Load() || steps.Add(1) != int64(last) {
			return
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	writes := errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpCreate, errorfs.OpRename:
			step()
		default:
		}
		return nil
	})
	over := func() {
		fmt.Print(steps.Load())
		os.Exit(joinedStatus)
	}
	n, err := New(context.Background(), conf, log.NewNopLogger(), eager,
		WithApp(func(a abci.Application) abci.Application {
			return &stepsOfBlocks{Application: a, step: step, over: over}
		}),
		func(o *options) {
			o.faults.blocks = func(o *blocks.Options) { o.FS = errorfs.Wrap(vfs.Default, writes) }
		})
	if err != nil {
		return err
	}
	began.Store(true)
	if err := n.Start(context.Background()); err != nil {
		return err
	}
	return <-n.Failed()
}

// catchUpAndDie catches up in a separate process, which is killed at a step.
func catchUpAndDie(t *testing.T, home string, step int) (steps int) {
	t.Helper()
	return runAndDie(t, catchingHome+"="+home, fmt.Sprint(catchingStep, "=", step))
}

// A node that catches up is killed at each write, each sync and each call of the application in its
// first blocks: the next start continues, with the same app hashes.
func TestCatchUpByBlocksIsKilled(t *testing.T) {
	t.Parallel() // it waits for blocks
	dir, n, first := longChain(t, 30)
	steps := catchUpAndDie(t, follower(t, dir, n, first), math.MaxInt)
	require.Greater(t, steps, 4*catchingBlocks)
	every := 1
	if testing.Short() {
		every = steps / 5
	}
	for step := 1; step <= steps; step += every {
		home := follower(t, dir, n, first)
		if catchUpAndDie(t, home, step) > 0 {
			continue // it took fewer steps than the first run
		}
		logs := new(nodetest.LogBuffer)
		j := start(t, home, logs.Logger(t), eager)
		require.True(t, logs.Has("Caught up by blocks over the transport"), "step %d", step)
		nodetest.SameHashes(t, j.Application(), n.Comet)
		require.Equal(t, int64(1), j.Comet().BlockStore().Base())
		require.NoError(t, j.Stop())
	}
}
