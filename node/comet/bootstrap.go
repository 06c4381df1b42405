package comet

import (
	"fmt"

	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/statesync/lightblocks"
)

// Bootstrap records in CometBFT's databases that a height was reached without its blocks, like
// CometBFT's BootstrapState, but in an order that is safe against a kill: headers and a commit
// without a state are ignored, and Open completes a state with its commit.
//
//	headers up to H (ancestors.go) ──► commit of H ──► state after H ──► mark of an offline state sync
func (d *Databases) Bootstrap(state sm.State, commit *cmttypes.Commit, before []lightblocks.Ancestor, gap Gap) (err error) {
	defer func() { // CometBFT panics when it cannot write
		if cause := recover(); cause != nil {
			err = fmt.Errorf("CometBFT's databases in %q: %w", d.config.DBDir(), Panicked(cause))
		}
	}()
	height := state.LastBlockHeight
	blockDB, err := d.DB("blockstore")
	if err != nil {
		return err
	}
	stateDB, err := d.DB("state")
	if err != nil {
		return err
	}
	states, err := d.States()
	if err != nil {
		return err
	}
	failed := func(err error) error { return fmt.Errorf("CometBFT's databases in %q: %w", d.config.DBDir(), err) }
	if len(before) > 0 {
		evidenceDB, err := d.DB("evidence")
		if err != nil {
			return err
		}
		if err := saveAncestors(blockDB, stateDB, evidenceDB, before, true); err != nil {
			return failed(err)
		}
	}
	if gap != (Gap{}) {
		if err := d.SetGap(gap); err != nil {
			return failed(err)
		}
	}
	if err := store.NewBlockStore(synced{blockDB}).SaveSeenCommit(height, commit); err != nil {
		return failed(err)
	}
	if err := states.Bootstrap(state); err != nil {
		return failed(err)
	}
	if err := states.SetOfflineStateSyncHeight(height); err != nil {
		return failed(err)
	}
	return nil
}
