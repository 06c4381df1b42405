package server_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/dsm/server/disktest"
	"github.com/starling-kv/starling/internal/seeds"
)

// A log that ends below the only readable state is reset. After a crash before any change of the
// file system during the reset, the replica has that state and all updates acknowledged since, and
// it continues.
func TestCrashWhileTheLogIsReset(t *testing.T) {
	const stored, blocks = 10, 16
	seed := seeds.New(t)
	rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // it must be reproducible
	c := newChain(t, rng, evenRanges(2), blocks+1)
	c.proved.Store(blocks + 1)
	options := func(fsys vfs.FS) server.Options {
		o := c.options(t, fsys, 1)
		o.Log.FileBytes = 1 // a file for each update
		return o
	}
	damage := func(fsys vfs.FS, name string) {
		name = path.Join(disktest.Dir, "range-1", name)
		b := readFile(t, fsys, name)
		b[len(b)-20] ^= 1
		writeFile(t, fsys, name, b)
		for _, name := range []string{name, path.Dir(name)} {
			f, err := fsys.OpenDir(name)
			require.NoError(t, err)
			require.NoError(t, errors.Join(f.Sync(), f.Close()))
		}
	}
	run := func(fsys *disktest.CrashFS) {
		c.create(t, options(fsys), 0)
		r := openReplica(t, options(fsys))
		c.feed(t, r, 1, stored)
		require.NoError(t, r.Close())
		damage(fsys, fmt.Sprintf("log/%06d.seg", stored) /* one for each height */)
		damage(fsys, fmt.Sprintf("states/%020d.state", 0))
		damage(fsys, fmt.Sprintf("states/%020d.state", 5))
		fsys.Done.Store(stored)
		r = openReplica(t, options(fsys))
		require.EqualValues(t, stored, r.Recovered().State)
		for height := int64(stored + 1); height <= blocks; height++ {
			c.feed(t, r, 1, height)
			fsys.Done.Add(1)
		}
		require.NoError(t, r.Close())
	}
	resets := 0
	disktest.AtEachChange(t, seed, 1, run, func(t *testing.T, fsys *disktest.CrashFS) {
		if fsys.Confirmed < stored {
			return // TestCrash covers these
		}
		r := openReplica(t, options(fsys.Left))
		if len(r.Recovered().Damaged) > 0 {
			resets++
		}
		newest := r.Claim().Newest
		require.Contains(t, []int64{fsys.Confirmed, fsys.Confirmed + 1}, newest)
		c.requireSame(t, r, 1, max(stored, newest-7), newest)
		c.feed(t, r, 1, newest+1)
		require.NoError(t, r.Close())
		r = openReplica(t, options(fsys.Left))
		require.Empty(t, r.Recovered().Damaged, "damaged states were not dropped")
		require.Equal(t, newest+1, r.Claim().Newest)
		c.requireSame(t, r, 1, max(stored, newest-6), newest+1)
		require.NoError(t, r.Close())
	})
	require.Greater(t, resets, stored, "a crash before each file was removed")
}
