package storage

import (
	"errors"
	"io"
	"math"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/storage/internal/engine"
)

// beginConversion copies the parts below n into convertMade, all with math.MaxInt. With commit they
// are the state of that zone, of which no table is made yet.
func beginConversion(t *testing.T, fs vfs.FS, n int, commit bool) *conversion {
	t.Helper()
	opts := testOptions(fs).withDefaults("zone")
	old, err := openLayout1("zone", opts)
	require.NoError(t, err)
	zone, err := openLayout("zone/"+convertMade, opts, FormatVersion)
	require.NoError(t, err)
	close(zone.flusherDone)
	meta, _ := old.Meta()
	c, err := newConversion(old, meta)
	require.NoError(t, err)
	r, err := zone.BeginRestore(c.label)
	require.NoError(t, err)
	for i := range min(n, len(c.parts)) {
		require.NoError(t, c.copyPart(r, i))
	}
	if commit {
		require.NoError(t, r.commit(meta))
	}
	require.NoError(t, zone.Close())
	require.NoError(t, old.Close())
	return c
}

// zeroFiles overwrites the second half of the files in dir whose names end so: that of one that a
// loss of power leaves.
func zeroFiles(t *testing.T, fs vfs.FS, dir, suffix string) {
	t.Helper()
	names, err := fs.List(dir)
	require.NoError(t, err)
	found := 0
	for _, name := range names {
		if !strings.HasSuffix(name, suffix) {
			continue
		}
		found++
		path := fs.PathJoin(dir, name)
		file, err := fs.Open(path)
		require.NoError(t, err)
		b, err := io.ReadAll(file)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		clear(b[len(b)/2:])
		require.NoError(t, writeSynced(fs, path, b))
	}
	require.Positive(t, found)
}

// A loss of power may take what a conversion has copied, and leave the list of it: that is copied
// again, since the state that it is of is still there.
func TestDamagedCopyIsMadeAgain(t *testing.T) {
	want := manyParts()
	made := "zone/" + convertMade
	for name, damage := range map[string]func(fs vfs.FS){
		"a run of some": func(fs vfs.FS) {
			beginConversion(t, fs, 2, false)
			zeroFiles(t, fs, made+"/"+restoreName, runsSuffix)
		},
		"a run of all": func(fs vfs.FS) {
			beginConversion(t, fs, math.MaxInt, true)
			zeroFiles(t, fs, made+"/"+restoreName, runsSuffix)
		},
		"the database": func(fs vfs.FS) {
			beginConversion(t, fs, 2, false)
			zeroFiles(t, fs, made, "MANIFEST-000001")
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			writeLayout1(t, fs, pebble.NoSync, []model{want})
			damage(fs)
			opts, log := testOptions(fs), &recorder{}
			opts.Logger = log
			s, err := Open("zone", opts)
			require.NoError(t, err)
			want.requireIn(t, s)
			require.NoError(t, s.Close())
			requireConverted(t, fs)
			if name == "a run of some" { // the others are kept
				require.Empty(t, log.errors())
			} else {
				require.Contains(t, strings.Join(log.errors(), "\n"), "it is made again")
			}
		})
	}
}

// Damage of the state itself is no reason to remove the copy, which may be all that is left of it.
func TestDamagedSourceKeepsTheCopy(t *testing.T) {
	fs := vfs.NewMem()
	writeLayout1(t, fs, pebble.NoSync, []model{manyParts()})
	c := beginConversion(t, fs, 2, false)
	names, err := fs.List("zone")
	require.NoError(t, err)
	for _, name := range names {
		if info, err := fs.Stat("zone/" + name); err == nil && strings.HasSuffix(name, ".sst") {
			flip(t, fs, "zone/"+name, int(info.Size()/2)) // among the records
		}
	}
	_, err = Open("zone", testOptions(fs))
	require.ErrorIs(t, err, ErrCorrupt)
	require.NotContains(t, err.Error(), convertMade)
	zone, err := openLayout("zone/"+convertMade, testOptions(fs).withDefaults("zone"), FormatVersion)
	require.NoError(t, err)
	close(zone.flusherDone)
	label, ok := zone.Interrupted()
	require.True(t, ok)
	require.Equal(t, c.label, label)
	runs, err := zone.readJournal()
	require.NoError(t, err)
	require.Contains(t, runs, partID(0))
	require.Contains(t, runs, partID(1))
	require.NoError(t, zone.Close())
}

// The program that wrote layout 1 may have been started between the end of the copying and the
// swap: the state that it has reached is the one that counts.
func TestChangedSinceItWasCopied(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		fs := vfs.NewMem()
		want := emptyModel().apply(blockOf(3, "a", "1"))
		next := want.apply(blockOf(4, "b", "2"))
		writeLayout1(t, fs, pebble.NoSync, []model{want})
		makeWhole(t, fs)
		writeLayout1(t, fs, pebble.NoSync, []model{want, next})
		if damaged {
			zeroFiles(t, fs, "zone/"+convertWhole, ".sst")
		}
		next.requireIn(t, openZone(t, fs))
		requireConverted(t, fs)
	}
}

