package storage

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// refusesNewer opens the zone, twice since a failed Open must let go of the lock, and expects it to
// name both numbers and the way out.
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
	require.NoError(t, addLeaves(restore, "run", []record.Leaf{{Key: []byte("k"), Value: []byte("v")}}))
	require.NoError(t, s.Close())
	for _, file := range []struct {
		name, what string
		newer      func(b []byte) []byte
	}{
		{labelFile, "interrupted join of format 2, this program knows up to 1", func(b []byte) []byte { b[0]++; return resum(b) }},
		{journalFile, "journal of an interrupted join, of format 4, this program knows up to 3", func(b []byte) []byte { b[0]++; return b }},
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

// A pin of version 1 had its description in an envelope of its own; without a description it had
// one envelope only.
func TestPinsOfVersion1AreRead(t *testing.T) {
	fs := vfs.NewMem()
	s := openZone(t, fs)
	for i, data := range []string{"", "description"} {
		height := int64(i + 1)
		b := blockOf(height, "a", fmt.Sprint(height))
		b.PinData = withPin(data)
		write(t, s, b)
	}
	require.NoError(t, s.Close())
	old := map[int64][]byte{1: nil, 2: version1(2, []byte("description"))}
	for height, data := range old {
		require.NoError(t, writeSynced(fs, fs.PathJoin(s.pinPath("", height), pinDescription), version1(height, data)))
	}
	s = openZone(t, fs)
	require.Equal(t, []PinInfo{{1, []byte{}}, {2, []byte("description")}}, s.Pins())
	pin, err := s.OpenPin(2)
	require.NoError(t, err)
	require.NoError(t, pin.Close())
	require.NoError(t, s.Close())

	// What is not whole in either envelope is removed; a newer one stays, unread.
	for name, c := range map[string]struct {
		file []byte
		err  error
	}{
		"no second envelope":    {version1(2, []byte("description")), ErrCorrupt},
		"another height within": {version1(2, version1(1, []byte("description"))), ErrCorrupt},
		"a newer one within":    {version1(2, sealPin(3, 2, []byte("description"))), ErrCorrupt},
		"another height":        {sealPin(2, 1, []byte("description")), ErrCorrupt},
		"flipped bit":           {append(sealPin(2, 2, nil)[:12], 0), ErrCorrupt},
		"version 0":             {sealPin(0, 2, nil), ErrNewerFormat},
		"version 3":             {sealPin(3, 2, nil), ErrNewerFormat},
		"version 3, other form": {sealPin(3, 7, nil), ErrNewerFormat},
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

// version1 is the envelope as version 1 wrote it.
func version1(height int64, data []byte) []byte {
	b := append(binary.BigEndian.AppendUint64([]byte{1}, uint64(height)), data...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}
