package blocks

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

func TestBytes(t *testing.T) {
	z := openZone(t, vfs.NewMem(), Options{})
	random := rand.NewChaCha8([32]byte{})
	value := make([]byte, 20_000) // of which nothing can be compressed away
	for i := range 50 {
		_, _ = random.Read(value)
		require.NoError(t, z.DB("large").Set(fmt.Appendf(nil, "%02d", i), value))
	}
	require.NoError(t, z.DB("small").SetSync([]byte("key"), []byte("value")))
	require.NoError(t, z.Compact(t.Context(), nil))
	large, err := z.Bytes("large")
	require.NoError(t, err)
	require.InEpsilon(t, 50*len(value), large, 0.1)
	small, err := z.Bytes("small")
	require.NoError(t, err)
	require.Less(t, small, uint64(2*len(value)), "a block of the file, at most with its neighbours")
	require.NoError(t, z.Close())
	_, err = z.Bytes("large")
	require.ErrorIs(t, err, ErrClosed)
}
