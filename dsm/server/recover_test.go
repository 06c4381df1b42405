package server_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/crashfs"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/rangestore"
)

// feed sends a replica the updates up to a height.
func (c *chain) feed(t testing.TB, r *server.Replica, i int, to int64) {
	t.Helper()
	c.proved.Store(max(to, c.proved.Load()))
	for height := r.Claim().Newest + 1; height <= to; height++ {
		c.send(t, r, i, height, "a")
		_, err := r.Advance()
		require.NoError(t, err)
	}
}

// After a crash before any change of the file system, a replica has every height that it had
// acknowledged and ServeHeights heights in total, and continues.
func TestCrash(t *testing.T) {
	const blocks = 30
	seed := seeds.New(t)
	rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // it must be reproducible
	c := newChain(t, rng, evenRanges(3), blocks+1)
	c.proved.Store(blocks + 1)
	run := func(fsys *crashfs.FS) {
		o := c.options(t, fsys, 1)
		c.create(t, o, 0)
		fsys.Done.Add(1) // height + 1
		r := openReplica(t, o)
		for height := int64(1); height <= blocks; height++ {
			c.send(t, r, 1, height, "a")
			_, err := r.Advance()
			require.NoError(t, err)
			fsys.Done.Add(1)
			if height%12 == 0 {
				require.NoError(t, r.Close())
				r = openReplica(t, c.options(t, fsys, 1))
			}
		}
		require.NoError(t, r.Close())
	}
	step := int64(3)
	if testing.Short() {
		step = 10
	}
	crashfs.AtEachChange(t, seed, step, run, func(t *testing.T, fsys *crashfs.FS) {
		o := c.options(t, fsys.Left, 1)
		r, err := server.Open(t.Context(), o)
		if fsys.Confirmed == 0 && err != nil {
			require.ErrorIs(t, err, server.ErrNoState)
			c.create(t, o, 0)
			r, err = server.Open(t.Context(), o)
		}
		require.NoError(t, err)
		newest := r.Claim().Newest
		acknowledged := max(0, fsys.Confirmed-1)
		require.Contains(t, []int64{acknowledged, acknowledged + 1}, newest)
		c.requireSame(t, r, 1, max(0, newest-7), newest)
		c.feed(t, r, 1, newest+1)
		c.requireSame(t, r, 1, max(0, newest-6), newest+1)
		require.NoError(t, r.Close())
		r = openReplica(t, c.options(t, fsys.Left, 1))
		require.Equal(t, newest+1, r.Claim().Newest)
		require.NoError(t, r.Close())
	})
}

// The log keeps only what follows the state on disk, which trails the served heights.
func TestTheLogIsTruncated(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(2), 60)
	fsys := newCrashFS(t)
	o := c.options(t, fsys, 0)
	c.create(t, o, 0)
	r := openReplica(t, o)
	c.feed(t, r, 0, 50)
	require.NoError(t, o.Store.Flush(t.Context())) // the state of the oldest height
	require.NoError(t, r.Close())
	o = c.options(t, fsys, 0)
	r = openReplica(t, o)
	require.Equal(t, server.Recovered{State: 43, Replayed: 7}, r.Recovered())
	c.feed(t, r, 0, 60)
	oldest, newest, _ := o.Log.Heights(server.RangeIDOf(o.Range))
	durable, _ := o.Store.Durable()
	require.LessOrEqual(t, oldest, durable+1)
	require.Greater(t, oldest, int64(1))
	require.EqualValues(t, 60, newest)
	require.NoError(t, r.Close())
}

// A range that waits for an update does not keep the whole log of the other ranges: at the limit
// its newest state is written, and the older heights are no longer served.
func TestTheLogIsBounded(t *testing.T) {
	const blocks = 200
	c := newChain(t, seeds.Rand(t), evenRanges(2), blocks)
	fsys := newCrashFS(t)
	waits, follows := c.options(t, fsys, 0), c.options(t, fsys, 1)
	waits.LogBytes, follows.Log = 64<<10, waits.Log
	c.create(t, waits, 0)
	c.create(t, follows, 0)
	r, other := openReplica(t, waits), openReplica(t, follows)
	c.feed(t, r, 0, 5)
	c.requireSame(t, r, 0, 0, 5)
	n, err := server.NewServer(server.ServerOptions{}, r, other)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- n.Run(ctx) }()
	c.proved.Store(blocks)
	for height := int64(1); height <= blocks; height++ {
		c.send(t, other, 1, height, "a")
		n.Proved()
		require.Eventually(t, func() bool { return other.Claim().Newest == height }, 5*time.Minute, 100*time.Microsecond)
	}
	require.Eventually(t, func() bool {
		return waits.Log.NeededBytes(server.RangeIDOf(waits.Range)) <= 64<<10
	}, 5*time.Minute, time.Millisecond)
	require.Eventually(t, func() bool { return r.Claim().Oldest == 5 }, 5*time.Minute, time.Millisecond)
	c.feed(t, r, 0, 20)
	cancel()
	require.NoError(t, <-ended)
	c.requireSame(t, r, 0, 13, 20)
	require.NoError(t, errors.Join(r.Close(), other.Close()))
	r = openReplica(t, c.options(t, fsys, 0))
	require.EqualValues(t, 20, r.Claim().Newest)
	require.NoError(t, r.Close())
}

