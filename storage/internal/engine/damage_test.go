package engine

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

// wayOut is the remedy of the folder under test.
const wayOut = "begin again"

func openFolder(fs vfs.FS) (*pebble.DB, error) {
	return Folder{Zone: "test", Dir: "zone", WayOut: wayOut, FS: fs}.Open(&pebble.Options{FS: fs})
}

// written creates a database with tables, a log and options files, and returns its contents. The
// last keys, from logged on, are only in the log.
func written(t *testing.T) (fs *vfs.MemFS, content map[string]string, logged string) {
	t.Helper()
	fs, content, logged = vfs.NewMem(), map[string]string{}, "key 0300"
	for from := 0; from < 400; from += 100 {
		db, err := openFolder(fs)
		require.NoError(t, err)
		for i := from; i < from+100; i++ {
			key, value := fmt.Sprintf("key %04d", i), strings.Repeat(fmt.Sprint(i), 50)
			require.NoError(t, db.Set([]byte(key), []byte(value), pebble.Sync))
			content[key] = value
		}
		if from < 300 {
			require.NoError(t, db.Flush())
		}
		require.NoError(t, db.Close())
	}
	return fs, content, logged
}

func readDB(db *pebble.DB) (map[string]string, error) {
	it, err := db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	got := map[string]string{}
	for it.First(); it.Valid(); it.Next() {
		got[string(it.Key())] = string(it.Value())
	}
	return got, it.Close()
}

// TestDamagedFiles: whatever happens to one file of a database, even if a part of it is lost, or to
// its name, the database opens with the written data, or reports the damage and a remedy. It never
// opens with less, except for the end of the log, whose loss cannot be detected.
func TestDamagedFiles(t *testing.T) {
	origin, content, logged := written(t)
	names, err := origin.List("zone")
	require.NoError(t, err)
	kinds := map[string]int{}
	rng := rand.New(rand.NewPCG(1, 0))
	for _, name := range names {
		if name == "LOCK" {
			continue
		}
		kind, _, _ := strings.Cut(name, "-")
		if at := strings.LastIndexByte(name, '.'); at > 0 {
			kind = name[at:]
		}
		if strings.HasPrefix(name, "marker.") {
			kind = "marker"
		}
		damages := map[string]func([]byte) []byte{
			"removed": nil,
			"emptied": func([]byte) []byte { return nil },
			"cut":     func(b []byte) []byte { return b[:len(b)/2] },
			"short":   func(b []byte) []byte { return b[:max(len(b)-1, 0)] },
			"zeros":   func(b []byte) []byte { return make([]byte, len(b)) },
			"rubbish": func(b []byte) []byte { return bytes.Repeat([]byte("rubbish\n"), 1+len(b)/8)[:len(b)] },
		}
		for i := range 40 {
			damages[fmt.Sprint("flip ", i)] = func(b []byte) []byte {
				if len(b) > 0 {
					b[rng.IntN(len(b))] ^= byte(1 << rng.IntN(8))
				}
				return b
			}
		}
		for _, what := range slices.Sorted(maps.Keys(damages)) {
			damage := damages[what]
			where := name + " " + what
			fs := vfs.NewMem()
			_, err := vfs.Clone(origin, fs, "zone", "zone")
			require.NoError(t, err)
			damageFile(t, fs, "zone/"+name, damage)
			db, err := openFolder(fs)
			var got map[string]string
			if err == nil {
				if got, err = readDB(db); err != nil {
					err = Folder{Zone: "test", Dir: "zone", WayOut: wayOut}.Err("read", err)
				}
				_ = db.Close()
			}
			if err != nil {
				kinds[kind+" damaged"]++
				require.ErrorIs(t, err, ErrCorrupt, where)
				require.ErrorContains(t, err, "test folder zone", where)
				if kind == "OPTIONS" {
					require.ErrorContains(t, err, name, where)
					require.ErrorContains(t, err, "remove that file", where)
				} else {
					require.ErrorContains(t, err, wayOut, where)
				}
				if kind == ".sst" || kind == "MANIFEST" {
					require.ErrorContains(t, err, strings.TrimSuffix(name, ".sst"), where)
				}
				continue
			}
			kinds[kind+" as before"]++
			for key, value := range content {
				if v, there := got[key]; there || kind != ".log" || key < logged {
					require.Equal(t, value, v, "%s: %s", where, key)
				}
			}
		}
	}
	t.Log(kinds)
	for _, kind := range []string{"MANIFEST", "OPTIONS", ".sst", "marker"} {
		require.Positive(t, kinds[kind+" damaged"], kind)
	}
}

// damageFile replaces a file by the result of damage; nil removes it.
func damageFile(t *testing.T, fs vfs.FS, path string, damage func([]byte) []byte) {
	t.Helper()
	file, err := fs.Open(path)
	require.NoError(t, err)
	b, err := io.ReadAll(file)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	require.NoError(t, fs.Remove(path))
	if damage == nil {
		return
	}
	file, err = fs.Create(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = file.Write(damage(b))
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

// TestMissingFiles does the same on a real file system, which reports missing files with other
// errors.
func TestMissingFiles(t *testing.T) {
	for _, kind := range []string{"MANIFEST-", ".sst"} {
		dir := t.TempDir()
		folder := Folder{Zone: "test", Dir: dir, WayOut: wayOut}
		db, err := folder.Open(&pebble.Options{})
		require.NoError(t, err)
		require.NoError(t, db.Set([]byte("key"), []byte("value"), pebble.Sync))
		require.NoError(t, db.Flush())
		require.NoError(t, db.Close())
		names, err := os.ReadDir(dir)
		require.NoError(t, err)
		removed := 0
		for _, name := range names {
			if strings.HasPrefix(name.Name(), kind) || strings.HasSuffix(name.Name(), kind) {
				require.NoError(t, os.Remove(filepath.Join(dir, name.Name())))
				removed++
			}
		}
		require.Positive(t, removed, kind)
		_, err = folder.Open(&pebble.Options{})
		require.ErrorIs(t, err, ErrCorrupt, kind)
		require.ErrorContains(t, err, wayOut)
	}
}

// TestSegmentsWithoutADatabase: segments without a database, or whose list of files is no longer
// named, are refused before anything is written to the folder.
func TestSegmentsWithoutADatabase(t *testing.T) {
	for _, kept := range []string{"", "marker.format-version"} {
		fs, _, _ := written(t)
		names, err := fs.List("zone")
		require.NoError(t, err)
		for _, name := range names {
			if kept == "" || !strings.HasPrefix(name, kept) {
				require.NoError(t, fs.Remove("zone/"+name))
			}
		}
		segment, err := fs.Create("zone/000001"+SegmentSuffix, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		require.NoError(t, segment.Close())
		before, err := fs.List("zone")
		require.NoError(t, err)
		_, err = openFolder(fs)
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, "marker.manifest")
		require.ErrorContains(t, err, wayOut)
		after, err := fs.List("zone")
		require.NoError(t, err)
		require.ElementsMatch(t, before, after)
	}
}
