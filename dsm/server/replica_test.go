package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/transport"
)

// An update is applied once a header proves its result, and not before.
func TestAdvance(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(2), 12)
	r := c.newReplica(t, 1, nil)
	c.requireSame(t, r, 1, 0, 0)
	for height := int64(1); height <= 12; height++ {
		answer := c.send(t, r, 1, height, "a")
		require.Equal(t, height-1, answer.Durable)
		require.Equal(t, height+1, answer.Needs)
		n, err := r.Advance()
		require.NoError(t, err)
		require.Zero(t, n, "no header proves it")
		c.proved.Store(height)
		n, err = r.Advance()
		require.NoError(t, err)
		require.Equal(t, 1, n)
		c.requireSame(t, r, 1, max(0, height-7), height)
		require.Equal(t, dsm.Claim{Range: dsmRange(c.ranges[1]), Oldest: max(1, height-7), Newest: height, Durable: height, Needs: height + 1}, r.Claim())
	}
}

// Updates that arrive early, in parts, and from several senders are applied in order.
func TestAdvanceInOrder(t *testing.T) {
	rng := seeds.Rand(t)
	c := newChain(t, rng, evenRanges(3), 30)
	r := c.newReplica(t, 2, nil)
	type sending struct {
		height int64
		sender transport.ID
		offset int
	}
	var all []sending
	for height := range int64(30) {
		for _, sender := range []transport.ID{"a", "b", "c"} {
			all = append(all, sending{height + 1, sender, 0})
		}
	}
	for len(all) > 0 {
		i := rng.IntN(min(len(all), 20))
		s := &all[i]
		update := c.blocks[s.height-1].updates[2]
		answer, err := r.Receive(s.sender, "", part(s.height, c.ranges[2], update, s.offset, 1+rng.IntN(300)))
		require.NoError(t, err)
		s.offset = int(answer.Have)
		require.Equal(t, r.Claim().Durable, answer.Durable)
		if s.offset == len(update) {
			all = slices.Delete(all, i, i+1)
		}
		c.proved.Store(min(30, c.proved.Load()+rng.Int64N(2)))
		_, err = r.Advance()
		require.NoError(t, err)
	}
	c.proved.Store(30)
	_, err := r.Advance()
	require.NoError(t, err)
	c.requireSame(t, r, 2, 23, 30)
}

// verdicts collects a replica's verdicts.
type verdicts struct {
	sync.Mutex
	all []server.Verdict
}

func (v *verdicts) add(one server.Verdict) {
	v.Lock()
	defer v.Unlock()
	v.all = append(v.all, one)
}

// lies returns false updates of a height, by the kind of falsification.
func (c *chain) lies(t *testing.T, i int, height int64) map[string][]byte {
	t.Helper()
	honest := c.blocks[height-1].updates[i]
	decode := func() avlstar.Update {
		u, err := avlstar.DecodeUpdate(bytes.Clone(honest))
		require.NoError(t, err)
		return u
	}
	lies := map[string][]byte{"no update": []byte("no update"), "cut off": honest[:len(honest)-1]}
	u := decode()
	u.To.Root.Hash[3] ^= 1
	lies["another root"] = u.Encode()
	u = decode()
	u.To.Chunks++
	lies["another number of chunks"] = u.Encode()
	u = decode()
	u.Changes = append(u.Changes, avlstar.UpdateChange{Change: avlstar.Change{Key: c.ranges[i].First, Value: []byte("a value that was never put")}})
	slices.SortFunc(u.Changes, func(a, b avlstar.UpdateChange) int { return bytes.Compare(a.Key, b.Key) })
	u.Changes = slices.CompactFunc(u.Changes, func(a, b avlstar.UpdateChange) bool { return bytes.Equal(a.Key, b.Key) })
	lies["a value more"] = u.Encode()
	u = decode()
	if at := slices.IndexFunc(u.Changes, func(c avlstar.UpdateChange) bool { return c.Value != nil }); at >= 0 {
		u.Changes = slices.Delete(u.Changes, at, at+1)
		lies["a change less"] = u.Encode()
	}
	if u = decode(); len(u.Moved) > 0 {
		u.Moved[0].Height++
		lies["another height"] = u.Encode()
	}
	before, err := c.at(height - 1).Boundary(c.ranges[i])
	require.NoError(t, err)
	if u = decode(); !bytes.Equal(before, u.Boundary) {
		u.Boundary = before
		lies["a stale boundary proof"] = u.Encode()
	}
	if height < int64(len(c.blocks)) && c.at(height).AppHash() != c.at(height+1).AppHash() {
		lies["the next block's"] = c.blocks[height].updates[i]
	}
	return lies
}

