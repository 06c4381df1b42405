package storagenode

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/archive"
)

// exported is a version as the source of a snapshot file.
type exported struct{ *avlstar.Version }

func (exported) Height() int64      { return 1 }
func (e exported) Manifest() []byte { return e.Version.Manifest().Encode() }

// A range is taken over from a snapshot file alone. The file is not trusted: another state, or
// damaged bytes, are refused.
func TestTakesOverFromASnapshotFile(t *testing.T) {
	v := manyLeaves(t, 8000)
	path := filepath.Join(t.TempDir(), "snapshot")
	_, err := archive.WriteFile(t.Context(), path, false, exported{v}, archive.Options{ChainID: "test-chain"})
	require.NoError(t, err)
	open := func(path string) *snapshotFile {
		t.Helper()
		f, err := openSnapshotFile(path, "test-chain", log.NewNopLogger())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, f.Close()) })
		return f
	}
	f := open(path)
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.prepare(stopped), context.Canceled)
	require.NoError(t, f.prepare(t.Context()), "the next attempt reads it")
	for _, keys := range []avlstar.KeyRange{{}, {First: []byte("key-01"), After: []byte("key-06000")}, {First: []byte("z")}} {
		require.NoError(t, takeAll(t, v, keys, &giver{Conn: f}))
	}

	other, err := v.Apply([]avlstar.Change{{Key: []byte("key-00005"), Value: []byte("another")}})
	require.NoError(t, err)
	defer other.Release()
	require.ErrorIs(t, takeAll(t, other, avlstar.KeyRange{}, &giver{Conn: f}), errLied)

	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[len(b)/2] ^= 1
	damaged := filepath.Join(t.TempDir(), "damaged")
	require.NoError(t, os.WriteFile(damaged, b, 0o600))
	bad := open(damaged)
	for range 2 {
		require.ErrorIs(t, bad.prepare(t.Context()), archive.ErrDamaged)
	}

	_, err = openSnapshotFile(path, "another-chain", log.NewNopLogger())
	require.ErrorIs(t, err, config.ErrInvalid)
}
