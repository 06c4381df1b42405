package blocks

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cometbft/cometbft-db"
	"github.com/stretchr/testify/require"
)

func openZone(t testing.TB, fs vfs.FS, o Options) *Zone {
	t.Helper()
	o.FS = fs
	z, err := Open("zone", o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, z.Close()) })
	return z
}

// content reads everything, forwards and backwards.
func content(t testing.TB, db dbm.DB) map[string]string {
	t.Helper()
	var both [2]map[string]string
	for i, open := range []func(start, end []byte) (dbm.Iterator, error){db.Iterator, db.ReverseIterator} {
		it, err := open(nil, nil)
		require.NoError(t, err)
		both[i] = map[string]string{}
		for ; it.Valid(); it.Next() {
			both[i][string(it.Key())] = string(it.Value())
		}
		require.NoError(t, it.Error())
		require.NoError(t, it.Close())
	}
	require.Equal(t, both[0], both[1])
	return both[0]
}

func requireInvalid(t *testing.T, it dbm.Iterator) {
	t.Helper()
	require.False(t, it.Valid())
	require.Panics(t, it.Next)
	require.Panics(t, func() { it.Key() })
	require.Panics(t, func() { it.Value() })
}

// TestDatabaseAlone covers what the tests of cometbft-db (folder conformance) do not: closing a
// database leaves the zone open, compacting an empty range is not an error, and a closed batch
// stays closed.
func TestDatabaseAlone(t *testing.T) {
	db := openZone(t, vfs.NewMem(), Options{}).DB("test")
	require.NoError(t, db.Set([]byte("x"), []byte{}))
	require.NoError(t, db.Compact([]byte("x"), []byte("x")))
	require.NotEmpty(t, db.Stats())
	b := db.NewBatch()
	require.NoError(t, b.Set([]byte("y"), []byte{1}))
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Write(), ErrBatchClosed)
	require.NoError(t, db.Close())
	require.Equal(t, map[string]string{"x": ""}, content(t, db))
}
