package storage

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// crashFS copies a crashable file system as a crash would leave it, just before its n-th change. A
// random part of the unsynced data survives.
type crashFS struct {
	vfs.FS
	changes atomic.Int64
	crash   struct {
		sync.Once
		left *vfs.MemFS
		at   int64 // value of progress at the crash
	}
	progress atomic.Int64 // maintained by the test
	cfg      vfs.CrashCloneCfg
}

func newCrashFS(rng *rand.Rand, n int64) *crashFS { return newCrashFSOn(vfs.NewCrashableMem(), rng, n) }

func newCrashFSOn(mem *vfs.MemFS, rng *rand.Rand, n int64) *crashFS {
	c := &crashFS{cfg: vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}}
	var links sync.Mutex
	c.FS = errorfs.Wrap(lockedLinks{mem, &links}, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || c.changes.Add(1) < n {
			return nil
		}
		c.crash.Do(func() {
			c.crash.at = c.progress.Load()
			links.Lock()
			defer links.Unlock()
			c.crash.left = mem.CrashClone(c.cfg)
		})
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

// changesOf counts the file system changes made by run.
func changesOf(t *testing.T, run func(*crashFS)) int64 {
	t.Helper()
	c := newCrashFS(newRNG(0), 1<<60)
	run(c)
	return c.changes.Load()
}

// TestCrashDuringWrites: after a crash at any point, the zone is at or above the last height
// confirmed by Flush, its state is exactly the one after that block, and the same holds for each
// pin. Confirmed pins exist.
func TestCrashDuringWrites(t *testing.T) {
	const crashes, blocks, pinEvery = 80, 60, 7
	all, history := randomHistory(newRNG(1), blocks)
	run := func(c *crashFS) {
		opts := testOptions(c)
		opts.FlushBlocks, opts.Generations = 4, true
		s, err := Open("zone", opts)
		require.NoError(t, err)
		for i, b := range all {
			if b.Meta.Height%pinEvery == 0 {
				pinWith(&b, withPin(fmt.Sprint("pin ", b.Meta.Height)))
			}
			require.NoError(t, s.Write(b))
			if i%5 == 4 {
				require.NoError(t, s.Flush())
				c.progress.Store(b.Meta.Height)
			}
			if i%20 == 19 {
				require.NoError(t, s.DropPin(7*int64(i/20+1)))
				s.Trim(b.Meta.Height-5, nil)
			}
		}
		require.NoError(t, s.Close())
	}
	total := changesOf(t, run)
	heights, pins := map[int64]int{}, 0
	for seed := range uint64(crashes) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := newRNG(seed)
			c := newCrashFS(rng, 1+rng.Int64N(total))
			run(c)
			if c.crash.left == nil {
				return // fewer changes this time: background work varies
			}
			s := openZone(t, c.crash.left)
			safe := s.Safe()
			require.GreaterOrEqual(t, safe, c.crash.at)
			history[safe].requireIn(t, s)
			heights[safe]++
			for _, p := range s.Pins() {
				require.Equal(t, fmt.Sprint("pin ", p.Height), string(p.Data))
				require.Equal(t, history[p.Height].records(nil, nil), pinRecords(t, s, p.Height))
				pins++
			}
			next := Block{Meta: testMeta(blocks + 1)} // and it continues from there
			write(t, s, next)
			require.NoError(t, s.Close())
			history[safe].apply(next).requireIn(t, openZone(t, c.crash.left))
		})
	}
	require.Greater(t, len(heights), 10)
	require.Positive(t, pins)
	t.Logf("%d changes of files; heights after the crash -> times: %v; pins: %d", total, heights, pins)
}

// restoreStep is the expected state of a restore at a point in its life.
type restoreStep struct {
	runs  map[RunID]bool
	label string
}