// The sender of a false update is reported with range and height, and refused. Another sender's
// update is accepted.
func TestLiars(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(2), 20)
	var v verdicts
	r := c.newReplica(t, 1, func(o *server.Options) { o.Verdict, o.Limits.Senders = v.add, 20 })
	kinds := map[string]int{}
	for height := int64(1); height <= 20; height++ {
		v.all = nil
		want := map[transport.ID]bool{}
		for name, lie := range c.lies(t, 1, height) {
			if bytes.Equal(lie, c.blocks[height-1].updates[1]) {
				continue
			}
			sender := transport.ID(fmt.Sprint(name, " at ", height))
			answer, err := r.Receive(sender, "", part(height, c.ranges[1], lie, 0, 0))
			require.NoError(t, err, name)
			require.EqualValues(t, len(lie), answer.Have)
			want[sender] = true
			kinds[name]++
		}
		c.proved.Store(height)
		n, err := r.Advance()
		require.NoError(t, err)
		require.Zero(t, n)
		require.Len(t, v.all, len(want))
		for _, verdict := range v.all {
			require.True(t, want[verdict.Sender], verdict.Sender)
			require.ErrorIs(t, verdict.Err, server.ErrFalse)
			require.Equal(t, c.ranges[1], verdict.Range)
			require.Equal(t, height, verdict.Height)
			_, err := r.Receive(verdict.Sender, "", part(height, c.ranges[1], c.blocks[height-1].updates[1], 0, 0))
			require.ErrorIs(t, err, server.ErrRefusedSender)
		}
		require.Equal(t, height, r.Claim().Needs) // other senders learn that it is needed
		c.send(t, r, 1, height, "honest")
		n, err = r.Advance()
		require.NoError(t, err)
		require.Equal(t, 1, n)
		c.requireSame(t, r, 1, max(0, height-7), height)
	}
	require.GreaterOrEqual(t, len(kinds), 8, kinds)
}

// Parts that do not match their checksum refute their sender at once.
func TestFalseSum(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(1), 2)
	var v verdicts
	r := c.newReplica(t, 0, func(o *server.Options) { o.Verdict = v.add })
	p := part(1, c.ranges[0], c.blocks[0].updates[0], 0, 0)
	p.Sum[0] ^= 1
	_, err := r.Receive("liar", "", p)
	require.ErrorIs(t, err, dsm.ErrSum)
	require.Len(t, v.all, 1)
	require.Equal(t, transport.ID("liar"), v.all[0].Sender)
	_, err = r.Receive("liar", "", p)
	require.ErrorIs(t, err, server.ErrRefusedSender)
}

// A replica with the state of another chain stops. It does not accuse the senders of its updates.
func TestStateOfAnotherChain(t *testing.T) {
	rng := seeds.Rand(t)
	c, other := newChain(t, rng, evenRanges(2), 1), newChain(t, rng, evenRanges(2), 1)
	var v verdicts
	r := c.newReplica(t, 0, func(o *server.Options) { o.Headers, o.Verdict = other, v.add })
	other.send(t, r, 0, 1, "honest")
	other.proved.Store(1)
	_, err := r.Advance()
	require.ErrorIs(t, err, rangestore.ErrOther)
	require.Empty(t, v.all)
	_, err = r.Receive("honest", "", part(1, c.ranges[0], other.blocks[0].updates[0], 0, 0))
	require.ErrorIs(t, err, rangestore.ErrOther)
}

// An update that its sender has begun and forgotten gives back its bytes, also if no message comes.
func TestForgottenUpdatesExpire(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(2), 2)
	named := server.NewShares(64 << 20)
	r := c.newReplica(t, 0, func(o *server.Options) {
		o.Known, o.Named = func(transport.ID) bool { return true }, named
		o.Limits = server.Limits{Patience: 1, Rate: 1 << 40}
	})
	_, err := r.Receive("forgetful", "", part(2, c.ranges[0], c.blocks[1].updates[0], 0, 1))
	require.NoError(t, err)
	require.Positive(t, named.Used())
	_, err = r.Advance()
	require.NoError(t, err)
	require.Zero(t, named.Used())
}

// Floods and stale senders do not block an honest sender.
func TestFlood(t *testing.T) {
	rng := seeds.Rand(t)
	c := newChain(t, rng, evenRanges(2), 15)
	r := c.newReplica(t, 0, func(o *server.Options) {
		o.Limits = server.Limits{Ahead: 6, Senders: 3, UpdateBytes: 64 << 10, Bytes: 1, Patience: time.Hour}
	})
	refusals := map[error]int{}
	for height := int64(1); height <= 15; height++ {
		for range 200 {
			garbage := randomBytes(rng, 1+rng.IntN(70<<10))
			at := max(1, height-3+rng.Int64N(20))
			sender := transport.ID(fmt.Sprint("flood ", rng.IntN(1000)))
			_, err := r.Receive(sender, "", part(at, c.ranges[0], garbage, 0, 1+rng.IntN(len(garbage))))
			for _, known := range []error{server.ErrFarAhead, server.ErrFull, server.ErrTooLarge, server.ErrRefusedSender, dsm.ErrOtherUpdate} {
				if errors.Is(err, known) {
					refusals[known]++
					err = nil
				}
			}
			require.NoError(t, err)
		}
		c.proved.Store(height)
		for tries := 0; r.Claim().Durable < height; tries++ {
			require.Less(t, tries, 100)
			_, err := r.Receive("honest", "", part(height, c.ranges[0], c.blocks[height-1].updates[0], 0, 0))
			// Incomplete updates may occupy every slot of this height until they expire.
			if err != nil {
				require.ErrorIs(t, err, server.ErrFull)
				r.Expire()
			}
			_, err = r.Advance()
			require.NoError(t, err)
		}
	}
	c.requireSame(t, r, 0, 8, 15)
	require.Positive(t, refusals[server.ErrFarAhead])
	require.Positive(t, refusals[server.ErrFull])
	require.Positive(t, refusals[server.ErrTooLarge])
}

