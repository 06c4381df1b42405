package storage

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// heldFS prevents tables of a restored state from being created before release.
type heldFS struct {
	vfs.FS
	reached chan struct{} // receives a value when the first one is about to be created
	release func()
}

func hold(fs vfs.FS) *heldFS {
	held, reached := make(chan struct{}), make(chan struct{}, 1)
	return &heldFS{
		FS: errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpCreate && strings.Contains(op.Path, "ingest") {
				select {
				case reached <- struct{}{}:
				default:
				}
				<-held
			}
			return nil
		})),
		reached: reached, release: sync.OnceFunc(func() { close(held) }),
	}
}

// unsettledZone returns a zone with a restored state that is not settled before fs.release.
func unsettledZone(t *testing.T, fs *heldFS, opts Options, want model) *Zone {
	t.Helper()
	opts.FS = fs
	s, err := Open("zone", opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		fs.release()
		require.NoError(t, s.Close())
	})
	r, err := s.BeginRestore([]byte("label"))
	require.NoError(t, err)
	runs := testRuns(want, 9)
	addRuns(t, r, runs, idsOf(runs)...)
	require.NoError(t, r.Commit(want.meta))
	<-fs.reached
	return s
}

// requireUnsettled requires that a state is readable like any other although it is not in the
// database.
func requireUnsettled(t *testing.T, s *Zone, want model) {
	t.Helper()
	want.requireIn(t, s)
	require.Equal(t, want.meta.Height, s.Safe())
	_, ok := s.Interrupted()
	require.False(t, ok)
	require.Nil(t, s.Kept(math.MaxInt64))
	leaves := want.list()
	for i := range leaves {
		first, after := leaves[i].Key, leaves[min(i+10, len(leaves)-1)].Key
		records := want.records(first, after)
		var got []byte
		require.NoError(t, s.Page(first, after, uint64(len(records)), func(b []byte) bool { got = bytes.Clone(b); return true }))
		require.Equal(t, string(records), string(got))
	}
	keys, err := s.EstimateKeys()
	require.NoError(t, err)
	require.InEpsilon(t, len(leaves), keys, 0.2)
	require.GreaterOrEqual(t, s.DiskBytes(), uint64(len(want.records(nil, nil))))
	require.Equal(t, s.DiskBytes(), s.Metrics().DiskBytes)
	require.NotEmpty(t, s.Levels())
}

// TestBlocksWaitUntilSettled: changes of a later block win although its tables are created first,
// and none is flushed before the state is settled.
func TestBlocksWaitUntilSettled(t *testing.T) {
	for _, generations := range []bool{false, true} {
		mem, want := vfs.NewCrashableMem(), restoredSmall()
		fs := hold(mem)
		opts := testOptions(fs)
		opts.Generations, opts.FlushBlocks = generations, 1
		s := unsettledZone(t, fs, opts, want)
		settled := s.Settled()
		requireUnsettled(t, s, want)
		leaves, later := want.list(), want
		for height := int64(78); height < 81; height++ {
			b := Block{
				Meta: testMeta(height), Deletes: [][]byte{leaves[height].Key},
				Puts: []record.Leaf{{Key: leaves[5].Key, Value: fmt.Append(nil, height)}, {Key: fmt.Append(nil, height), Value: []byte("1")}},
			}
			require.NoError(t, s.Write(b))
			later = later.apply(b)
		}
		requireUnsettled(t, s, want)
		// After a kill or a power loss, the blocks are executed again.
		for _, percent := range []int{0, 100} {
			want.requireIn(t, openZone(t, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: newRNG(1)})))
		}
		select {
		case <-settled:
			require.FailNow(t, "settled without its tables")
		default:
		}
		fs.release()
		<-settled
		require.NoError(t, s.Flush())
		later.requireIn(t, s)
		kept := s.Kept(80)
		require.EqualValues(t, 80, kept.Height())
		kept.Release()
		requireNoFolder(t, s, mem)
		require.NoError(t, s.Close())
		later.requireIn(t, openZone(t, mem))
	}
}