// TestCrashDuringRestore: after a crash at any point of a restore, of its settling, and of the
// first flush after it, the zone has the old state, none, the restored state, or the state after
// the block. If it has none, the restore can be resumed; if only the process was killed, with every
// run whose Add had returned.
func TestCrashDuringRestore(t *testing.T) {
	const crashes = 160
	first := Block{Meta: testMeta(3), Pin: true, Puts: []record.Leaf{{Key: []byte("old"), Value: []byte("1")}}}
	old := emptyModel().apply(first)
	restored := emptyModel()
	restored.meta = testMeta(9)
	restored.meta.Restored = true
	for i := range 400 {
		restored.leaves[fmt.Sprintf("%04d", i)] = strings.Repeat("x", 500)
		restored.heights[fmt.Sprintf("%04d", i)] = 1
	}
	// The following block changes restored leaves: an old value must not win.
	block := Block{Meta: testMeta(10), Deletes: [][]byte{[]byte("0003")}, Puts: []record.Leaf{{Key: []byte("0007"), Value: []byte("new")}}}
	later := restored.apply(block)
	runs := testRuns(restored, 40)
	ids := idsOf(runs)
	const began = 1 // index of the step
	committed := 0
	var steps []restoreStep
	run := func(c *crashFS, readable bool) {
		steps = nil
		now := restoreStep{runs: map[RunID]bool{}}
		done := func() {
			steps = append(steps, restoreStep{maps.Clone(now.runs), now.label})
			c.progress.Store(int64(len(steps) - 1))
		}
		s, err := Open("zone", testOptions(c))
		require.NoError(t, err)
		write(t, s, first)
		done()
		r, err := s.BeginRestore([]byte("a"))
		require.NoError(t, err)
		now.label = "a"
		done()
		for i, id := range ids {
			addRuns(t, r, runs, id)
			now.runs[id] = true
			done()
			switch i {
			case 3: // another target
				require.NoError(t, r.SetLabel([]byte("b")))
				now.label = "b"
				done()
				require.NoError(t, r.Remove(ids[1]))
				delete(now.runs, ids[1])
				done()
			case 6:
				r.Close()
				r, err = s.ResumeRestore()
				require.NoError(t, err)
				done()
			}
		}
		addRuns(t, r, runs, ids[1])
		now.runs[ids[1]] = true
		done()
		if readable {
			require.NoError(t, r.Readable())
			done()
		}
		require.NoError(t, r.Commit(restored.meta))
		done()
		committed = len(steps) - 1
		write(t, s, block)
		done()
		require.NoError(t, s.Close())
	}
	total := changesOf(t, func(c *crashFS) { run(c, true) })
	seen := map[string]int{}
	for seed := range uint64(crashes) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := newRNG(1000 + seed)
			at := 1 + rng.Int64N(total)
			if seed < 40 {
				at = total - int64(seed) // the final phase is short
			}
			c := newCrashFS(rng, at)
			killed := seed%2 == 0 // otherwise a power loss
			if killed {
				c.cfg.UnsyncedDataPercent = 100
			}
			run(c, rng.IntN(2) == 0)
			if c.crash.left == nil {
				return
			}
			s := openZone(t, c.crash.left)
			before := int(c.crash.at)
			after := min(before+1, len(steps)-1) // or on the way to the next step
			got, label, resumable := read(t, s), "", false
			if b, ok := s.Interrupted(); ok {
				label, resumable = string(b), true
			}
			for _, p := range s.Pins() {
				require.EqualValues(t, 3, p.Height)
				require.Equal(t, old.meta.Height, got.meta.Height, "a pin of a state that no longer exists")
				require.Equal(t, old.records(nil, nil), pinRecords(t, s, 3))
			}
			switch got.meta.Height {
			case 10:
				seen["later"]++
				require.GreaterOrEqual(t, before, committed)
				require.False(t, resumable)
				require.Equal(t, later, got)
				return
			case 9:
				seen["restored"]++
				require.GreaterOrEqual(t, after, committed)
				require.LessOrEqual(t, before, committed)
				require.False(t, resumable)
				require.Equal(t, restored, got)
				write(t, s, block)
				later.requireIn(t, s)
				require.NoError(t, s.Close())
				later.requireIn(t, openZone(t, c.crash.left))
				return
			case 3:
				seen["old"]++
				require.Less(t, before, began)
				require.False(t, resumable)
				require.Equal(t, old, got)
				return
			}
			require.Equal(t, emptyModel(), got)
			require.Less(t, before, committed)
			if !resumable {
				seen["empty"]++
				require.Less(t, before, began)
				return
			}
			seen["resumed"]++
			require.Contains(t, []string{steps[before].label, steps[after].label}, label)
			r, err := s.ResumeRestore()
			require.NoError(t, err)
			for id := range steps[before].runs {
				if killed && steps[after].runs[id] {
					require.Contains(t, r.Runs(), id)
				}
			}
			for _, id := range r.Runs() {
				leaves, err := readRun(r, id)
				if err != nil {
					require.False(t, killed)
					seen["unreadable runs"]++
					require.NoError(t, r.Remove(id))
					continue
				}
				require.Equal(t, runs[id], leaves)
			}
			for _, id := range ids {
				if !slices.Contains(r.Runs(), id) {
					addRuns(t, r, runs, id)
				}
			}
			require.NoError(t, r.Commit(restored.meta))
			require.NoError(t, s.Close())
			restored.requireIn(t, openZone(t, c.crash.left))
		})
	}
	require.Positive(t, min(seen["old"], seen["empty"], seen["resumed"], seen["restored"], seen["later"]), "%v", seen)
	t.Logf("found after the crash -> times: %v", seen)
}

