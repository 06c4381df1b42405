package disktest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

// Dir is a folder that exists durably in a CrashFS.
const Dir = "/node"

// CrashFS is an in-memory file system that is copied as a crash would leave it, just before its
// n-th change: a random part of the unsynced data survives.
type CrashFS struct {
	vfs.FS
	// Left is the copy; nil if there were fewer than n changes.
	Left *vfs.MemFS
	// Confirmed is the value of Done when the copy was made.
	Confirmed int64
	// Done counts the steps that the test has completed. The test maintains it.
	Done atomic.Int64

	changes atomic.Int64
	once    sync.Once
}

// NewCrashFS returns a CrashFS with the folder Dir.
func NewCrashFS(t testing.TB, rng *rand.Rand, n int64) *CrashFS {
	t.Helper()
	mem := vfs.NewCrashableMem()
	require.NoError(t, mem.MkdirAll(Dir, 0o755))
	root, err := mem.OpenDir("/")
	require.NoError(t, err)
	require.NoError(t, root.Sync())
	require.NoError(t, root.Close())

	c := &CrashFS{}
	cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}
	c.FS = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && c.changes.Add(1) == n {
			c.once.Do(func() { c.Confirmed, c.Left = c.Done.Load(), mem.CrashClone(cfg) })
		}
		return nil
	}))
	return c
}

// Changes returns the number of changes so far.
func (c *CrashFS) Changes() int64 { return c.changes.Load() }

// AtEachChange runs a test once without a crash, and then with a crash before every step-th change
// of the file system. run gets the file system to work on; check gets what is left.
func AtEachChange(t *testing.T, seed uint64, step int64, run func(*CrashFS), check func(t *testing.T, c *CrashFS)) {
	t.Helper()
	all := NewCrashFS(t, rand.New(rand.NewPCG(seed, 0)), 0) //nolint:gosec // it must be reproducible
	run(all)
	crashes := 0
	for n := int64(1); n <= all.Changes(); n += step {
		c := NewCrashFS(t, rand.New(rand.NewPCG(seed, uint64(n))), n) //nolint:gosec // as above
		run(c)
		require.NotNil(t, c.Left, "crash before change %d of %d", n, all.Changes())
		check(t, c)
		if t.Failed() {
			t.Logf("crash before change %d of %d", n, all.Changes())
			return
		}
		crashes++
	}
	require.Positive(t, crashes)
	t.Logf("%d crashes in %d changes of files", crashes, all.Changes())
}