// TestCloseBeforeSettled: Close does not settle. It creates no table after the current one and
// drops the waiting blocks, and the next start settles.
func TestCloseBeforeSettled(t *testing.T) {
	mem, want := vfs.NewMem(), restoredSmall()
	fs := hold(mem)
	s := unsettledZone(t, fs, testOptions(fs), want)
	settled, dropped := s.Settled(), make(chan struct{})
	b := blockOf(78, "new 001", "later")
	ownerOf(&b).done = func() { close(dropped) }
	require.NoError(t, s.Write(b))
	var closing sync.WaitGroup
	closing.Go(func() { require.NoError(t, s.Close()) })
	<-s.mu.unsettled.givenUp
	fs.release()
	closing.Wait()
	<-settled
	<-dropped
	require.ErrorIs(t, s.Flush(), ErrClosed)
	require.ErrorIs(t, s.Settle(t.Context()), ErrClosed)
	again := hold(mem)
	s, err := Open("zone", testOptions(again))
	require.NoError(t, err)
	<-again.reached
	requireUnsettled(t, s, want)
	again.release()
	require.NoError(t, s.Settle(t.Context()))
	requireNoFolder(t, s, mem)
	want.requireIn(t, s)
	ownerOf(&b).done = nil
	write(t, s, b)
	require.NoError(t, s.Close())
	want.apply(b).requireIn(t, openZone(t, mem))
}

// StopSettling lets a Write that waits for the backlog return, and later ones, too. Close drops all
// their blocks.
func TestStopSettling(t *testing.T) {
	mem, want := vfs.NewMem(), restoredSmall()
	fs := hold(mem)
	opts := testOptions(fs)
	opts.FlushBlocks, opts.MaxLagBlocks = 1, 2
	s := unsettledZone(t, fs, opts, want)
	var writing, dropped sync.WaitGroup
	dropped.Add(12)
	full := make(chan struct{})
	writing.Go(func() {
		for height := int64(78); height < 90; height++ {
			b := blockOf(height, "a", fmt.Sprint(height))
			ownerOf(&b).done = dropped.Done
			if height == 80 {
				close(full)
			}
			require.NoError(t, s.Write(b))
		}
	})
	<-full
	s.StopSettling()
	writing.Wait()
	fs.release()
	requireUnsettled(t, s, want)
	require.NoError(t, s.Close())
	dropped.Wait()
	s = openZone(t, mem)
	require.NoError(t, s.Settle(t.Context()))
	want.requireIn(t, s)
	s.StopSettling() // nothing to stop
	write(t, s, blockOf(78, "a", "1"))
}

// TestSettleFails: Settle ends with the caller's context, and returns the error of a disk that
// accepts no tables.
func TestSettleFails(t *testing.T) {
	mem, want := vfs.NewMem(), restoredSmall()
	fs := hold(mem)
	s := unsettledZone(t, fs, testOptions(fs), want)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Settle(ctx), context.Canceled)
	requireUnsettled(t, s, want)
	fs.release()
	require.NoError(t, s.Settle(t.Context()))

	full := vfs.NewMem()
	fs = hold(errorfs.Wrap(full, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && strings.Contains(op.Path, "ingest") {
			return syscall.ENOSPC
		}
		return nil
	})))
	s = unsettledZone(t, fs, testOptions(fs), want)
	fs.release()
	require.ErrorIs(t, s.Settle(t.Context()), ErrDiskFull)
	require.ErrorIs(t, s.Compact(t.Context(), nil), ErrDiskFull)
	require.NoError(t, s.Close())
	s = openZone(t, full)
	require.NoError(t, s.Settle(t.Context()))
	want.requireIn(t, s)
	opts := testOptions(full)
	require.NoError(t, s.Close())
	opts.ReadOnly = true
	s, err := Open("zone", opts)
	require.NoError(t, err)
	require.Error(t, s.Settle(t.Context()))
	require.NoError(t, s.Close())
}