// TestCrashDuringRollback: after a crash at any point of a rollback, the zone has the newer state
// or the pin's.
func TestCrashDuringRollback(t *testing.T) {
	const crashes, pinned, blocks = 40, 12, 20
	all, history := randomHistory(newRNG(2), blocks)
	prepare := func() *vfs.MemFS {
		mem := vfs.NewCrashableMem()
		s, err := Open("zone", testOptions(mem))
		require.NoError(t, err)
		for _, b := range all {
			if b.Meta.Height == pinned || b.Meta.Height == pinned+3 {
				pinWith(&b, withPin("\x01"))
			}
			write(t, s, b)
		}
		require.NoError(t, s.Close())
		return mem
	}
	before := newCrashFSOn(prepare(), newRNG(0), 1)
	require.NoError(t, RollbackToPin("zone", pinned, testOptions(before)))
	require.EqualValues(t, blocks, openZone(t, before.crash.left).Safe(), "a crash before the first change")
	mem := prepare()
	c := newCrashFSOn(mem, newRNG(0), 1<<60)
	require.NoError(t, RollbackToPin("zone", pinned, testOptions(c)))
	after := mem.CrashClone(vfs.CrashCloneCfg{})
	require.EqualValues(t, pinned, openZone(t, after).Safe(), "a crash after the last one")

	total := c.changes.Load()
	for seed := range uint64(crashes) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := newRNG(seed)
			c := newCrashFSOn(prepare(), rng, 1+rng.Int64N(total))
			require.NoError(t, RollbackToPin("zone", pinned, testOptions(c)))
			if c.crash.left == nil {
				return
			}
			s := openZone(t, c.crash.left)
			require.Contains(t, []int64{pinned, blocks}, s.Safe())
			history[s.Safe()].requireIn(t, s)
			for _, p := range s.Pins() {
				require.LessOrEqual(t, p.Height, s.Safe())
				require.Equal(t, history[p.Height].records(nil, nil), pinRecords(t, s, p.Height))
			}
		})
	}
}

func pinRecords(t *testing.T, s *Zone, height int64) []byte {
	t.Helper()
	p, err := s.OpenPin(height)
	require.NoError(t, err)
	records, err := p.Range(nil, nil, 1<<40)
	require.NoError(t, err)
	require.NoError(t, p.Close())
	if len(records) == 0 {
		return nil
	}
	return records
}
