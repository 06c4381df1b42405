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
// counted from 1. If it reaches block catchingBlocks first, it exits with status joinedStatus.
//
// With catchingPower, the seed of a random generator, the power fails instead. The node's databases
// are in memory then, all their writes count as steps, and only a random part of what was not
// synced reaches the home. The state of each block is durable at the end of its commit, before
// CometBFT stores its own. With the step afterFlush, the power fails there, and nothing more
// reaches the home.
const (
	catchingHome   = "STARLING_TEST_CATCHING_HOME"
	catchingStep   = "STARLING_TEST_CATCHING_STEP"
	catchingPower  = "STARLING_TEST_CATCHING_POWER"
	catchingBlocks = 6
	afterFlush     = "after a flush"
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

// save writes to the home what is left after the power failure, with a share of what was not
// synced, in percent.
func (v *volatile) save(home string, percent int) error {
	v.links.Lock()
	left := v.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: v.rng})
	v.links.Unlock()
	data := filepath.Join(home, "data")
	for _, folder := range []string{config.BlocksDir(data), config.StateDir(data)} {
		if _, err := left.Stat(folder); err != nil {
			return err
		}
	}
	_, err := vfs.Clone(left, vfs.Default, data, data, vfs.CloneSync)
	return err
}

func catchUpUntilKilled(home, at, power string) error {
	last := math.MaxInt
	if at != afterFlush {
		var err error
		if last, err = strconv.Atoi(at); err != nil {
			return err
		}
	}
	conf, err := config.Load(home, viper.New())
	if err != nil {
		return err
	}
	kill := func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
	base := vfs.Default
	if power != "" {
		seed, err := strconv.ParseUint(power, 10, 64)
		if err != nil {
			return err
		}
		v := &volatile{MemFS: vfs.NewCrashableMem(), rng: rand.New(rand.NewPCG(seed, 0))}
		base = lockedLinks{v.MemFS, &v.links}
		percent := v.rng.IntN(101)
		if at == afterFlush {
			percent = 0
		}
		end := kill
		kill = func() {
			if err := v.save(home, percent); err != nil {
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
		flush = func() error {
			if err := n.application.local.state.Flush(); err != nil || at != afterFlush || n.application.Height() < 3 {
				return err
			}
			kill()
			select {}
		}
	}
	n, err = New(context.Background(), conf, log.NewNopLogger(), eager,
		WithApp(func(a abci.Application) abci.Application {
			return &stepsOfBlocks{Application: a, step: step, over: over, flush: flush}
		}),
		func(o *options) {
			disk := errorfs.Wrap(base, writes)
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
func catchUpAndDie(t *testing.T, home string, step any, more ...string) (steps int) {
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
		t.Log("killed at step", step)
		requireCatchesUp(t, n, home)
	}
}

// The same with power failures, after a flush and at instants that are drawn: neither zone is ahead
// of what the next start needs from the other one.
func TestCatchUpByBlocksLosesPower(t *testing.T) {
	t.Parallel() // it waits for blocks
	dir, n, first := longChain(t, 30)
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	power := func() string { return fmt.Sprint(catchingPower, "=", rng.Uint64()) }
	steps := catchUpAndDie(t, follower(t, dir, n, first), math.MaxInt, power())
	cuts := 12
	if testing.Short() {
		cuts = 3
	}
	at := []any{afterFlush}
	for range cuts {
		at = append(at, 1+rng.IntN(steps))
	}
	for _, step := range at {
		home := follower(t, dir, n, first)
		if catchUpAndDie(t, home, step, power()) > 0 {
			continue // it took fewer steps than the first run
		}
		t.Log("power failure at step", step)
		requireCatchesUp(t, n, home)
	}
}

// requireCatchesUp starts a node on a home, which must catch up with n.
func requireCatchesUp(t *testing.T, n *Node, home string) {
	t.Helper()
	logs := new(nodetest.LogBuffer)
	j := start(t, home, logs.Logger(t), eager)
	require.True(t, logs.Has("Caught up by blocks over the transport"))
	nodetest.SameHashes(t, j.Application(), n.Comet)
	require.Equal(t, int64(1), j.Comet().BlockStore().Base())
	require.NoError(t, j.Stop())
}
