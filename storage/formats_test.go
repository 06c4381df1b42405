package storage

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/storage/internal/engine"
)

// refusesNewer opens the zone twice, since a failed Open must release the lock. The error must
// contain both numbers and the remedy.
func refusesNewer(t *testing.T, fs vfs.FS, what string) {
	t.Helper()
	for range 2 {
		_, err := Open("zone", Options{FS: fs})
		require.ErrorIs(t, err, ErrNewerFormat)
		require.NotErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, "state folder zone was written by a newer version: "+what)
		require.ErrorContains(t, err, "use the starlingd that wrote it, or a newer one")
	}
}

func TestDatabaseOfANewerFormatIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	require.NoError(t, openZone(t, fs).Close())
	set := func(version string) {
		marker, _, err := atomicfs.LocateMarker(fs, "zone", "format-version")
		require.NoError(t, err)
		require.NoError(t, marker.Move(version))
		require.NoError(t, marker.Close())
	}
	for _, above := range []uint64{1, 1000} { // one that Pebble may know, and one that it cannot
		set(fmt.Sprintf("%03d", DatabaseFormat+above))
		refusesNewer(t, fs, fmt.Sprintf("database format %d, this program knows up to %d", DatabaseFormat+above, DatabaseFormat))
	}
	set("none")
	_, err := Open("zone", Options{FS: fs})
	require.ErrorIs(t, err, ErrCorrupt)
	set(fmt.Sprintf("%03d", DatabaseFormat)) // nothing was changed meanwhile
	require.NoError(t, openZone(t, fs).Close())
}

// TestRestoreOfANewerFormatIsRefused: a join of a newer program is not discarded.
func TestRestoreOfANewerFormatIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	restore, err := s.BeginRestore([]byte("label"))
	require.NoError(t, err)
	require.NoError(t, addLeaves(restore, "run", []record.Leaf{{Key: []byte("k"), Value: []byte("v")}}))
	require.NoError(t, s.Close())
	for _, file := range []struct {
		name, what string
		newer      func(b []byte) []byte
	}{
		{labelFile, "interrupted join of format 2, this program knows up to 1", func(b []byte) []byte { b[0]++; return resum(b) }},
		{journalFile, "journal of an interrupted join, of format 2, this program knows up to 1", func(b []byte) []byte { b[0]++; return b }},
	} {
		path := s.inRestore(file.name)
		old, err := readAll(fs, path, 1<<20)
		require.NoError(t, err)
		require.NoError(t, writeSynced(fs, path, file.newer(append([]byte(nil), old...))))
		refusesNewer(t, fs, file.what)
		require.NoError(t, writeSynced(fs, path, old))
	}
	s = openZone(t, fs)
	again, err := s.ResumeRestore()
	require.NoError(t, err)
	require.Equal(t, []RunID{"run"}, again.Runs())
	require.NoError(t, s.Close())
}

// TestPinDescriptions: a description that is damaged, or of another height, is not used; a newer
// one is kept unread.
func TestPinDescriptions(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	for i, data := range []string{"", "description"} {
		height := int64(i + 1)
		b := blockOf(height, "a", fmt.Sprint(height))
		pinWith(&b, withPin(data))
		write(t, s, b)
	}
	require.NoError(t, s.Close())
	s = openZone(t, fs)
	require.Equal(t, []PinInfo{{1, []byte{}}, {2, []byte("description")}}, s.Pins())
	require.NoError(t, s.Close())
	for name, c := range map[string]struct {
		file []byte
		err  error
	}{
		"another height":        {sealPin(1, 1, []byte("description")), ErrCorrupt},
		"flipped bit":           {append(sealPin(1, 2, nil)[:12], 0), ErrCorrupt},
		"version 0":             {sealPin(0, 2, nil), ErrNewerFormat},
		"version 2":             {sealPin(2, 2, nil), ErrNewerFormat},
		"version 2, other form": {sealPin(2, 7, nil), ErrNewerFormat},
	} {
		require.NoError(t, writeSynced(fs, "PIN", c.file))
		_, err := readPinDescription(fs, "PIN", 2)
		require.ErrorIs(t, err, c.err, name)
	}
	other, err := readAll(fs, fs.PathJoin(s.pinPath("", 1), pinDescription), 1<<20)
	require.NoError(t, err)
	require.NoError(t, writeSynced(fs, fs.PathJoin(s.pinPath("", 2), pinDescription), other))
	s = openZone(t, fs)
	require.Equal(t, []PinInfo{{1, []byte{}}}, s.Pins(), "that of another height is removed")
	require.NoError(t, s.Close())
}

type quiet struct{}

func (quiet) Infof(string, ...any)           {}
func (quiet) Errorf(string, ...any)          {}
func (quiet) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

// TestUnknownMergerIsRefused: a database with an unknown merger is refused, and not reported as
// damaged.
func TestUnknownMergerIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	db, err := pebble.Open("zone", &pebble.Options{
		FS: fs, FormatMajorVersion: engine.Format, Logger: quiet{}, Merger: &pebble.Merger{Name: "starling.height.v2", Merge: leafMerger.Merge},
	})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	refusesNewer(t, fs, "merger starling.height.v2, this program knows "+mergerName)
}
