// Package disktest checks that an implementation of server.Disk fulfils its contract, and provides
// an in-memory file system that crashes.
package disktest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/seeds"
)

// Open opens the disk of the range that label names, in a folder whose parent is there.
type Open func(fsys vfs.FS, dir string, label []byte) (server.Disk, error)

// Run checks an implementation.
func Run(t *testing.T, open Open) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Open)
	}{
		{"empty", testEmpty},
		{"sizes", testSizes},
		{"not kept", testNotKept},
		{"kept twice", testTwice},
		{"read during drop", testReadBesideDrop},
		{"another range", testOther},
		{"model", testModel},
		{"crash", testCrash},
		{"faults", testFaults},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open) })
	}
}

var (
	dir   = path.Join(Dir, "range")
	label = []byte("chain, range")
)

// state is a stored state as the suite expects it.
type state struct {
	info   server.StateInfo
	leaves []avlstar.Leaf
}

// randomState returns a random state of a height. It does not correspond to a tree.
func randomState(rng *rand.Rand, height int64, leaves, most int) state {
	s := state{info: server.StateInfo{Height: height, Boundary: random(rng, rng.IntN(300))}}
	s.info.Commitment = avlstar.Commitment{ChunkBytes: 1 << 10, Chunks: 3, Root: avlstar.Stub{
		Stat: avlstar.Stat{Height: 7, Bytes: rng.Uint64()}, Hash: avlstar.Hash(random(rng, 32)),
	}}
	for i := range leaves {
		s.leaves = append(s.leaves, avlstar.Leaf{
			Key: fmt.Appendf(nil, "%08d", i), Value: random(rng, 1+rng.IntN(most)), Height: uint8(rng.IntN(40)),
		})
	}
	return s
}

func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// write writes a state and keeps it.
func write(d server.Disk, s state) (err error) {
	w, err := d.Begin(s.info)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	var leaf avlstar.Leaf // the writer may use its bytes until Write returns
	for _, l := range s.leaves {
		leaf = avlstar.Leaf{Key: append(leaf.Key[:0], l.Key...), Value: append(leaf.Value[:0], l.Value...), Height: l.Height}
		if err := w.Write(leaf); err != nil {
			return err
		}
	}
	return w.Keep()
}

// read returns a stored state. All leaves are retained until the end, which checks that they stay
// valid.
func read(d server.Disk, height int64) (s state, err error) {
	stored, err := d.Open(height)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, stored.Close()) }()
	s.info = stored.Info()
	for l, err := range stored.Leaves() {
		if err != nil {
			return s, err
		}
		s.leaves = append(s.leaves, l)
	}
	return s, nil
}

func requireState(t *testing.T, d server.Disk, want state) {
	t.Helper()
	got, err := read(d, want.info.Height)
	require.NoError(t, err)
	requireSame(t, want, got)
}

func requireSame(t *testing.T, want, got state) {
	t.Helper()
	require.Equal(t, want.info.Height, got.info.Height)
	require.Equal(t, want.info.Commitment, got.info.Commitment)
	require.True(t, bytes.Equal(want.info.Boundary, got.info.Boundary))
	require.Len(t, got.leaves, len(want.leaves))
	for i := range want.leaves {
		require.Equal(t, want.leaves[i].Key, got.leaves[i].Key)
		require.True(t, bytes.Equal(want.leaves[i].Value, got.leaves[i].Value))
		require.Equal(t, want.leaves[i].Height, got.leaves[i].Height)
	}
}

func requireHeights(t *testing.T, d server.Disk, want ...int64) {
	t.Helper()
	got, err := d.List()
	require.NoError(t, err)
	require.Equal(t, append([]int64{}, want...), append([]int64{}, got...))
}

// newDisk opens a disk on a new file system.
func newDisk(t *testing.T, open Open) (vfs.FS, server.Disk) {
	t.Helper()
	fsys := NewCrashFS(t, rand.New(rand.NewPCG(0, 0)), 0) //nolint:gosec // nothing is random
	return fsys, reopen(t, open, fsys)
}

func reopen(t *testing.T, open Open, fsys vfs.FS) server.Disk {
	t.Helper()
	d, err := open(fsys, dir, label)
	require.NoError(t, err)
	return d
}