// hookedFS calls before for each change of a name and each file that is looked at.
type hookedFS struct {
	vfs.FS
	before func(op, path string) error
}

func (h hookedFS) Stat(path string) (vfs.FileInfo, error) {
	if err := h.before("stat", path); err != nil {
		return nil, err
	}
	return h.FS.Stat(path)
}

func (h hookedFS) Open(path string, opts ...vfs.OpenOption) (vfs.File, error) {
	if err := h.before("open", path); err != nil {
		return nil, err
	}
	return h.FS.Open(path, opts...)
}

func (h hookedFS) Rename(from, to string) error {
	if err := h.before("rename", to); err != nil {
		return err
	}
	return h.FS.Rename(from, to)
}

func (h hookedFS) RemoveAll(path string) error {
	if err := h.before("remove", path); err != nil {
		return err
	}
	return h.FS.RemoveAll(path)
}

// The zone is locked from the beginning to the end of a conversion, whichever Open does what.
func TestConversionHoldsTheLock(t *testing.T) {
	want := emptyModel().apply(blockOf(3, "a", "1"))
	for _, prepare := range []func(*testing.T, vfs.FS){func(*testing.T, vfs.FS) {}, makeWhole} {
		fs := vfs.NewMem()
		writeLayout1(t, fs, pebble.NoSync, []model{want})
		prepare(t, fs)
		steps := 0
		s, err := Open("zone", testOptions(hookedFS{fs, func(op, path string) error {
			if op == "rename" && (strings.HasSuffix(path, convertWhole) || strings.HasSuffix(path, convertMoved)) ||
				op == "remove" && strings.HasSuffix(path, ".sst") {
				steps++
				_, err := engine.Lock(fs, "zone")
				require.ErrorIs(t, err, ErrLocked, path)
			}
			return nil
		}}))
		require.NoError(t, err)
		require.GreaterOrEqual(t, steps, 2)
		want.requireIn(t, s)
		require.NoError(t, s.Close())
	}
}

// While the files of layout 1 are being removed, no program opens a part of them.
func TestPartOfLayout1IsRefused(t *testing.T) {
	fs := vfs.NewMem()
	want := emptyModel().apply(blockOf(3, "a", "1"))
	writeLayout1(t, fs, pebble.NoSync, []model{want})
	killed := errors.New("killed")
	_, err := Open("zone", testOptions(hookedFS{fs, func(op, path string) error {
		if op == "remove" && fs.PathDir(path) == "zone" && !strings.Contains(path, "convert") && exists(fs, "zone/"+convertWhole) {
			return killed
		}
		return nil
	}}))
	require.ErrorIs(t, err, killed)
	_, err = engine.Folder{Dir: "zone", FS: fs}.Open(&pebble.Options{})
	require.ErrorIs(t, err, ErrCorrupt)
	want.requireIn(t, openZone(t, fs))
	requireConverted(t, fs)
}

// What a conversion has copied is removed only beside a state of layout 2 that has been opened:
// not where another process has the zone, nor where the disk does not say what is there.
func TestCopyIsNotRemovedOnAGuess(t *testing.T) {
	want := manyParts()
	fs := vfs.NewMem()
	writeLayout1(t, fs, pebble.NoSync, []model{want})
	beginConversion(t, fs, 2, false)
	fails := func(op, part string) {
		t.Helper()
		_, err := Open("zone", testOptions(hookedFS{fs, func(o, path string) error {
			if o == op && strings.Contains(path, part) {
				return syscall.EIO
			}
			return nil
		}}))
		require.ErrorIs(t, err, syscall.EIO)
		require.True(t, exists(fs, "zone/"+convertMade+"/"+restoreName))
	}
	fails("stat", convertWhole)
	fails("stat", convertMoved)
	fails("open", "zone/OPTIONS-")
	removeOptions(t, fs)
	fails("open", "zone/MANIFEST-")
	lock, err := engine.Lock(fs, "zone")
	require.NoError(t, err)
	_, err = Open("zone", testOptions(fs))
	require.ErrorIs(t, err, ErrLocked)
	require.True(t, exists(fs, "zone/"+convertMade+"/"+restoreName))
	require.NoError(t, lock.Close())
	want.requireIn(t, openZone(t, fs))
	requireConverted(t, fs)

	fs = vfs.NewMem() // of which the rest was removed by hand
	require.NoError(t, fs.MkdirAll("zone/"+convertMade, 0o755))
	s := openZone(t, fs)
	emptyModel().requireIn(t, s)
	require.NoError(t, s.Close())
	names, err := fs.List("zone")
	require.NoError(t, err)
	require.NotContains(t, names, convertMade)
}

// Parts that are large in memory are copied one at a time.
func TestLargePartsAreCopiedAlone(t *testing.T) {
	require.Equal(t, 1, (&conversion{large: copyBytes * 3}).copiers())
	require.Equal(t, 1, (&conversion{large: copyBytes/2 + 1}).copiers())
	require.Equal(t, min(4, runtime.GOMAXPROCS(0)), (&conversion{large: 16 << 20}).copiers())
	require.Equal(t, min(4, runtime.GOMAXPROCS(0)), (&conversion{}).copiers())
}
