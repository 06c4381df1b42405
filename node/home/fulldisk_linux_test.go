package home

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cometbft/cometbft/privval"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/internal/smalldisk"
)

// A disk that becomes full at any file ends Init with the reason, and leaves no files that the next
// Init would refuse.
func TestInitOnAFullDisk(t *testing.T) {
	smalldisk.Alone(t, func() { initOnAFullDisk(t) })
}

func initOnAFullDisk(t *testing.T) {
	small := t.TempDir()
	smalldisk.Small(t, small, 4<<20)
	o := InitOptions{Home: filepath.Join(small, "home"), Moniker: "m", ChainID: "demo-1", App: app.Genesis{Open: true}}
	for _, pages := range []int{0, 1, 4, 11, 12, 60} { // free: none, for settings, for keys, …
		filler := filepath.Join(small, "filler")
		require.NoError(t, os.WriteFile(filler, make([]byte, 4<<20-pages*4096), 0o600))
		_, err := Init(o)
		require.ErrorIs(t, err, syscall.ENOSPC, "%d pages", pages)
		require.NoDirExists(t, o.Home, "%d pages", pages)
		require.NoError(t, os.Remove(filler))
	}
	_, err := Init(o)
	require.NoError(t, err)
}

// A validator key that cannot be written is an error, not a panic.
func TestKeyThatCannotBeWritten(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	err := saveValidator(privval.GenFilePV(filepath.Join(nowhere, "key.json"), filepath.Join(nowhere, "state.json")))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "write the validator's key")
}

// Existing files survive a failed Init: empty folders, and links to them.
func TestFailedInitKeepsFolders(t *testing.T) {
	home, elsewhere := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(home, "data")))
	require.NoError(t, os.Symlink(filepath.Join(elsewhere, "missing"), filepath.Join(home, "config")))
	_, err := Init(InitOptions{Home: home, ChainID: "demo-1"})
	require.Error(t, err)
	for _, link := range []string{"data", "config"} {
		_, err := os.Lstat(filepath.Join(home, link))
		require.NoError(t, err)
	}
	require.DirExists(t, elsewhere)
}