func testEmpty(t *testing.T, open Open) {
	fsys, d := newDisk(t, open)
	requireHeights(t, d)
	_, err := d.Open(1)
	require.ErrorIs(t, err, server.ErrNoState)
	require.ErrorIs(t, d.Drop(1), server.ErrNoState)
	none := randomState(seeds.Rand(t), 0, 0, 1) // genesis, without leaves
	require.NoError(t, write(d, none))
	requireState(t, d, none)
	require.NoError(t, d.Close())
	d = reopen(t, open, fsys)
	requireHeights(t, d, 0)
	requireState(t, d, none)
	require.NoError(t, d.Close())
}

func testSizes(t *testing.T, open Open) {
	rng := seeds.Rand(t)
	fsys, d := newDisk(t, open)
	small := randomState(rng, 1, 20_000, 20)
	large := randomState(rng, 1<<40, 0, 1)
	for i, n := range []int{avlstar.MaxValueBytes, 1, avlstar.MaxValueBytes, 100_000} {
		key := append([]byte{byte(i)}, random(rng, avlstar.MaxKeyBytes-1)...)
		large.leaves = append(large.leaves, avlstar.Leaf{Key: key, Value: random(rng, n), Height: uint8(i * 80)})
	}
	require.NoError(t, write(d, large))
	require.NoError(t, write(d, small))
	require.NoError(t, d.Close())
	d = reopen(t, open, fsys)
	requireHeights(t, d, 1, 1<<40)
	requireState(t, d, small)
	requireState(t, d, large)
	require.NoError(t, d.Close())
}

func testNotKept(t *testing.T, open Open) {
	rng := seeds.Rand(t)
	fsys, d := newDisk(t, open)
	s := randomState(rng, 5, 3000, 100)
	for _, leaves := range []int{0, 1, len(s.leaves)} {
		w, err := d.Begin(s.info)
		require.NoError(t, err)
		for _, l := range s.leaves[:leaves] {
			require.NoError(t, w.Write(l))
		}
		requireHeights(t, d)
		_, err = d.Open(5)
		require.ErrorIs(t, err, server.ErrNoState)
		require.NoError(t, w.Close())
	}
	w, err := d.Begin(s.info) // and the process ends
	require.NoError(t, err)
	for _, l := range s.leaves {
		require.NoError(t, w.Write(l))
	}
	d = reopen(t, open, fsys)
	requireHeights(t, d)
	require.NoError(t, write(d, s))
	requireState(t, d, s)
	require.NoError(t, d.Close())
}

func testTwice(t *testing.T, open Open) {
	rng := seeds.Rand(t)
	_, d := newDisk(t, open)
	s := randomState(rng, 5, 30, 100)
	require.NoError(t, write(d, s))
	require.Error(t, write(d, randomState(rng, 5, 40, 100)))
	requireState(t, d, s)
	require.NoError(t, d.Drop(5))
	require.ErrorIs(t, d.Drop(5), server.ErrNoState)
	again := randomState(rng, 5, 40, 100)
	require.NoError(t, write(d, again))
	requireState(t, d, again)
	require.NoError(t, d.Close())
}

// A concurrent Drop: the reader either gets the whole state or an error.
func testReadBesideDrop(t *testing.T, open Open) {
	rng := seeds.Rand(t)
	_, d := newDisk(t, open)
	s := randomState(rng, 5, 20_000, 100)
	require.NoError(t, write(d, s))
	stored, err := d.Open(5)
	require.NoError(t, err)
	got, failed := state{info: stored.Info()}, error(nil)
	for l, err := range stored.Leaves() {
		if err != nil {
			failed = err
			break
		}
		if got.leaves = append(got.leaves, l); len(got.leaves) == 100 {
			require.NoError(t, d.Drop(5))
		}
	}
	if failed == nil {
		requireSame(t, s, got)
	}
	require.NoError(t, stored.Close())
	requireHeights(t, d)
	require.NoError(t, d.Close())
}

func testOther(t *testing.T, open Open) {
	fsys, d := newDisk(t, open)
	require.NoError(t, write(d, randomState(seeds.Rand(t), 5, 30, 100)))
	require.NoError(t, d.Close())
	d, err := open(fsys, dir, []byte("chain, another range"))
	if err == nil {
		_, err = d.Open(5)
	}
	require.ErrorIs(t, err, server.ErrOther)
}

