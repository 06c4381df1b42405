package blocks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

func TestBytes(t *testing.T) {
	z := openZone(t, vfs.NewMem(), Options{})
	random := rand.NewChaCha8([32]byte{})
	value := make([]byte, 20_000) // incompressible
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
	require.Less(t, small, uint64(2*len(value)), "one block of the file, at most with its neighbors")
	require.NoError(t, z.Close())
	_, err = z.Bytes("large")
	require.ErrorIs(t, err, ErrClosed)
}

// TestVerify: a change of any byte of any table is found, unless the byte is in no block and no
// footer. The file is named, and the others are reported as undamaged.
func TestVerify(t *testing.T) {
	mem := vfs.NewMem()
	z, err := Open("zone", Options{FS: mem, MemTableBytes: smallMemTable})
	require.NoError(t, err)
	rng := newRNG(t, 3)
	for i := range 600 {
		require.NoError(t, z.DB(ids[i%len(ids)]).Set(fmt.Appendf(nil, "%04d", i), fmt.Appendf(nil, "%0*d", 1+rng.IntN(4000), rng.Int64())))
	}
	require.NoError(t, z.Close())
	names, err := mem.List("zone")
	require.NoError(t, err)
	verify := func(fs vfs.FS) (Tables, error) {
		z, err := Open("zone", Options{FS: fs, ReadOnly: true})
		if err != nil {
			return Tables{}, err
		}
		told := uint64(0)
		good, err := z.Verify(t.Context(), func(done, total uint64) {
			require.LessOrEqual(t, done, total)
			told = done
		})
		require.GreaterOrEqual(t, told, good.Bytes)
		return good, errors.Join(err, z.Close())
	}
	all, err := verify(mem)
	require.NoError(t, err)
	require.Greater(t, all.Count, 1)
	found := 0
	for _, name := range names {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		for range 40 {
			fs := vfs.NewMem()
			_, err := vfs.Clone(mem, fs, "zone", "zone")
			require.NoError(t, err)
			at := flipBit(t, fs, "zone/"+name, rng)
			good, err := verify(fs)
			require.ErrorIs(t, err, ErrCorrupt, "%s, byte %d", name, at)
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, err, "put back a copy")
			if good.Count > 0 { // otherwise it did not open
				require.Equal(t, all.Count-1, good.Count)
				found++
			}
		}
	}
	require.Positive(t, found)

	z = openZone(t, mem, Options{ReadOnly: true})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = z.Verify(ended, nil)
	require.ErrorIs(t, err, context.Canceled)
}

// flipBit changes a bit of a file, and returns its position.
func flipBit(t *testing.T, fs vfs.FS, path string, rng *rand.Rand) (at int64) {
	t.Helper()
	file, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	info, err := file.Stat()
	require.NoError(t, err)
	var b [1]byte
	at = rng.Int64N(info.Size())
	_, err = file.ReadAt(b[:], at)
	require.NoError(t, err)
	b[0] ^= byte(1 << rng.IntN(8))
	_, err = file.WriteAt(b[:], at)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	return at
}