// An error of the disk is final: updates that are not logged are not acknowledged. Earlier heights
// are still served, and the replica continues when it is opened again.
func TestDiskFails(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(2), 20)
	for n := 1; n <= 8; n++ {
		fsys := newCrashFS(t)
		var armed atomic.Bool
		var changes atomic.Int64
		o := c.options(t, errorfs.Wrap(fsys, errorfs.InjectorFunc(func(op errorfs.Op) error {
			// The store's own files have their tests in packages storage and rangestore.
			if armed.Load() && strings.Contains(op.Path, "/log/") && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose {
				if changes.Add(1) == int64(n) {
					return errorfs.ErrInjected
				}
			}
			return nil
		})), 0)
		c.create(t, o, 0)
		r := openReplica(t, o)
		armed.Store(true)
		height := int64(1)
		c.proved.Store(20)
		for ; ; height++ {
			c.send(t, r, 0, height, "a")
			if _, err := r.Advance(); err != nil {
				require.ErrorIs(t, err, errorfs.ErrInjected)
				break
			}
		}
		c.requireSame(t, r, 0, max(0, height-8), height-1)
		require.Zero(t, r.Claim().Needs)
		_, err := r.Receive("a", "", part(height, c.ranges[0], c.blocks[height-1].updates[0], 0, 0))
		require.ErrorIs(t, err, errorfs.ErrInjected)
		require.NoError(t, r.Close())
		r = openReplica(t, c.options(t, fsys, 0))
		newest := r.Claim().Newest
		require.Contains(t, []int64{height - 1, height}, newest)
		c.send(t, r, 0, newest+1, "a")
		_, err = r.Advance()
		require.NoError(t, err)
		c.requireSame(t, r, 0, max(0, newest-6), newest+1)
		require.NoError(t, r.Close())
	}
}

// Old versions are released: a replica's memory is limited by number and by bytes, and versions
// that readers hold stay valid.
func TestVersionsAreGivenUp(t *testing.T) {
	c := newChain(t, seeds.Rand(t), evenRanges(2), 60)
	few := c.newReplica(t, 0, func(o *server.Options) { o.ServeHeights, o.ServeBytes = 60, 1 })
	var store *rangestore.Store
	r := c.newReplica(t, 0, func(o *server.Options) { store = o.Store })
	c.proved.Store(60)
	var held *avlstar.Partial
	for height := int64(1); height <= 60; height++ {
		for _, r := range []*server.Replica{r, few} {
			c.send(t, r, 0, height, "a")
			_, err := r.Advance()
			require.NoError(t, err)
		}
		switch height {
		case 20:
			held, _ = r.At(20)
		case 59:
			require.NoError(t, store.Flush(t.Context())) // until then it refers to versions
		}
	}
	p, ok := r.At(60)
	require.True(t, ok)
	// About ten; while the store writes to disk, it holds a version, and with it all later ones.
	require.LessOrEqual(t, p.Memory().Versions, 40)
	p.Release()
	require.Equal(t, c.at(20).AppHash(), held.AppHash())
	held.Release()
	require.GreaterOrEqual(t, few.Claim().Oldest, int64(50))
	require.Equal(t, int64(60), few.Claim().Newest)
}

// Changes that are not written to the store count in the memory of the served heights, also those
// of new keys, which replace no data.
func TestChangesCountInServeBytes(t *testing.T) {
	rng := seeds.Rand(t)
	c := newChain(t, rng, evenRanges(1), 0)
	const blocks = 20
	for i := range blocks {
		c.add(t, []avlstar.Change{{Key: append(chainKey(i), 'x'), Value: randomBytes(rng, 10<<10)}})
	}
	r := c.newReplica(t, 0, func(o *server.Options) { o.ServeHeights, o.ServeBytes = blocks, 64<<10 })
	c.feed(t, r, 0, blocks)
	require.GreaterOrEqual(t, r.Claim().Oldest, int64(blocks-6))
}
