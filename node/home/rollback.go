package home

import (
	"errors"
	"fmt"
	"os"
	"slices"

	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage"
)

// ErrCannotRollBack: the state cannot go back that far, since there is neither a snapshot nor all
// blocks.
var ErrCannotRollBack = errors.New("cannot roll back")

// RollbackPlan describes what a rollback does.
type RollbackPlan struct {
	Height  int64  `json:"height"`   // of CometBFT's state afterwards
	AppHash string `json:"app_hash"` // of that height, as the block after it names it
	// RemovedBlock is the height of the block that is removed; 0: none is.
	RemovedBlock int64 `json:"removed_block"`
	StateBefore  int64 `json:"state_before"` // height of the state on disk
	State        int64 `json:"state"`        // ... and after it; 0: the state is emptied
	Replayed     int64 `json:"replayed"`     // blocks that the next start executes again
	// Sharded: storage nodes keep the state. The next start takes up one that they have, not above
	// Height, and executes the blocks since then: how many, is not known here.
	Sharded bool `json:"sharded,omitempty"`
}

// Empties reports whether the whole state is removed, to be computed again from the first block.
func (p RollbackPlan) Empties() bool { return p.StateBefore > 0 && p.State == 0 }

// Rollback takes CometBFT's state from height n to n-1 as `cometbft rollback` does
// (state/rollback.go), with block n removed if hard. The state on disk goes to a height not above:
// it stays if it is there already (it follows behind the blocks), else it becomes that of the
// newest stored snapshot from which on all blocks are there, else, if all blocks are, nothing. The
// next start executes the blocks since.
//
// The state zone is changed first, in one step, and CometBFT's state second:
//
//	                      state zone   CometBFT   a start now
//	before                     n           n      continues
//	killed in between       p < n          n      executes p+1 … n: as if there had been no rollback; or Rollback again, which then
//	                                              finds the zone low enough and does the rest
//	done                    p < n         n-1     executes p+1 … n (hard: n-1)
//
// In the other order a kill would leave the zone at n and CometBFT at n-1: CometBFT then takes
// block n's stored results in place of executing it, so that a wrong state stays, or, if hard,
// refuses to start; and a second Rollback would go to n-2. Before anything is changed CometBFT's
// part is tried without writing. (Within it CometBFT stores the state and then removes the block: a
// kill between is mended by Rollback with hard again.)
func Rollback(config *config.Config, hard bool, confirm func(RollbackPlan) error) (plan RollbackPlan, err error) {
	d, err := openOffline(config, false)
	if err != nil {
		return plan, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if d.blocks == nil {
		return plan, fmt.Errorf("%w: there is no %q (if CometBFT runs in a process of its own, its blocks are elsewhere: roll that back)", ErrNoData, blocksPath(config.CometBFT))
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
		return plan, fmt.Errorf("CometBFT's state: %w (the state on disk is at height %d: start the node, or roll back again)", err, plan.State)
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

// heightToRollBackTo returns the height of the newest state, not above height, that the node can
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
		stored = fmt.Sprintf("the oldest snapshot that is stored is of height %d", pins[0])
	}
	return 0, fmt.Errorf("%w: the state on disk is at height %d, %s, and the blocks begin at %d only: remove the data with `starlingd unsafe-reset-all` and join again by state sync",
		ErrCannotRollBack, d.height(), stored, base)
}

// rollbackTarget returns the height of the newest snapshot that is not above height and from which
// on all blocks can be executed; 0 if there is none, and the blocks begin with the first of the
// chain; else ok is false. base is the first block that is stored, initial the first of the chain,
// pins are the heights of the snapshots, ascending. executable reports whether the block after a
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
// prunes them with the blocks, and executes no block without them.
func (d *offline) canExecuteAfter(height int64) bool {
	_, err := d.comet.LoadValidators(height)
	return err == nil
}

// rollbackState changes the state zone. Before that, it removes what the blocks since the state
// have replaced, while the zone is locked.
func (d *offline) rollbackState(plan RollbackPlan) error {
	if err := os.RemoveAll(config.UndoDir(d.dataDir())); err != nil {
		return err
	}
	if plan.State == 0 {
		return d.state.Reset()
	}
	if err := d.closeState(); err != nil {
		return err
	}
	return storage.RollbackToPin(config.StateDir(d.dataDir()), plan.State, stateOptions(d.dataDir(), false))
}

// keptState and keptBlocks are CometBFT's stores for a rollback that changes nothing.
type (
	keptState  struct{ sm.Store }
	keptBlocks struct{ *store.BlockStore }
)

func (keptState) Save(sm.State) error { return nil }

func (keptBlocks) DeleteLatestBlock() error { return nil }
