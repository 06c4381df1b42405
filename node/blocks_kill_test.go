package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
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
// counted from 1. If it reaches block catchingBlocks first, it exits with status joinedStatus. With
// catchingPower, the seed of a random generator, the power fails instead: of what either zone has
// not synced, only a random part reaches the home. The state of each block is durable at the end of
// its commit then, before CometBFT stores it.
const (
	catchingHome   = "STARLING_TEST_CATCHING_HOME"
	catchingStep   = "STARLING_TEST_CATCHING_STEP"
	catchingPower  = "STARLING_TEST_CATCHING_POWER"
	catchingBlocks = 6
)

// stepsOfBlocks counts a step before and after each execution and each commit of a block.
type stepsOfBlocks struct {
	abci.Application
	step   func()
	height int64
	over   func()
	flush  func() error // called after each commit
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
	err = errors.Join(err, s.flush())
	s.step()
	if s.height >= catchingBlocks {
		s.over()
	}
	return res, err
}

// volatile is the disk of a node whose power fails.
type volatile struct {
	*vfs.MemFS
	links sync.Mutex
	rng   *rand.Rand
}

// save writes to the home what is left after the power failure.
func (v *volatile) save(home string) error {
	v.links.Lock()
	left := v.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: v.rng.IntN(101), RNG: v.rng})
	v.links.Unlock()
	var errs []error
	data := filepath.Join(home, "data")
	for _, folder := range []string{config.BlocksDir(data), config.StateDir(data)} {
		if _, err := left.Stat(folder); err != nil {
			continue
		}
		_, err := vfs.Clone(left, vfs.Default, folder, folder, vfs.CloneSync)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func catchUpUntilKilled(home, at, power string) error {
	last, err := strconv.Atoi(at)
	if err != nil {
		return err
	}
	conf, err := config.Load(home, viper.New())
	if err != nil {
		return err
	}
	kill := func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
	zones := faults{state: vfs.Default}
	if power != "" {
		seed, err := strconv.ParseUint(power, 10, 64)
		if err != nil {
			return err
		}
		v := &volatile{MemFS: vfs.NewCrashableMem(), rng: rand.New(rand.NewPCG(seed, 0))}
		zones.state = lockedLinks{v.MemFS, &v.links}
		end := kill
		kill = func() {
			if err := v.save(home); err != nil {
				fmt.Fprintln(os.Stderr, "the home after a power failure:", err)
				os.Exit(1)
			}
			end()
		}
	}
	var steps atomic.Int64
	var began atomic.Bool
	step := func() {
		if !began.Load() {
			return
		}
		n := steps.Add(1)
		if n < int64(last) {
			return
		}
		if n == int64(last) {
			kill()
		}
		select {} // nothing changes after the kill
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
	var n *Node
	flush := func() error { return nil }
	if power != "" {
		flush = func() error { return n.application.local.state.Flush() }
	}
	n, err = New(context.Background(), conf, log.NewNopLogger(), eager,
		WithApp(func(a abci.Application) abci.Application {
			return &stepsOfBlocks{Application: a, step: step, over: over, flush: flush}
		}),
		func(o *options) {
			disk := errorfs.Wrap(zones.state, writes)
			o.faults.blocks = func(o *blocks.Options) { o.FS = disk }
			if power != "" {
				o.faults.state = disk
			}
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
func catchUpAndDie(t *testing.T, home string, step int, more ...string) (steps int) {
	t.Helper()
	return runAndDie(t, append(more, catchingHome+"="+home, fmt.Sprint(catchingStep, "=", step))...)
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
		requireCatchesUp(t, n, home, "step %d", step)
	}
}

// The same with power failures, at instants and with remains that are drawn: neither zone is ahead
// of what the next start needs from the other one.
func TestCatchUpByBlocksLosesPower(t *testing.T) {
	t.Parallel() // it waits for blocks
	dir, n, first := longChain(t, 30)
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	power := func() string { return fmt.Sprint(catchingPower, "=", rng.Uint64()) }
	steps := catchUpAndDie(t, follower(t, dir, n, first), math.MaxInt, power())
	cuts := 12
	if testing.Short() {
		cuts = 3
	}
	for range cuts {
		home, step := follower(t, dir, n, first), 1+rng.IntN(steps)
		if catchUpAndDie(t, home, step, power()) == 0 {
			requireCatchesUp(t, n, home, "seed %d, step %d", seed, step)
		}
	}
}

// requireCatchesUp starts a node on a home, which must catch up with n.
func requireCatchesUp(t *testing.T, n *Node, home string, which ...any) {
	t.Helper()
	logs := new(nodetest.LogBuffer)
	j := start(t, home, logs.Logger(t), eager)
	require.True(t, logs.Has("Caught up by blocks over the transport"), which...)
	nodetest.SameHashes(t, j.Application(), n.Comet)
	require.Equal(t, int64(1), j.Comet().BlockStore().Base(), which...)
	require.NoError(t, j.Stop())
}
