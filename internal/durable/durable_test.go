package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// recordSyncs returns the folder contents at each later sync of a folder.
func recordSyncs(t *testing.T, fail error) *[][]string {
	t.Helper()
	before := syncFolder
	t.Cleanup(func() { syncFolder = before })
	var found [][]string
	syncFolder = func(path string) error {
		found = append(found, names(t, path))
		return errors.Join(fail, before(path))
	}
	return &found
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if e.Name()[0] != '.' { // a temporary file may come back
			all = append(all, e.Name())
		}
	}
	return all
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	synced := recordSyncs(t, nil)
	for i, content := range []string{"old", "new"} {
		require.NoError(t, Write(path, []byte(content), 0o640))
		require.Len(t, *synced, i+1)
		require.Equal(t, []string{"file"}, (*synced)[i], "the folder is synced behind the rename")
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, content, string(b))
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o640), info.Mode())
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file is left")
	require.ErrorIs(t, Write(filepath.Join(dir, "missing", "file"), nil, 0o600), fs.ErrNotExist)
}

func TestWriteNew(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	synced := recordSyncs(t, nil)
	require.NoError(t, WriteNew(path, []byte("first"), 0o600))
	require.Equal(t, [][]string{{"file"}}, *synced)
	require.ErrorIs(t, WriteNew(path, []byte("second"), 0o600), fs.ErrExist)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "first", string(b))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestRename(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "a"), 0o700))
	synced := recordSyncs(t, nil)
	require.NoError(t, Rename(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
	require.Equal(t, [][]string{{"b"}}, *synced)
	require.ErrorIs(t, Rename(filepath.Join(dir, "a"), filepath.Join(dir, "c")), fs.ErrNotExist)
	require.Len(t, *synced, 1)
}

// An unsynced folder is an error: nothing is durable.
func TestFolderNotSynced(t *testing.T) {
	broken := errors.New("broken")
	recordSyncs(t, broken)
	dir := t.TempDir()
	require.ErrorIs(t, Write(filepath.Join(dir, "a"), nil, 0o600), broken)
	require.ErrorIs(t, WriteNew(filepath.Join(dir, "b"), nil, 0o600), broken)
	require.ErrorIs(t, Rename(filepath.Join(dir, "a"), filepath.Join(dir, "c")), broken)
}