// A random sequence of calls behaves like a map.
func testModel(t *testing.T, open Open) {
	rng := seeds.Rand(t)
	fsys, d := newDisk(t, open)
	model := map[int64]state{}
	heights := func() (all []int64) {
		for height := range model {
			all = append(all, height)
		}
		slices.Sort(all)
		return all
	}
	for range 300 {
		height := int64(rng.IntN(8))
		_, there := model[height]
		switch rng.IntN(10) {
		case 0:
			require.NoError(t, d.Close())
			d = reopen(t, open, fsys)
		case 1, 2, 3:
			if err := d.Drop(height); there {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, server.ErrNoState)
			}
			delete(model, height)
		case 4:
			requireHeights(t, d, heights()...)
			for _, height := range heights() {
				requireState(t, d, model[height])
			}
		default:
			s := randomState(rng, height, rng.IntN(100), 1+rng.IntN(3000))
			if err := write(d, s); there {
				require.Error(t, err)
			} else {
				require.NoError(t, err)
				model[height] = s
			}
		}
	}
	require.NoError(t, d.Close())
}

// After a crash before any change of the file system, a state is either complete or absent. It is
// there if Keep had returned, and absent if Drop had.
func testCrash(t *testing.T, open Open) {
	const states = 4
	seed := seeds.New(t)
	all := map[int64]state{}
	rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // it must be reproducible
	for height := range int64(states) {
		all[height] = randomState(rng, height, 60, 5000)
	}
	// State h is kept in step 2h+1, and state h-2 is dropped in step 2h+2.
	run := func(c *CrashFS) {
		d := reopen(t, open, c)
		for height := range int64(states) {
			require.NoError(t, write(d, all[height]))
			c.Done.Add(1)
			if height >= 2 {
				require.NoError(t, d.Drop(height-2))
			}
			c.Done.Add(1)
		}
		require.NoError(t, d.Close())
	}
	AtEachChange(t, seed, 1, run, func(t *testing.T, c *CrashFS) {
		d := reopen(t, open, c.Left)
		heights, err := d.List()
		require.NoError(t, err)
		for height := range int64(states) {
			there := slices.Contains(heights, height)
			keptAt, droppedAt := 2*height+1, 2*(height+2)+2
			switch {
			case c.Confirmed < keptAt-1, c.Confirmed >= droppedAt:
				require.False(t, there, "height %d after step %d", height, c.Confirmed)
			case c.Confirmed >= keptAt && c.Confirmed < droppedAt-1:
				require.True(t, there, "height %d after step %d", height, c.Confirmed)
			}
			if there {
				requireState(t, d, all[height])
			}
		}
		next := randomState(rng, states, 10, 10) // the disk still works
		require.NoError(t, write(d, next))
		requireState(t, d, next)
		require.NoError(t, d.Close())
	})
}

// A file system error is reported and affects no other state. A state whose Keep failed is either
// absent or complete.
func testFaults(t *testing.T, open Open) {
	rng := seeds.Rand(t)
	kept, s := randomState(rng, 1, 50, 3000), randomState(rng, 2, 50, 3000)
	faults := 0
	for n := int64(1); ; n++ {
		mem, d := newDisk(t, open)
		require.NoError(t, write(d, kept))
		require.NoError(t, d.Close())
		changes, armed, injected := int64(0), false, false
		d = reopen(t, open, errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if !armed || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose {
				return nil
			}
			if changes++; changes != n {
				return nil
			}
			injected = true
			return errorfs.ErrInjected
		})))
		armed = true
		err := write(d, s)
		if !injected {
			require.NoError(t, err)
			break
		}
		require.ErrorIs(t, err, errorfs.ErrInjected)
		faults++
		d = reopen(t, open, mem)
		requireState(t, d, kept)
		if _, err := d.Open(2); err == nil {
			requireState(t, d, s)
			require.NoError(t, d.Drop(2))
		} else {
			require.ErrorIs(t, err, server.ErrNoState)
		}
		require.NoError(t, write(d, s))
		requireState(t, d, s)
		require.NoError(t, d.Close())
	}
	require.Greater(t, faults, 3)
}