// TestPressedBeforeSettling: a Write that waits for the backlog speeds up settling, even if it came
// before the flusher started.
func TestPressedBeforeSettling(t *testing.T) {
	mem, want := vfs.NewCrashableMem(), restoredSmall()
	fs := hold(mem)
	unsettledZone(t, fs, testOptions(fs), want)
	opts := testOptions(mem.CrashClone(vfs.CrashCloneCfg{})).withDefaults("zone")
	opts.FlushBlocks, opts.MaxLagBlocks = 1, 1
	s, err := open("zone", opts) // without a flusher
	require.NoError(t, err)
	require.NoError(t, s.Write(blockOf(78, "a", "1")))
	b := blockOf(79, "a", "2")
	moved, err := s.enqueue(&waiting{Block: b, bytes: bytesOf(b)}, false)
	require.NoError(t, err)
	require.NotNil(t, moved)
	u, _, more := s.next()
	require.True(t, more)
	p := pace{s: s, u: u}
	require.True(t, p.hurried())
	require.NoError(t, s.settle(u))
	require.False(t, p.hurried())
	close(s.flusherDone)
	require.NoError(t, s.Close())
}

// TestEstimateKeysWhileSettling: keys are counted in the files of a restore, which are kept
// meanwhile.
func TestEstimateKeysWhileSettling(t *testing.T) {
	mem, want := vfs.NewCrashableMem(), restoredSmall()
	fs := hold(mem)
	unsettledZone(t, fs, testOptions(fs), want)
	var s *Zone
	var settle, opened atomic.Bool // the injector also runs in Pebble's goroutines
	opts := testOptions(errorfs.Wrap(mem.CrashClone(vfs.CrashCloneCfg{}), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpOpen && strings.HasSuffix(op.Path, runsSuffix) && settle.CompareAndSwap(true, false) {
			opened.Store(true)
			// Like settle: the files are removed once they are not referenced.
			freed := s.generations.replace(newGeneration(want.meta.Height, s.db.NewSnapshot()))
			select {
			case <-freed[0]:
				s.forgetRestore()
			default:
			}
		}
		return nil
	})))
	s, err := open("zone", opts) // without a flusher
	require.NoError(t, err)
	settle.Store(true)
	keys, err := s.EstimateKeys()
	require.NoError(t, err)
	require.True(t, opened.Load())
	require.InEpsilon(t, len(want.leaves), keys, 0.2)
	close(s.flusherDone)
	require.NoError(t, s.Close())
}

// TestKilledBeforeSettled: a process was killed before the state was settled. A read-only zone
// shows the state, and the next start settles it.
func TestKilledBeforeSettled(t *testing.T) {
	mem, want := vfs.NewCrashableMem(), restoredSmall()
	fs := hold(mem)
	unsettledZone(t, fs, testOptions(fs), want)
	for _, percent := range []int{0, 100} {
		left := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: newRNG(1)})
		opts := testOptions(left)
		opts.ReadOnly = true
		s, err := Open("zone", opts)
		require.NoError(t, err)
		requireUnsettled(t, s, want)
		<-s.Settled()
		require.NoError(t, s.Close())

		again := hold(left) // killed once more
		s, err = Open("zone", testOptions(again))
		require.NoError(t, err)
		<-again.reached
		requireUnsettled(t, s, want)
		twice := left.CrashClone(vfs.CrashCloneCfg{})
		again.release()
		require.NoError(t, s.Close())

		s = openZone(t, twice)
		want.requireIn(t, s)
		require.NoError(t, s.Compact(t.Context(), nil))
		requireNoFolder(t, s, twice)
		want.requireIn(t, s)
		require.NoError(t, s.Close())
		s = openZone(t, twice)
		want.requireIn(t, s)
		requireNoFolder(t, s, twice)
	}
}

