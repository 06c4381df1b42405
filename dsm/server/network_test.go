package server_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/crashfs"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/transport"
)

// chain is a sequence of blocks on a full tree, with the resulting updates.
type chain struct {
	ranges []avlstar.KeyRange
	blocks []block // of heights 1, 2, …
	first  *avlstar.Version
	proved atomic.Int64 // greatest height whose app hash is proved by a header
}

type block struct {
	changes []avlstar.Change
	after   *avlstar.Version
	updates [][]byte // encoded, by range
}

const chainKeys = 600

// newChain builds a chain of random blocks: changed values, insertions, deletions, empty blocks,
// and blocks that delete many adjacent keys.
func newChain(t testing.TB, rng *rand.Rand, ranges []avlstar.KeyRange, blocks int) *chain {
	t.Helper()
	c := &chain{ranges: ranges}
	v, err := avlstar.Empty(512)
	require.NoError(t, err)
	var begin []avlstar.Change
	for i := range chainKeys {
		if rng.IntN(2) == 0 {
			begin = append(begin, avlstar.Change{Key: chainKey(i), Value: randomBytes(rng, 8+rng.IntN(40))})
		}
	}
	c.first, err = v.Apply(begin)
	require.NoError(t, err)
	v.Release()
	for range blocks {
		c.add(t, randomChanges(rng))
	}
	t.Cleanup(func() {
		c.first.Release()
		for _, b := range c.blocks {
			b.after.Release()
		}
	})
	return c
}

// add adds a block.
func (c *chain) add(t testing.TB, changes []avlstar.Change) {
	t.Helper()
	base := c.at(int64(len(c.blocks)))
	after, err := base.Apply(changes)
	require.NoError(t, err)
	b := block{changes: changes, after: after}
	for _, r := range c.ranges {
		u, err := after.UpdateOf(base, r, changes)
		require.NoError(t, err)
		b.updates = append(b.updates, u.Encode())
	}
	c.blocks = append(c.blocks, b)
}

func chainKey(i int) []byte { return fmt.Appendf(nil, "%05d", i) }

// anyRanges returns n ranges of random lengths that cover all keys.
func anyRanges(rng *rand.Rand, n int) []avlstar.KeyRange {
	edges := rng.Perm(chainKeys)[:n-1]
	slices.Sort(edges)
	return rangesAt(edges)
}

// evenRanges returns n ranges of about the same length.
func evenRanges(n int) []avlstar.KeyRange {
	var edges []int
	for i := 1; i < n; i++ {
		edges = append(edges, i*chainKeys/n)
	}
	return rangesAt(edges)
}

func rangesAt(edges []int) []avlstar.KeyRange {
	ranges := []avlstar.KeyRange{{}}
	for _, e := range edges {
		key := chainKey(e)
		ranges[len(ranges)-1].After = key
		ranges = append(ranges, avlstar.KeyRange{First: key})
	}
	return ranges
}

func randomChanges(rng *rand.Rand) []avlstar.Change {
	by := map[int][]byte{}
	switch rng.IntN(8) {
	case 0:
	case 1:
		from := rng.IntN(chainKeys)
		for i := from; i < min(chainKeys, from+rng.IntN(60)); i++ {
			by[i] = nil
		}
	default:
		for range 1 + rng.IntN(30) {
			i := rng.IntN(chainKeys)
			if by[i] = nil; rng.IntN(3) > 0 {
				by[i] = randomBytes(rng, 8+rng.IntN(40))
			}
		}
	}
	var changes []avlstar.Change
	for i := range chainKeys {
		if value, is := by[i]; is {
			changes = append(changes, avlstar.Change{Key: chainKey(i), Value: value})
		}
	}
	return changes
}

// at returns the state after a block.
func (c *chain) at(height int64) *avlstar.Version {
	if height == 0 {
		return c.first
	}
	return c.blocks[height-1].after
}

// AppHash implements server.Headers.
func (c *chain) AppHash(height int64) (avlstar.Hash, bool) {
	if height > c.proved.Load() {
		return avlstar.Hash{}, false
	}
	return c.at(height).AppHash(), true
}

// options returns the options of a replica of range i, on a file system that has crashfs.Dir. It
// opens the store, which the replica closes, and the log, which needs no Close.
func (c *chain) options(t testing.TB, fsys vfs.FS, i int) server.Options {
	t.Helper()
	log, err := server.OpenRedoLog(server.RedoOptions{FS: fsys, Dir: path.Join(crashfs.Dir, "log"), Label: []byte("chain"), FileBytes: 8 << 10})
	require.NoError(t, err)
	store, err := rangestore.Open(rangestore.Options{
		Dir: path.Join(crashfs.Dir, fmt.Sprint("range-", i)), FS: fsys, Keys: c.ranges[i], ChainID: "chain", Memory: rangestore.NewMemory(1 << 20),
	})
	require.NoError(t, err)
	return server.Options{
		Range: c.ranges[i], Store: store, Log: log, Headers: c, ServeHeights: 8,
		Limits: server.Limits{UpdateBytes: 64 << 10, Patience: time.Hour},
	}
}