// A range that accepts no further updates does not keep the log of the other ranges.
func TestTheLogForgetsAFailedRange(t *testing.T) {
	const blocks = 100
	rng := seeds.Rand(t)
	c, another := newChain(t, rng, evenRanges(2), blocks), newChain(t, rng, evenRanges(2), 5)
	fsys := newCrashFS(t)
	failed := c.options(t, fsys, 0)
	c.create(t, failed, 0)
	r := openReplica(t, failed)
	c.feed(t, r, 0, 5)
	require.NoError(t, r.Close())
	failed, follows := c.options(t, fsys, 0), c.options(t, fsys, 1)
	failed.LogBytes, failed.Headers, follows.Log = 32<<10, another, failed.Log
	another.proved.Store(5)
	c.create(t, follows, 0)
	r, other := openReplica(t, failed), openReplica(t, follows)
	broken := make(chan error, 1)
	n, err := server.NewServer(server.ServerOptions{Broken: func(_ *server.Replica, err error) { broken <- err }}, r, other)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- n.Run(ctx) }()
	require.ErrorIs(t, <-broken, rangestore.ErrOther)
	c.proved.Store(blocks)
	for height := int64(1); height <= blocks; height++ {
		c.send(t, other, 1, height, "a")
		n.Proved()
		require.Eventually(t, func() bool { return other.Claim().Newest == height }, 5*time.Minute, 100*time.Microsecond)
	}
	cancel()
	require.NoError(t, <-ended)
	_, _, kept := failed.Log.Heights(server.RangeIDOf(failed.Range))
	require.False(t, kept)
	require.NoError(t, errors.Join(r.Close(), other.Close()))
}

// Without the log of a range, its replica continues from the state on disk.
func TestWithoutTheLog(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(2), 30)
	fsys := newCrashFS(t)
	o := c.options(t, fsys, 0)
	c.create(t, o, 0)
	r := openReplica(t, o)
	c.feed(t, r, 0, 20)
	// Close would drop what waits for the first state to settle.
	require.NoError(t, o.Store.Flush(t.Context()))
	require.NoError(t, r.Close())
	o = c.options(t, fsys, 0)
	require.NoError(t, o.Log.Forget(server.RangeIDOf(o.Range)))
	r = openReplica(t, o)
	c.requireSame(t, r, 0, 13, 13)
	c.feed(t, r, 0, 30)
	c.requireSame(t, r, 0, 23, 30)
	require.NoError(t, r.Close())

	// A gap between the state and the log is an error.
	log := c.options(t, fsys, 1)
	id := server.RangeIDOf(log.Range)
	c.create(t, log, 5)
	require.NoError(t, log.Log.Append(id, 8, c.blocks[7].updates[1]))
	_, err := server.Open(t.Context(), log)
	require.ErrorIs(t, err, server.ErrGap)
	// Updates from before the state are forgotten: its creation was interrupted.
	require.NoError(t, log.Log.Forget(id))
	require.NoError(t, log.Log.Append(id, 3, c.blocks[2].updates[1]))
	r = openReplica(t, log)
	c.feed(t, r, 1, 9)
	c.requireSame(t, r, 1, 5, 9)
	require.NoError(t, r.Close())
}

// A page that the disk does not have, or has with other bytes, is damage: the node fetches the
// range again. Other errors end the node.
func TestMissingPageIsDamage(t *testing.T) {
	for _, err := range []error{storage.ErrNoPage, storage.ErrCorrupt} {
		page := &avlstar.PageError{Err: err}
		require.ErrorIs(t, server.Damaged(page), server.ErrDamaged)
		require.ErrorIs(t, server.Damaged(page), err)
	}
	require.NotErrorIs(t, server.Damaged(storage.ErrClosed), server.ErrDamaged)
	require.NoError(t, server.Damaged(nil))
}

// A first state is verified before it is kept.
func TestCreate(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(2), 1)
	o := c.options(t, newCrashFS(t), 0)
	_, err := server.Open(t.Context(), o)
	require.ErrorIs(t, err, server.ErrNoState)
	v := c.at(0)
	boundary, err := v.Boundary(o.Range)
	require.NoError(t, err)
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
	require.ErrorIs(t, o.Store.Create(0, v.Commitment(), boundary, less), avlstar.ErrOtherState)
	failed := errors.New("the source failed")
	broken := func(yield func(avlstar.Leaf, error) bool) { yield(avlstar.Leaf{}, failed) }
	require.ErrorIs(t, o.Store.Create(0, v.Commitment(), boundary, broken), failed)
	_, err = server.Open(t.Context(), o)
	require.ErrorIs(t, err, server.ErrNoState)
	c.create(t, o, 0)
	r := openReplica(t, o)
	c.requireSame(t, r, 0, 0, 0)
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