// TestGivenUpBeforeSettled: a zone is emptied while it settles.
func TestGivenUpBeforeSettled(t *testing.T) {
	for name, empty := range map[string]func(s *Zone) error{
		"reset": func(s *Zone) error { return s.Reset() },
		"another restore": func(s *Zone) error {
			r, err := s.BeginRestore(nil)
			if err != nil {
				return err
			}
			return r.Abort()
		},
	} {
		t.Run(name, func(t *testing.T) {
			mem, want := vfs.NewMem(), restoredSmall()
			fs := hold(mem)
			s := unsettledZone(t, fs, testOptions(fs), want)
			settled := s.Settled()
			require.NoError(t, s.Write(blockOf(78, "a", "1")))
			var emptying sync.WaitGroup
			emptying.Go(func() { require.NoError(t, empty(s)) })
			<-settled
			fs.release()
			emptying.Wait()
			emptyModel().requireIn(t, s)
			requireNoFolder(t, s, mem)
			b := blockOf(1, "a", "1")
			write(t, s, b)
			require.NoError(t, s.Close())
			emptyModel().apply(b).requireIn(t, openZone(t, mem))
		})
	}
}

// TestScanWhileSettling: a scan of the runs is consistent although they are settled meanwhile;
// their files are removed afterwards.
func TestScanWhileSettling(t *testing.T) {
	mem, want := vfs.NewMem(), restoredSmall()
	fs := hold(mem)
	s := unsettledZone(t, fs, testOptions(fs), want)
	settled := s.Settled()
	var got []record.Leaf
	for l, err := range s.Scan() {
		require.NoError(t, err)
		if len(got) == 0 {
			fs.release()
		}
		got = append(got, record.Leaf{Key: bytes.Clone(l.Key), Value: bytes.Clone(l.Value), Height: l.Height})
	}
	require.Equal(t, want.list(), got)
	<-settled
	want.requireIn(t, s)
	requireNoFolder(t, s, mem)
}

// TestBacklogWhileSettling: a Write that waits for the backlog does not wait forever.
func TestBacklogWhileSettling(t *testing.T) {
	mem, want := vfs.NewMem(), restoredSmall()
	fs := hold(mem)
	opts := testOptions(fs)
	opts.FlushBlocks, opts.MaxLagBlocks = 1, 2
	s := unsettledZone(t, fs, opts, want)
	var writing sync.WaitGroup
	writing.Go(func() {
		for height := int64(78); height < 90; height++ {
			require.NoError(t, s.Write(blockOf(height, "a", fmt.Sprint(height))))
			if height == 79 {
				fs.release()
			}
		}
	})
	writing.Wait()
	require.NoError(t, s.Flush())
	require.EqualValues(t, 89, s.Safe())
}

// TestDamagedUnsettledState: with any byte of an unsettled state flipped, the state is refused, or
// is read correctly.
func TestDamagedUnsettledState(t *testing.T) {
	mem, want := vfs.NewCrashableMem(), restoredSmall()
	fs := hold(mem)
	unsettledZone(t, fs, testOptions(fs), want)
	left := mem.CrashClone(vfs.CrashCloneCfg{})
	names, err := left.List("zone/restore")
	require.NoError(t, err)
	rng, refused, unread := newRNG(7), 0, 0
	for range 150 {
		name := names[rng.IntN(len(names))]
		damaged := cloneFS(t, left)
		b, err := readAll(damaged, "zone/restore/"+name, 1<<40)
		require.NoError(t, err)
		if rng.IntN(4) == 0 {
			b = b[:rng.IntN(len(b))]
		} else {
			at := rng.IntN(len(b))
			if b[at] ^= byte(1 + rng.IntN(255)); name == journalFile && at == 0 {
				b[0] = 0 // otherwise it may be that of a newer version, which is refused
			}
		}
		require.NoError(t, writeSynced(damaged, "zone/restore/"+name, b))
		s, err := Open("zone", testOptions(damaged))
		if err == nil {
			for l, scanErr := range s.Scan() {
				if err = scanErr; err == nil {
					require.Equal(t, want.leaves[string(l.Key)], string(l.Value))
				}
			}
			// Settling refuses it, too.
			<-s.Settled()
			if err != nil {
				require.ErrorIs(t, s.failure.get(), ErrCorrupt)
			} else {
				want.requireIn(t, s)
			}
			require.NoError(t, s.Close())
		}
		if err == nil {
			unread++ // the label
			require.Equal(t, labelFile, name)
			continue
		}
		refused++
		require.ErrorIs(t, err, ErrCorrupt, name)
		require.ErrorContains(t, err, "unsafe-reset-all", name)
	}
	require.Positive(t, min(refused, unread))
}

