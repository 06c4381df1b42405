package storagenode

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/internal/nodetest"
)

// A kill at any step of replace leaves exactly one complete state of the range: the old one until
// the new one is complete.
func TestSettleAfterAKill(t *testing.T) {
	const was, becomes = "old", "new"
	for name, c := range map[string]struct {
		files map[string]string // suffix of the folder: the state in it
		want  string            // "": none
	}{
		"nothing is there":                   {nil, ""},
		"a first state is being fetched":     {map[string]string{nextSuffix: becomes}, becomes},
		"a newer state is being fetched":     {map[string]string{"": was, nextSuffix: becomes}, was},
		"the old one was put aside":          {map[string]string{oldSuffix: was, nextSuffix: becomes}, becomes},
		"the new one is in its place":        {map[string]string{"": becomes, oldSuffix: was}, becomes},
		"an older kill has left something":   {map[string]string{"": was, oldSuffix: "older", nextSuffix: becomes}, was},
		"the old one was removed in part":    {map[string]string{"": becomes, oldSuffix: ""}, becomes},
		"only the new one, and its elder is": {map[string]string{nextSuffix: becomes, oldSuffix: ""}, becomes},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "000")
			for suffix, state := range c.files {
				require.NoError(t, os.Mkdir(dir+suffix, 0o755))
				if state != "" {
					require.NoError(t, os.WriteFile(filepath.Join(dir+suffix, "state"), []byte(state), 0o600))
				}
			}
			require.NoError(t, settle(dir))
			require.NoDirExists(t, dir+nextSuffix)
			require.NoDirExists(t, dir+oldSuffix)
			if c.want == "" {
				require.NoDirExists(t, dir)
				return
			}
			got, err := os.ReadFile(filepath.Join(dir, "state"))
			require.NoError(t, err)
			require.Equal(t, c.want, string(got))
			require.NoError(t, settle(dir), "once more")
		})
	}
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
