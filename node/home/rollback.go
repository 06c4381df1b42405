package home

import (
	"errors"
	"fmt"
	"slices"

	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage"
)

// ErrCannotRollBack: the state cannot go back that far: there is neither a snapshot nor a complete
// block history.
var ErrCannotRollBack = errors.New("cannot roll back")

// RollbackPlan describes the effect of a rollback.
type RollbackPlan struct {
	Height  int64  `json:"height"`   // CometBFT's height afterwards
	AppHash string `json:"app_hash"` // app hash of that height, from the next block's header
	// RemovedBlock is the height of the removed block; 0: none.
	RemovedBlock int64 `json:"removed_block"`
	StateBefore  int64 `json:"state_before"` // height of the state on disk
	State        int64 `json:"state"`        // height of the new state on disk; 0: it is empty
	Replayed     int64 `json:"replayed"`     // number of blocks that the next start executes again
	// Sharded: storage nodes keep the state. The next start continues from one of their states at
	// or below Height, and executes the blocks since then; their number is unknown here.
	Sharded bool `json:"sharded,omitempty"`
}

// Empties reports whether the whole state is removed and recomputed from the first block.
func (p RollbackPlan) Empties() bool { return p.StateBefore > 0 && p.State == 0 }

// Rollback takes CometBFT's state from height n to n-1 like `cometbft rollback`
// (state/rollback.go), and removes block n if hard. The state on disk must then be at or below that
// height. If it already is (it lags behind the blocks), it stays. Otherwise it becomes the newest
// stored snapshot after which all blocks exist, or is emptied if all blocks of the chain exist. The
// next start executes the blocks since then.
//
// The state zone is changed first, in one step, and CometBFT's state second:
//
//	                      state zone   CometBFT   a start now
//	before                     n           n      continues
//	killed in between       p < n          n      executes p+1 … n, as without a rollback; or another Rollback,
//	                                              which finds the zone low enough and completes the work
//	done                    p < n         n-1     executes p+1 … n (hard: n-1)
//
// In the other order a kill would leave the zone at n and CometBFT at n-1. CometBFT would then use
// block n's stored results instead of executing it, so that a wrong state stays, or, if hard,
// refuse to start; and a second Rollback would go to n-2. CometBFT's part is first tried without
// writing, before anything is changed. (CometBFT stores the state and then removes the block:
// another hard Rollback repairs a kill in between.)
func Rollback(config *config.Config, hard bool, confirm func(RollbackPlan) error) (plan RollbackPlan, err error) {
	d, err := openOffline(config, false)
	if err != nil {
		return plan, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if d.blocks == nil {
		return plan, fmt.Errorf("%w: %q does not exist (a separate CometBFT process has its blocks elsewhere: roll that one back)", ErrNoData, blocksPath(config.CometBFT))
	}
	if plan, err = d.planRollback(hard); err != nil {
		return plan, err
	}
	if err := confirm(plan); err != nil {
		return plan, err
	}
	if plan.State != plan.StateBefore {
		if err := d.rollbackState(plan); err != nil {
			return plan, err
		}
	}
	if _, _, err := sm.Rollback(d.blocks, d.comet, hard); err != nil {
		return plan, fmt.Errorf("CometBFT's state: %w (the state on disk is now at height %d: start the node, or roll back again)", err, plan.State)
	}
	return plan, nil
}

func (d *offline) planRollback(hard bool) (plan RollbackPlan, err error) {
	height, hash, err := sm.Rollback(keptBlocks{d.blocks}, keptState{d.comet}, hard)
	if err != nil {
		return plan, fmt.Errorf("CometBFT's state: %w", err)
	}
	last := d.blocks.Height()
	plan = RollbackPlan{Height: height, AppHash: fmt.Sprintf("%X", hash), StateBefore: d.height()}
	if hard {
		plan.RemovedBlock, last = last, last-1
	}
	if d.sharded {
		plan.Sharded = true
		return plan, nil
	}
	if plan.State, err = d.heightToRollBackTo(height); err != nil {
		return plan, err
	}
	plan.Replayed = last - plan.State
	if first := d.blocks.Base(); plan.State == 0 {
		plan.Replayed = last - first + 1
	}
	return plan, nil
}

// heightToRollBackTo returns the height of the newest state, at or below height, that the node can
// continue from; 0: an empty one.
func (d *offline) heightToRollBackTo(height int64) (int64, error) {
	if now := d.height(); now <= height {
		return now, nil
	}
	state, err := d.comet.Load()
	if err != nil {
		return 0, fmt.Errorf("CometBFT's state: %w", err)
	}
	base := d.blocks.Base()
	var pins []int64
	for _, pin := range d.state.Pins() {
		pins = append(pins, pin.Height)
	}
	if to, ok := rollbackTarget(height, base, state.InitialHeight, pins, d.canExecuteAfter); ok {
		return to, nil
	}
	stored := "no snapshot is stored"
	if len(pins) > 0 {
		stored = fmt.Sprintf("the oldest stored snapshot has height %d", pins[0])
	}
	return 0, fmt.Errorf("%w: the state on disk is at height %d, %s, and the blocks begin at %d: remove the data with `starlingd unsafe-reset-all` and join again by state sync",
		ErrCannotRollBack, d.height(), stored, base)
}

// rollbackTarget returns the height of the newest snapshot, at or below height, after which all
// blocks can be executed. Without one, it returns 0 if the blocks begin with the first of the
// chain; otherwise ok is false. base is the first stored block, initial the chain's first block,
// and pins are the ascending heights of the snapshots. executable reports whether the block after a
// height can be executed.
func rollbackTarget(height, base, initial int64, pins []int64, executable func(int64) bool) (to int64, ok bool) {
	for _, pin := range slices.Backward(pins) {
		if pin <= height && pin+1 >= base && executable(pin) {
			return pin, true
		}
	}
	return 0, base <= initial
}

// canExecuteAfter reports whether CometBFT has the validators who signed the block after height. It
// prunes them with the blocks, and cannot execute a block without them.
func (d *offline) canExecuteAfter(height int64) bool {
	_, err := d.comet.LoadValidators(height)
	return err == nil
}

// rollbackState changes the state zone.
func (d *offline) rollbackState(plan RollbackPlan) error {
	if plan.State == 0 {
		return d.state.Reset()
	}
	if err := d.closeState(); err != nil {
		return err
	}
	return storage.RollbackToPin(config.StateDir(d.dataDir()), plan.State, stateOptions(d.dataDir(), false))
}

// keptState and keptBlocks are CometBFT's stores for a dry run of a rollback.
type (
	keptState  struct{ sm.Store }
	keptBlocks struct{ *store.BlockStore }
)

func (keptState) Save(sm.State) error { return nil }

func (keptBlocks) DeleteLatestBlock() error { return nil }
