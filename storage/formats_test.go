package storage

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
	"github.com/stretchr/testify/require"
)

// refusesNewer opens the zone, twice since a failed Open must let go of the lock, and expects it to name both numbers and the way out.
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
	for _, above := range []uint64{1, 1000} { // known to Pebble, perhaps, and not to anybody
		set(fmt.Sprintf("%03d", DatabaseFormat+above))
		refusesNewer(t, fs, fmt.Sprintf("database format %d, this program knows up to %d", DatabaseFormat+above, DatabaseFormat))
	}
	set("none")
	_, err := Open("zone", Options{FS: fs})
	require.ErrorIs(t, err, ErrCorrupt)
	set(fmt.Sprintf("%03d", DatabaseFormat)) // nothing was changed meanwhile
	require.NoError(t, openZone(t, fs).Close())
}

// A join that a newer program began is not thrown away.
func TestRestoreOfANewerFormatIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	restore, err := s.BeginRestore([]byte("label"))
	require.NoError(t, err)
	require.NoError(t, restore.Add("run", func(yield func(Leaf) bool) { yield(Leaf{Key: []byte("k"), Value: []byte("v")}) }))
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
