package node

import (
	"fmt"

	cfg "github.com/cometbft/cometbft/config"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/lightblocks"
)

// bootstrap tells CometBFT that a height was reached without its blocks, as its own BootstrapState does, in an order in which a kill does no
// harm: headers and a commit without a state are nothing, and of a state with its commit prepare makes the rest (databases.go).
//
//	headers up to H (ancestors.go) ──► commit of H ──► state after H ──► mark of an offline state sync
func (d *databases) bootstrap(state sm.State, commit *cmttypes.Commit, before []lightblocks.Ancestor) error {
	height := state.LastBlockHeight
	blockDB, err := d.provide(&cfg.DBContext{ID: "blockstore", Config: d.config})
	if err != nil {
		return err
	}
	stateDB, err := d.provide(&cfg.DBContext{ID: "state", Config: d.config})
	if err != nil {
		return err
	}
	failed := func(err error) error { return fmt.Errorf("CometBFT's databases in %s: %w", d.config.DBDir(), err) }
	if len(before) > 0 {
		evidenceDB, err := d.provide(&cfg.DBContext{ID: "evidence", Config: d.config})
		if err != nil {
			return err
		}
		if err := saveAncestors(blockDB, stateDB, evidenceDB, before); err != nil {
			return failed(err)
		}
	}
	if err := store.NewBlockStore(synced{blockDB}).SaveSeenCommit(height, commit); err != nil {
		return failed(err)
	}
	states := sm.NewStore(stateDB, sm.StoreOptions{DiscardABCIResponses: d.config.Storage.DiscardABCIResponses})
	if err := states.Bootstrap(state); err != nil {
		return failed(err)
	}
	if err := states.SetOfflineStateSyncHeight(height); err != nil {
		return failed(err)
	}
	return nil
}
