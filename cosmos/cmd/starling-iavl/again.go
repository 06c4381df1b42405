package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	sm "github.com/cometbft/cometbft/state"
	cmtstore "github.com/cometbft/cometbft/store"
	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
)

// again makes a home startable that has the application's state and no blocks, and returns the
// state's height. CometBFT accepts a state without blocks only if it is marked (in state.db,
// SetOfflineStateSyncHeight), and removes the mark at each start (node/node.go, NewNode). So if the
// first start stores no block, the second one panics: "state (908) and store (0) height mismatch".
//
//	CometBFT's databases           again
//	the application's height       marks the state
//	none, or without its commit    builds them from headers of peers
//	blocks, or another height      fails, and changes nothing
//
// The application's database is not changed.
func (c *comet) again(ctx context.Context, h *headers, height int64, wanted dbm.BackendType, stderr io.Writer) (int64, error) {
	refused := func(err error) error { return fmt.Errorf("%w\n%w", errOtherState(c.home), err) }
	at, err := c.state()
	switch {
	case errors.Is(err, errHasBlocks):
		return 0, fmt.Errorf("%w\n%w: start the node of this home", errOtherState(c.home), errHasBlocks)
	case err != nil:
		return 0, refused(err)
	}
	if err := sameEngine(dbDir(c.home, applicationDB), wanted); err != nil {
		return 0, err
	}
	latest, appHash, err := applicationState(c.home)
	switch {
	case err != nil:
		return 0, refused(err)
	case height != 0 && height != latest:
		return 0, refused(fmt.Errorf("the application's height is %d, but --height is %d", latest, height))
	case at != 0 && at != latest:
		return 0, refused(fmt.Errorf("CometBFT has the state of height %d, and the application that of height %d: %w", at, latest, errHasState))
	}
	if at != 0 {
		if marked, err := c.mark(latest, appHash); err != nil || marked {
			return latest, err
		}
	}
	return latest, c.build(ctx, h, applicationDB, latest, appHash[:], stderr)
}

// mark marks CometBFT's state as one without blocks. It returns false if the commit of the state's
// height is missing, without which the node does not start either.
func (c *comet) mark(height int64, appHash iavlsync.Hash) (marked bool, err error) {
	for _, name := range []string{"blockstore", "state"} {
		err := sameEngine(dbDir(c.home, name), c.engine)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	blockDB, err := openCometDB(c.home, "blockstore")
	if err != nil {
		return false, err
	}
	commit := cmtstore.NewBlockStore(blockDB).LoadSeenCommit(height)
	if err := blockDB.Close(); err != nil || commit == nil {
		return false, err
	}
	stateDB, err := openCometDB(c.home, "state")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, stateDB.Close()) }()
	states := sm.NewStore(stateDB, sm.StoreOptions{})
	state, err := states.Load()
	if err != nil {
		return false, err
	}
	if !bytes.Equal(state.AppHash, appHash[:]) {
		return false, fmt.Errorf("the application has app hash %s at height %d, but CometBFT has %x: %w", appHash, height, state.AppHash, errHasState)
	}
	return true, states.SetOfflineStateSyncHeight(height)
}

// applicationState returns the latest height of a home's application, and its app hash.
func applicationState(home string) (height int64, appHash iavlsync.Hash, err error) {
	db, err := openApplication(home)
	if err != nil {
		return 0, appHash, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if height, err = nodedb.Latest(reads(db)); err != nil {
		return 0, appHash, err
	}
	state, err := nodedb.Open(reads(db), height)
	if err != nil {
		return 0, appHash, err
	}
	defer state.Close()
	m, err := state.Manifest(iavlsync.Format8192)
	if err != nil {
		return 0, appHash, err
	}
	appHash, err = m.AppHash()
	return height, appHash, err
}

// rejoin handles a join of a home that has the application's database: of this join, killed before
// it tidied up, or of an earlier one.
func rejoin(ctx context.Context, home string, height int64, backend dbm.BackendType, proof trust, c *comet, h *headers, stderr io.Writer) (joined int64, err error) {
	ours := c == nil || proof.same(home) == nil
	if ours {
		if joined, err = joinedBefore(home, height, backend, proof); err != nil || c == nil {
			return joined, err
		}
	}
	if _, err := os.Stat(filepath.Join(joiningDir(home), chunksFolder)); errors.Is(err, fs.ErrNotExist) {
		defer func() { err = errors.Join(err, os.RemoveAll(joiningDir(home))) }()
	}
	at, err := c.again(ctx, h, height, backend, stderr)
	if ours && errors.Is(err, errHasBlocks) {
		return joined, nil
	}
	return at, err
}
