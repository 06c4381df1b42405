package serve_test

import (
	"encoding/binary"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/sdk/serve"
)

// TestReleasedWhileRead checks that an iteration over a whole state ends soon after the release of
// its snapshot. A stopping node waits for such iterations.
func TestReleasedWhileRead(t *testing.T) {
	forEngines(t, func(t *testing.T, engine dbm.BackendType) {
		const keys, soon = 10_000, 1024
		db := open(t, engine, t.TempDir())
		b := db.NewBatch()
		for k := range uint32(keys) {
			require.NoError(t, b.Set(binary.BigEndian.AppendUint32(nil, k), []byte("v")))
		}
		require.NoError(t, b.WriteSync())
		snapshot, release, err := serve.Freeze(db)
		require.NoError(t, err)
		it, err := snapshot.Iterator(nil, nil)
		require.NoError(t, err)
		n := 0
		for ; it.Valid(); it.Next() {
			if n++; n == keys/2 {
				require.NoError(t, it.Error())
				require.NoError(t, release())
			}
		}
		require.LessOrEqual(t, n, keys/2+soon)
		require.ErrorIs(t, it.Error(), serve.ErrReleased)
		require.NoError(t, it.Close())
		_, err = snapshot.Get([]byte("k"))
		require.ErrorIs(t, err, serve.ErrReleased)
		require.NoError(t, db.Close())
	})
}
