package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/dsm/server/disktest"
	"github.com/starling-kv/starling/internal/seeds"
)

// feed sends a replica the updates up to a height and stores due states.
func (c *chain) feed(t testing.TB, r *server.Replica, i int, to int64) {
	t.Helper()
	c.proved.Store(max(to, c.proved.Load()))
	for height := r.Claim().Newest + 1; height <= to; height++ {
		c.send(t, r, i, height, "a")
		_, err := r.Advance()
		require.NoError(t, err)
		require.NoError(t, r.Store())
	}
}

var errSector = errors.New("unreadable sector")

// unreadable is a Disk on which the state of one height cannot be read.
type unreadable struct {
	server.Disk
	height int64
}

func (u unreadable) Open(height int64) (server.StoredState, error) {
	if height == u.height {
		return nil, errSector
	}
	return u.Disk.Open(height)
}

// After a crash before any change of the file system, a replica has every height that it had
// acknowledged and ServeHeights heights in total; stored states and log are consistent, and the
// replica continues.
func TestCrash(t *testing.T) {
	const blocks = 17
	seed := seeds.New(t)
	rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // it must be reproducible
	c := newChain(t, rng, evenRanges(3), blocks+1)
	c.proved.Store(blocks + 1)
	run := func(fsys *disktest.CrashFS) {
		c.create(t, c.options(t, fsys, 1), 0)
		r := openReplica(t, c.options(t, fsys, 1))
		fsys.Done.Add(1) // height + 1
		for height := int64(1); height <= blocks; height++ {
			c.send(t, r, 1, height, "a")
			_, err := r.Advance()
			require.NoError(t, err)
			fsys.Done.Add(1)
			require.NoError(t, r.Store())
			if height == 8 { // the process is killed and restarts
				r = openReplica(t, c.options(t, fsys, 1))
			}
		}
		require.NoError(t, r.Close())
	}
	step := int64(1)
	if testing.Short() {
		step = 3
	}
	disktest.AtEachChange(t, seed, step, run, func(t *testing.T, fsys *disktest.CrashFS) {
		o := c.options(t, fsys.Left, 1)
		r, err := server.Open(o)
		if fsys.Confirmed == 0 && err != nil {
			require.ErrorIs(t, err, server.ErrNoState)
			c.create(t, o, 0)
			r, err = server.Open(o)
		}
		require.NoError(t, err)
		require.Empty(t, r.Recovered().Damaged)
		newest := r.Claim().Newest
		acknowledged := max(0, fsys.Confirmed-1)
		require.Contains(t, []int64{acknowledged, acknowledged + 1}, newest)
		c.requireSame(t, r, 1, max(0, newest-7), newest)
		states, err := o.Disk.List()
		require.NoError(t, err)
		require.NotEmpty(t, states)
		for _, height := range states { // each of them can be opened
			stored, err := o.Disk.Open(height)
			require.NoError(t, err)
			require.Equal(t, c.at(height).Commitment(), stored.Info().Commitment)
			require.NoError(t, stored.Close())
		}
		c.feed(t, r, 1, newest+1)
		c.requireSame(t, r, 1, max(0, newest-6), newest+1)
		require.NoError(t, r.Close())
		r = openReplica(t, c.options(t, fsys.Left, 1))
		require.Equal(t, newest+1, r.Claim().Newest)
		require.NoError(t, r.Close())
	})
}

// The last Keep states remain, and the log since the oldest of them.
func TestStore(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(2), 43)
	fsys := newLogFS(t)
	o := c.options(t, fsys, 0)
	o.Log.FileBytes = 1
	c.create(t, o, 0)
	r := openReplica(t, o)
	c.feed(t, r, 0, 43)
	states, err := o.Disk.List()
	require.NoError(t, err)
	require.Equal(t, []int64{30, 35, 40}, states)
	require.NoError(t, r.Close())
	l, err := server.OpenLog(o.Log)
	require.NoError(t, err)
	oldest, newest, _ := l.Heights()
	require.Equal(t, [2]int64{31, 43}, [2]int64{oldest, newest})
	require.NoError(t, l.Close())
}