// create stores the state of a height, taken from the full tree.
func (c *chain) create(t testing.TB, o server.Options, height int64) {
	t.Helper()
	v := c.at(height)
	boundary, err := v.Boundary(o.Range)
	require.NoError(t, err)
	leaves := func(yield func(avlstar.Leaf, error) bool) {
		for l, err := range v.Leaves() {
			if (err != nil || o.Range.Contains(l.Key)) && !yield(l, err) {
				return
			}
		}
	}
	require.NoError(t, o.Store.Create(height, v.Commitment(), boundary, leaves))
}

func newCrashFS(t testing.TB) *crashfs.FS {
	t.Helper()
	return crashfs.New(t, rand.New(rand.NewPCG(0, 0)), 0)
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func openReplica(t testing.TB, o server.Options) *server.Replica {
	t.Helper()
	r, err := server.Open(t.Context(), o)
	require.NoError(t, err)
	return r
}

// newReplica opens a replica of range i from the first state.
func (c *chain) newReplica(t testing.TB, i int, change func(*server.Options)) *server.Replica {
	t.Helper()
	o := c.options(t, newCrashFS(t), i)
	if change != nil {
		change(&o)
	}
	c.create(t, o, 0)
	r := openReplica(t, o)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func dsmRange(r avlstar.KeyRange) avlstar.KeyRange {
	return avlstar.KeyRange{First: r.First, After: r.After}
}

// part returns a part of an update of n bytes, or of the maximum length if n is 0.
func part(height int64, r avlstar.KeyRange, update []byte, offset, n int) dsm.UpdatePart {
	p := dsm.PartOf(height, dsmRange(r), update, sha256.Sum256(update), offset)
	if n > 0 && n < len(p.Part) {
		p.Part = p.Part[:n]
	}
	return p
}

// send sends the update of a height to a replica and returns the last answer.
func (c *chain) send(t testing.TB, r *server.Replica, i int, height int64, sender transport.ID) dsm.UpdateAnswer {
	t.Helper()
	update := c.blocks[height-1].updates[i]
	answer, err := r.Receive(sender, "", part(height, c.ranges[i], update, 0, 0))
	require.NoError(t, err)
	require.EqualValues(t, len(update), answer.Have)
	return answer
}

// requireSame checks that a replica serves these heights, with the chain's states.
func (c *chain) requireSame(t testing.TB, r *server.Replica, i int, oldest, newest int64) {
	t.Helper()
	claim := r.Claim()
	require.Equal(t, [2]int64{min(newest, max(1, oldest)), newest}, [2]int64{claim.Oldest, claim.Newest})
	for height := oldest; height <= newest; height++ {
		p, ok := r.At(height)
		require.True(t, ok, "height %d", height)
		v := c.at(height)
		require.Equal(t, v.AppHash(), p.AppHash(), "height %d", height)
		var want, got []avlstar.Leaf
		for l, err := range v.Leaves() {
			require.NoError(t, err)
			if c.ranges[i].Contains(l.Key) {
				want = append(want, l)
			}
		}
		for l, err := range p.Leaves(c.ranges[i]) {
			require.NoError(t, err)
			got = append(got, l)
		}
		require.Equal(t, want, got, "height %d", height)
		p.Release()
	}
	_, ok := r.At(newest + 1)
	require.False(t, ok)
}

// network is a set of nodes behind muxes; requests and answers are encoded as on a transport.
type network struct {
	*chain
	ranges *dsm.Ranges
	muxes  map[dsm.NodeID]*transport.Mux
}

func (n *network) call(node dsm.NodeID, peer transport.ID, method uint8, body []byte) ([]byte, error) {
	r := transport.Request{Peer: peer, Method: transport.Method(method), Body: body}
	if n.muxes[node].Weigh(r) < 0 {
		return nil, errors.New("negative weight")
	}
	return n.muxes[node].Serve(context.Background(), r)
}

// fullFS fails to create further files.
type fullFS struct {
	vfs.FS
	err error
}

func (f fullFS) OpenReadWrite(string, vfs.DiskWriteCategory, ...vfs.OpenOption) (vfs.File, error) {
	return nil, f.err
}

// fullLog returns a log that fails to write.
func fullLog(t testing.TB, err error) *server.RedoLog {
	t.Helper()
	log, opened := server.OpenRedoLog(server.RedoOptions{FS: fullFS{newCrashFS(t), err}, Dir: crashfs.Dir, Label: []byte("chain")})
	require.NoError(t, opened)
	return log
}
