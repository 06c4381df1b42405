package storagenode

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/storage/rangestore"
)

// stateless is a Process that only looks at folders.
func stateless(logs *nodetest.LogBuffer, t *testing.T) *Process {
	t.Helper()
	n := &Process{
		log: logs.Logger(t), genesis: &cmttypes.GenesisDoc{ChainID: "test-chain"}, memory: rangestore.NewMemory(0),
		config: &config.Config{CometBFT: config.DefaultCometBFT()},
	}
	n.config.CometBFT.SetRoot(t.TempDir())
	return n
}

// writeState writes the state of a range into a folder; height 0: an incomplete one.
func writeState(t *testing.T, n *Process, dir string, height int64) {
	t.Helper()
	store, err := n.openStore(&place{}, dir)
	require.NoError(t, err)
	f, err := store.Fill(t.Context())
	require.NoError(t, err)
	if height > 0 {
		v, err := avlstar.Empty(avlstar.DefaultChunkBytes)
		require.NoError(t, err)
		defer v.Release()
		boundary, err := v.Boundary(avlstar.KeyRange{})
		require.NoError(t, err)
		require.NoError(t, f.Commit(t.Context(), height, v.Commitment(), boundary))
	}
	require.NoError(t, store.Close())
}

// A kill at any step of install and replace leaves exactly one state of the range: the old one
// until the new one is complete, and from then on the new one.
func TestSettleAfterAKill(t *testing.T) {
	const none, part, was, becomes, rest = -1, 0, 1, 2, 3 // rest: a half-removed folder
	const fetchedSuffix = "fetched"
	for name, c := range map[string]struct {
		files map[string]int64 // suffix of the folder: the height of the state in it
		want  int64
	}{
		"nothing is there":                   {nil, none},
		"a first state is incomplete":        {map[string]int64{nextSuffix: part}, part},
		"a first state is complete":          {map[string]int64{nextSuffix: becomes}, becomes},
		"a newer state is incomplete":        {map[string]int64{"": was, nextSuffix: part}, was},
		"a newer state is complete":          {map[string]int64{"": was, nextSuffix: becomes}, becomes},
		"the old one was put aside":          {map[string]int64{oldSuffix: was, nextSuffix: becomes}, becomes},
		"the new one is in its place":        {map[string]int64{"": becomes, oldSuffix: was}, becomes},
		"an older kill has left something":   {map[string]int64{"": was, oldSuffix: rest, nextSuffix: becomes}, becomes},
		"the old one was removed in part":    {map[string]int64{"": becomes, oldSuffix: rest}, becomes},
		"only the new one, and its elder is": {map[string]int64{nextSuffix: becomes, oldSuffix: rest}, becomes},
		"a first one is fetched":             {map[string]int64{fetchedSuffix: part}, none},
		"a newer one is fetched":             {map[string]int64{"": was, fetchedSuffix: part}, was},
		"a first one was fetched":            {map[string]int64{fetchedSuffix: becomes}, becomes},
		"a newer one was fetched":            {map[string]int64{"": was, fetchedSuffix: becomes, nextSuffix: part}, becomes},
	} {
		t.Run(name, func(t *testing.T) {
			n := stateless(new(nodetest.LogBuffer), t)
			dir := filepath.Join(t.TempDir(), "000")
			for suffix, height := range c.files {
				at := dir + suffix
				if suffix == fetchedSuffix {
					at = fetchedDir(dir)
				}
				if height == rest {
					require.NoError(t, os.Mkdir(at, 0o755))
					continue
				}
				writeState(t, n, at, height)
			}
			for range 2 {
				require.NoError(t, n.settle(dir))
				require.NoDirExists(t, dir+nextSuffix)
				require.NoDirExists(t, dir+oldSuffix)
				if height, there := c.files[fetchedSuffix]; there && height == part {
					require.DirExists(t, fetchedDir(dir), "the next takeover continues with it")
				} else {
					require.NoDirExists(t, fetchedDir(dir))
				}
				if c.want == none {
					require.NoDirExists(t, dir)
					continue
				}
				store, err := n.openStore(&place{}, dir)
				require.NoError(t, err)
				height, _ := store.Durable()
				require.NoError(t, store.Close())
				require.Equal(t, c.want, height)
			}
		})
	}
}

// A start removes the rest of a folder whose removal was interrupted, and what was fetched of a
// range that is not in the map.
func TestRemovesTheRest(t *testing.T) {
	logs := new(nodetest.LogBuffer)
	n := stateless(logs, t)
	dir := filepath.Join(rangesDir(n.config), folderOf(avlstar.KeyRange{}))
	killed := errors.New("killed")
	half := func(dir string) error { // removes every second file
		files, err := filepath.Glob(filepath.Join(dir, "state", "*"))
		require.NoError(t, err)
		for i, file := range files {
			if i%2 == 0 {
				require.NoError(t, os.RemoveAll(file))
			}
		}
		if len(files) > 0 {
			return killed
		}
		return os.RemoveAll(dir)
	}
	writeState(t, n, dir, 1)
	writeState(t, n, fetchedDir(dir), 0)
	t.Cleanup(func() { removeAll = os.RemoveAll })
	removeAll = half
	require.ErrorIs(t, removeFolder(dir), killed)
	require.ErrorIs(t, removeFolder(fetchedDir(dir)), killed)
	removeAll = os.RemoveAll
	writeState(t, n, fetchedDir(dir), 0)

	require.NoError(t, n.openOthers(t.Context()))
	require.Empty(t, n.all())
	left, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	require.Empty(t, left)
	require.False(t, logs.Has("Cannot open a range"))
}

// The old state of a range is removed only once the new one has its name: a kill while files are
// removed would otherwise leave neither.
func TestReplaceKeepsTheOldState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "000")
	require.NoError(t, os.Mkdir(dir, 0o755))
	nodetest.WriteFile(t, filepath.Join(dir, "state"), "old")
	require.ErrorIs(t, replace(dir), os.ErrNotExist, "there is no new one")
	require.FileExists(t, filepath.Join(dir+oldSuffix, "state"))
}

// A start makes no folder for a range without a state.
func TestNoFolderWithoutAState(t *testing.T) {
	c := newChain(t, twoRanges()...)
	dir := c.replicaHome()
	n, err := New(t.Context(), Options{Config: nodetest.Load(t, dir), Logger: log.NewNopLogger()})
	require.NoError(t, err)
	for _, p := range n.all() {
		require.NoDirExists(t, p.dir)
	}
	require.NoError(t, n.Stop())
}

// The folder of a range that an earlier version has named gets its new name.
func TestEarlierFolder(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, twoRanges()...)
	home := c.replicaHome()
	n := c.stopped(home)
	for _, p := range n.all() {
		require.NoError(t, os.Rename(p.dir, filepath.Join(filepath.Dir(p.dir), earlierFolderOf(p.keys))))
	}
	logs := new(nodetest.LogBuffer)
	n = c.alone(home, logs)
	require.Len(t, n.Claims(), 2)
	c.requireSame(n)
}