// Open takes the newest state from which all heights to be served follow. A damaged state is
// reported and dropped, and another one is used.
func TestOpen(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(2), 43)
	files := func(t *testing.T) (vfs.FS, func(height int64)) {
		fsys := newLogFS(t)
		o := c.options(t, fsys, 1)
		c.create(t, o, 0)
		r := openReplica(t, o)
		c.feed(t, r, 1, 43)
		require.NoError(t, r.Close())
		return fsys, func(height int64) {
			name := path.Join(disktest.Dir, "range-1", "states", fmt.Sprintf("%020d.state", height))
			b := readFile(t, fsys, name)
			b[len(b)-20] ^= 1
			writeFile(t, fsys, name, b)
		}
	}
	for _, test := range []struct {
		damaged []int64
		from    int64
		oldest  int64
	}{
		{nil, 35, 36}, // with 40, only 4 heights could be served
		{[]int64{35}, 30, 36},
		{[]int64{40}, 35, 36}, // 40 was not read
		{[]int64{30, 35}, 40, 40},
	} {
		t.Run(fmt.Sprint(test.damaged), func(t *testing.T) {
			fsys, damage := files(t)
			for _, height := range test.damaged {
				damage(height)
			}
			r := openReplica(t, c.options(t, fsys, 1))
			c.requireSame(t, r, 1, test.oldest, 43)
			got := r.Recovered()
			require.Equal(t, test.from, got.State)
			require.EqualValues(t, 43-test.from, got.Replayed)
			for _, err := range got.Damaged {
				require.ErrorIs(t, err, server.ErrDamaged)
			}
			require.NoError(t, r.Close())
			states, err := c.options(t, fsys, 1).Disk.List()
			require.NoError(t, err)
			require.Len(t, states, 3-len(got.Damaged))
		})
	}
	t.Run("all", func(t *testing.T) {
		fsys, damage := files(t)
		for _, height := range []int64{30, 35, 40} {
			damage(height)
		}
		_, err := server.Open(c.options(t, fsys, 1))
		require.ErrorIs(t, err, server.ErrDamaged)
	})
	t.Run("unreadable", func(t *testing.T) { // the error may be temporary: the state is kept
		fsys, _ := files(t)
		o := c.options(t, fsys, 1)
		o.Disk = unreadable{o.Disk, 35}
		r := openReplica(t, o)
		require.EqualValues(t, 30, r.Recovered().State)
		require.Len(t, r.Recovered().Damaged, 1)
		require.ErrorIs(t, r.Recovered().Damaged[0], errSector)
		c.requireSame(t, r, 1, 36, 43)
		require.NoError(t, r.Close())
		states, err := c.options(t, fsys, 1).Disk.List()
		require.NoError(t, err)
		require.Len(t, states, 3)
	})
	t.Run("another range", func(t *testing.T) {
		fsys, _ := files(t)
		o := c.options(t, fsys, 1)
		o.Range = c.ranges[0]
		_, err := server.Open(o)
		require.ErrorIs(t, err, server.ErrDamaged)
	})
}

// A first state is verified before it is kept.
func TestCreate(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(2), 1)
	o := c.options(t, newLogFS(t), 0)
	_, err := server.Open(o)
	require.ErrorIs(t, err, server.ErrNoState)
	v := c.at(0)
	boundary, err := v.Boundary(o.Range)
	require.NoError(t, err)
	info := server.StateInfo{Height: 0, Commitment: v.Commitment(), Boundary: boundary}
	n := 0
	less := func(yield func(avlstar.Leaf, error) bool) {
		for l, err := range v.Leaves() {
			if n++; n == 5 {
				continue
			}
			if (err != nil || o.Range.Contains(l.Key)) && !yield(l, err) {
				return
			}
		}
	}
	require.ErrorIs(t, server.Create(o, info, less), avlstar.ErrOtherState)
	failed := errors.New("the source failed")
	broken := func(yield func(avlstar.Leaf, error) bool) { yield(avlstar.Leaf{}, failed) }
	require.ErrorIs(t, server.Create(o, info, broken), failed)
	states, err := o.Disk.List()
	require.NoError(t, err)
	require.Empty(t, states)
	c.create(t, o, 0)
	require.Error(t, server.Create(o, info, less))
	r := openReplica(t, o)
	c.requireSame(t, r, 0, 0, 0)
	require.NoError(t, r.Close())
}

