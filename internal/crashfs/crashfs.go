// Package crashfs is a file system in memory for tests: it is copied as a crash at some moment
// would leave it.
package crashfs

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

// Dir is a folder that exists durably in a FS.
const Dir = "/node"

// FS is an in-memory file system that is copied as a crash would leave it, just before its
// n-th change: a random part of the unsynced data survives.
type FS struct {
	vfs.FS
	// Left is the copy; nil if there were fewer than n changes.
	Left *vfs.MemFS
	// Confirmed is the value of Done when the copy was made.
	Confirmed int64
	// Done counts the steps that the test has completed. The test maintains it.
	Done atomic.Int64

	changes atomic.Int64
}

// New returns a FS with the folder Dir.
func New(t testing.TB, rng *rand.Rand, n int64) *FS {
	t.Helper()
	mem := vfs.NewCrashableMem()
	require.NoError(t, mem.MkdirAll(Dir, 0o755))
	root, err := mem.OpenDir("/")
	require.NoError(t, err)
	require.NoError(t, root.Sync())
	require.NoError(t, root.Close())

	c := &FS{}
	cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}
	var links sync.Mutex
	c.FS = errorfs.Wrap(lockedLinks{mem, &links}, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && c.changes.Add(1) == n {
			links.Lock()
			defer links.Unlock()
			c.Confirmed, c.Left = c.Done.Load(), mem.CrashClone(cfg)
		}
		return nil
	}))
	return c
}

// lockedLinks prevents Link from running concurrently with CrashClone. MemFS.Link takes a lock
// twice for reading, and deadlocks if CrashClone requests it in between (pebble v2.1.7).
type lockedLinks struct {
	*vfs.MemFS
	mu *sync.Mutex // held during CrashClone
}

func (l lockedLinks) Link(from, to string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.MemFS.Link(from, to)
}

// Changes returns the number of changes so far.
func (c *FS) Changes() int64 { return c.changes.Load() }

// AtEachChange runs a test once without a crash, and then with a crash before every step-th change
// of the file system. run gets the file system to work on; check gets what is left. If run writes
// from several goroutines, their number of changes varies; a run that ends before the crash is then
// left out.
func AtEachChange(t *testing.T, seed uint64, step int64, run func(*FS), check func(t *testing.T, c *FS)) {
	t.Helper()
	all := New(t, rand.New(rand.NewPCG(seed, 0)), 0) //nolint:gosec // it must be reproducible
	run(all)
	crashes := 0
	for n := int64(1); n <= all.Changes(); n += step {
		c := New(t, rand.New(rand.NewPCG(seed, uint64(n))), n) //nolint:gosec // as above
		run(c)
		if c.Left == nil {
			continue
		}
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