// TestDisorderIsNotSettled: if runs overlap or are out of order, the zone fails, and the state does
// not exist.
func TestDisorderIsNotSettled(t *testing.T) {
	leaf := func(keys ...string) (leaves []record.Leaf) {
		for _, key := range keys {
			leaves = append(leaves, record.Leaf{Key: []byte(key), Value: []byte("1")})
		}
		return leaves
	}
	for name, runs := range map[string][][]record.Leaf{
		"overlap": {leaf("a", "c"), leaf("b", "d")},
		"order":   {leaf("b", "a")},
		"twice":   {leaf("a", "a")},
		"height":  {append(leaf("a"), record.Leaf{Key: []byte("b"), Value: []byte("1"), Height: heightBelow})},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			s := openZone(t, fs)
			r, err := s.BeginRestore(nil)
			require.NoError(t, err)
			require.Error(t, r.Add("height", heightBelow, nil))
			for i, run := range runs {
				require.NoError(t, addLeaves(r, RunID(fmt.Sprint(i)), run))
			}
			require.NoError(t, r.Commit(testMeta(1)))
			<-s.Settled()
			require.ErrorIs(t, s.Write(blockOf(2, "a", "1")), ErrCorrupt)
		})
	}
}

// TestEmptyStateSettles: a state without leaves, and one of empty runs.
func TestEmptyStateSettles(t *testing.T) {
	for _, ids := range [][]RunID{nil, {"1", "2"}} {
		fs := vfs.NewMem()
		s := openZone(t, fs)
		r, err := s.BeginRestore(nil)
		require.NoError(t, err)
		for _, id := range ids {
			require.NoError(t, addLeaves(r, id, nil))
		}
		require.NoError(t, r.Commit(testMeta(3)))
		require.Empty(t, scanAll(t, s))
		requireNoFolder(t, s, fs)
		write(t, s, blockOf(4, "c", "1"))
		meta, _ := s.Meta()
		require.False(t, meta.Restored)
	}
}

func FuzzComplete(f *testing.F) {
	f.Add(complete{testMeta(9), 7, 1000}.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := decodeComplete(b); err == nil {
			require.Equal(t, b, c.encode())
		}
	})
}

func TestCompleteEncoding(t *testing.T) {
	m := testMeta(1 << 40)
	m.Restored = true
	want := complete{m, 3, 1 << 30}
	b := want.encode()
	got, err := decodeComplete(b)
	require.NoError(t, err)
	require.Equal(t, want, got)
	for i := range b {
		damaged := slices.Clone(b)
		damaged[i] ^= 4
		_, err := decodeComplete(damaged)
		require.ErrorIs(t, err, ErrCorrupt)
		_, err = decodeComplete(b[:i])
		require.ErrorIs(t, err, ErrCorrupt)
	}
	newer := slices.Clone(b)
	newer[0]++
	_, err = decodeComplete(resum(newer))
	require.ErrorIs(t, err, ErrNewerFormat)
}