// A tree that was verified by its hashes is stored as it is, unless part of the range is missing.
func TestCreateProved(t *testing.T) {
	const height = 7
	c := newChain(t, seeds.Rand(t), evenRanges(3), 9)
	o := c.options(t, newLogFS(t), 1)
	v := c.at(height)
	lacking, err := v.Prune(func(s avlstar.Subtree) bool { return s.Bytes < 200 })
	require.NoError(t, err)
	defer lacking.Release()
	var missing *avlstar.MissingNodeError
	require.ErrorAs(t, server.CreateProved(o, height, lacking), &missing)
	states, err := o.Disk.List()
	require.NoError(t, err)
	require.Empty(t, states)

	whole, err := v.Prune(func(s avlstar.Subtree) bool { // nodes outside of the range are missing
		return s.After != nil && bytes.Compare(s.After, o.Range.First) < 0 || bytes.Compare(s.First, o.Range.After) > 0
	})
	require.NoError(t, err)
	defer whole.Release()
	require.NoError(t, server.CreateProved(o, height, whole))
	require.Error(t, server.CreateProved(o, height, whole), "there is one already")
	r := openReplica(t, o)
	c.requireSame(t, r, 1, height, height)
	c.feed(t, r, 1, 9)
	c.requireSame(t, r, 1, height, 9)
	require.NoError(t, r.Close())
}

// A range that was kept before is created again from a later height.
func TestCreateAgain(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(2), 30)
	fsys := newLogFS(t)
	o := c.options(t, fsys, 0)
	c.create(t, o, 0)
	r := openReplica(t, o)
	c.feed(t, r, 0, 7)
	require.NoError(t, r.Close())
	states, err := o.Disk.List()
	require.NoError(t, err)
	for _, height := range states {
		require.NoError(t, o.Disk.Drop(height))
	}
	_, err = server.Open(o)
	require.ErrorIs(t, err, server.ErrNoState)
	c.create(t, o, 20)
	r = openReplica(t, o)
	c.feed(t, r, 0, 30)
	c.requireSame(t, r, 0, 23, 30)
	require.NoError(t, r.Close())
}

// NewestProvable agrees with a search that tries all heights.
func TestNewestProvable(t *testing.T) {
	rng := seeds.Rand(t)
	ranges := []avlstar.KeyRange{{After: []byte("g")}, {First: []byte("g"), After: []byte("p")}, {First: []byte("p")}}
	_, err := server.NewestProvable(ranges, []dsm.Claim{{Range: ranges[0], Oldest: 3, Newest: 5}, {Range: ranges[2]}})
	var unprovable *server.UnprovableError
	require.ErrorAs(t, err, &unprovable)
	require.Equal(t, ranges[1:], unprovable.Silent)
	require.ErrorContains(t, err, `no replica claims any height of ranges ["g", "p"), ["p", )`)
	none := 0
	for range 2000 {
		var claims []dsm.Claim
		has := map[int64]map[int]bool{}
		for range 3 + rng.IntN(5) {
			i, oldest := rng.IntN(4), 1+rng.Int64N(20)
			r := avlstar.KeyRange{First: []byte("other")}
			if i < 3 {
				r = ranges[i]
			}
			newest := oldest + rng.Int64N(6)
			claims = append(claims, dsm.Claim{Range: r, Oldest: oldest, Newest: newest})
			for height := oldest; height <= newest && i < 3; height++ {
				if has[height] == nil {
					has[height] = map[int]bool{}
				}
				has[height][i] = true
			}
		}
		want := int64(0)
		for height, of := range has {
			if len(of) == len(ranges) {
				want = max(want, height)
			}
		}
		got, err := server.NewestProvable(ranges, claims)
		require.Equal(t, want, got)
		require.Equal(t, want == 0, err != nil)
		if want == 0 {
			none++
		}
	}
	require.Positive(t, none)
}
