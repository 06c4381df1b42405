package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"testing"

	sm "github.com/cometbft/cometbft/state"
	cmtstore "github.com/cometbft/cometbft/store"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"
)

// start does with a home what CometBFT does when a node starts, up to the first block (node/node.go
// and blocksync/reactor.go, NewNode and NewReactor). It returns the text with which they panic, if
// they do.
func start(t *testing.T, home string) string {
	t.Helper()
	stateDB, err := openCometDB(home, "state")
	require.NoError(t, err)
	defer func() { require.NoError(t, stateDB.Close()) }()
	blockDB, err := openCometDB(home, "blockstore")
	require.NoError(t, err)
	defer func() { require.NoError(t, blockDB.Close()) }()
	states := sm.NewStore(stateDB, sm.StoreOptions{})
	state, err := states.Load()
	require.NoError(t, err)
	blocks := cmtstore.NewBlockStore(blockDB)
	height := blocks.Height()
	if height == 0 {
		height, err = states.GetOfflineStateSyncHeight()
		require.NoError(t, err)
	}
	if state.LastBlockHeight != height {
		return fmt.Sprintf("state (%d) and store (%d) height mismatch", state.LastBlockHeight, height)
	}
	require.NotNil(t, blocks.LoadSeenCommit(state.LastBlockHeight))
	require.NoError(t, states.SetOfflineStateSyncHeight(0))
	return ""
}

// TestStoppedBeforeTheFirstBlock: whatever an operator does with a joined home before its node has
// a block, the same command makes it startable.
func TestStoppedBeforeTheFirstBlock(t *testing.T) {
	for _, engine := range []dbm.BackendType{dbm.GoLevelDBBackend, dbm.PebbleDBBackend} {
		t.Run(string(engine), func(t *testing.T) {
			s := newChain(t, dbm.GoLevelDBBackend, 0, 2, otherParams())
			address := serving(t, "--home", s.home)
			home := t.TempDir()
			writeGenesis(t, home, chainID)
			writeSettings(t, home, "config.toml", fmt.Sprintf("db_backend = %q\n", engine))
			join := func(peer string) string {
				t.Helper()
				var out, progress bytes.Buffer
				require.NoError(t, run(t.Context(), s.join(home, peer), &out, &progress), "%s", &progress)
				s.checkComet(t, home, latest)
				require.NoDirExists(t, joiningDir(home))
				return out.String() + progress.String()
			}
			require.Contains(t, join(address), "next: start the node")
			require.Empty(t, start(t, home))
			require.Equal(t, "state (12) and store (0) height mismatch", start(t, home))
			for range 2 { // without peers
				require.Equal(t, "already joined at height 12\n", join("127.0.0.1:1"))
			}
			require.Empty(t, start(t, home))
			for _, lost := range [][]string{{"state"}, {"blockstore"}, {"state", "blockstore"}} {
				for _, name := range lost {
					require.NoError(t, os.RemoveAll(dbDir(home, name)))
				}
				require.Contains(t, join(address), "getting the headers", "%s", lost)
				require.Empty(t, start(t, home))
			}
			// As after a kill between the state and the commit of CometBFT's own state sync.
			require.NoError(t, os.RemoveAll(dbDir(home, "blockstore")))
			db, err := dbm.NewDB("blockstore", engine, dataDir(home))
			require.NoError(t, err)
			require.NoError(t, db.Close())
			require.Contains(t, join(address), "getting the headers")
			require.Empty(t, start(t, home))

			refused := func(want string, more ...string) {
				t.Helper()
				err := run(t.Context(), s.join(home, address, more...), io.Discard, io.Discard)
				require.ErrorContains(t, err, "application.db already exists")
				require.ErrorContains(t, err, want)
				require.NoDirExists(t, joiningDir(home))
			}
			refused("the application's height is 12, but --height is 11", "--height", "11")
			refused("", "--database-only")
			for _, name := range []string{"state", "blockstore"} { // as if the node had run
				require.NoError(t, os.RemoveAll(dbDir(home, name)))
				require.NoError(t, os.CopyFS(dbDir(home, name), os.DirFS(dbDir(s.home, name))))
			}
			refused("the block store has blocks: start the node of this home")
		})
	}
}

// TestAgainForAnotherState: CometBFT gets no state for an application that is not the chain's.
func TestAgainForAnotherState(t *testing.T) {
	s, other := newChain(t, dbm.GoLevelDBBackend, 0, 2, nil), newFilled(t, dbm.GoLevelDBBackend, 10)
	address := serving(t, "--home", s.home)
	writeGenesis(t, other.home, chainID)
	for _, name := range []string{"state", "blockstore"} {
		require.NoError(t, os.RemoveAll(dbDir(other.home, name)))
	}
	require.ErrorContains(t, run(t.Context(), s.join(other.home, address), io.Discard, io.Discard), "This is not a state of the chain")
	require.NoDirExists(t, dbDir(other.home, "state"))

	home := t.TempDir()
	writeGenesis(t, home, chainID)
	require.NoError(t, run(t.Context(), s.join(home, address), io.Discard, io.Discard))
	require.NoError(t, os.RemoveAll(dbDir(home, applicationDB)))
	require.NoError(t, os.CopyFS(dbDir(home, applicationDB), os.DirFS(dbDir(other.home, applicationDB))))
	require.ErrorContains(t, run(t.Context(), s.join(home, address), io.Discard, io.Discard), "but CometBFT has")
	require.NoDirExists(t, joiningDir(home))
}
