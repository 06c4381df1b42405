package home_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// A start that is about to replace a state of layout 1 by its converted copy has no database open,
// but the lock: nothing is removed under it. One that was killed there is no obstacle.
func TestResetDuringAConversion(t *testing.T) {
	for _, step := range []string{"convert-whole", "convert-moved"} {
		dir, _ := nodetest.Home(t, nil)
		c := nodetest.Load(t, dir).CometBFT
		state := config.StateDir(c.DBDir())
		require.NoError(t, os.MkdirAll(filepath.Join(state, step), 0o700))
		lock, err := vfs.Default.Lock(filepath.Join(state, "LOCK"))
		require.NoError(t, err)
		removed, err := home.Reset(c)
		require.ErrorContains(t, err, "nothing is removed")
		require.Empty(t, removed)
		require.DirExists(t, filepath.Join(state, step))
		require.NoError(t, lock.Close())
		removed, err = home.Reset(c)
		require.NoError(t, err)
		require.Contains(t, removed, state)
		require.NoDirExists(t, state)
	}
}
