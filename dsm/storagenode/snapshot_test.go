package storagenode_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/storagenode"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
)

// snapshotsOf returns the snapshots of nodes that keep one range each, or several.
func snapshotsOf(t *testing.T, c *chain, height int64, keeps [][]int) (all []*storagenode.Snapshot) {
	t.Helper()
	for _, own := range keeps {
		var replicas []*storagenode.Replica
		for _, i := range own {
			r := c.newReplica(t, i, nil)
			c.advance(t, r, i, height)
			replicas = append(replicas, r)
		}
		n, err := storagenode.NewNode(storagenode.NodeOptions{}, replicas...)
		require.NoError(t, err)
		s, err := n.Snapshot(height)
		require.NoError(t, err)
		all = append(all, s)
		_, err = n.Snapshot(height + 1)
		require.ErrorIs(t, err, transport.ErrGone)
	}
	return all
}

// advance brings a replica to a height.
func (c *chain) advance(t *testing.T, r *storagenode.Replica, i int, height int64) {
	t.Helper()
	for h := int64(1); h <= height; h++ {
		c.send(t, r, i, h, "a validator")
		_, err := r.Advance()
		require.NoError(t, err)
	}
}

// complete adds outlines where Lacks says that they are missing.
func complete(t *testing.T, ranges []avlstar.KeyRange, keeps [][]int, all []*storagenode.Snapshot, s *storagenode.Snapshot) (added int) {
	t.Helper()
	for {
		key, lacks, err := s.Lacks()
		require.NoError(t, err)
		if !lacks {
			return added
		}
		at := slices.IndexFunc(ranges, func(r avlstar.KeyRange) bool { return r.Contains(key) })
		of := slices.IndexFunc(keeps, func(own []int) bool { return slices.Contains(own, at) })
		require.NotSame(t, s, all[of], "it lacks nothing of its own ranges: key %x", key)
		require.LessOrEqual(t, uint64(len(all[of].Outline())), s.MaxOutline())
		require.NoError(t, s.Add(all[of].Outline()))
		added++
		require.LessOrEqual(t, added, len(all), "each outline once")
	}
}

// The snapshots of all nodes together have each chunk of the state, wherever ranges begin, and the
// manifest of each is that of the state.
func TestSnapshotsHaveAllChunks(t *testing.T) {
	for round := range 12 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			rng := seeds.Rand(t)
			ranges := anyRanges(rng, 1+rng.IntN(6))
			blocks := rng.IntN(12)
			c := newChain(t, rng, ranges, blocks)
			c.proved.Store(int64(blocks))
			keeps := randomKeeps(rng, len(ranges))
			all := snapshotsOf(t, c, int64(blocks), keeps)
			v := c.at(int64(blocks))
			have := map[uint32]bool{}
			for _, s := range all {
				complete(t, ranges, keeps, all, s)
				require.Equal(t, v.AppHash(), s.Version().AppHash())
				m, err := s.Version().TryManifest()
				require.NoError(t, err)
				require.Equal(t, v.Manifest().Encode(), m.Encode())
				keys, err := s.Version().ChunkKeys()
				require.NoError(t, err)
				own, err := s.Chunks()
				require.NoError(t, err)
				for _, k := range own {
					have[k] = true
					var first, after []byte
					if k > 0 {
						first = keys[k-1]
					}
					if int(k) < len(keys) {
						after = keys[k]
					}
					want, err := v.Chunk(k)
					require.NoError(t, err)
					got, err := s.Range(first, after, uint64(len(want)))
					require.NoError(t, err)
					got[0] = 0 // a boundary height
					require.Equal(t, want, got, "chunk %d", k)
				}
			}
			require.Len(t, have, int(v.NumChunks()))
			for _, s := range all {
				require.NoError(t, s.Close())
			}
		})
	}
}

// randomKeeps gives each range to one of some nodes.
func randomKeeps(rng *rand.Rand, ranges int) (keeps [][]int) {
	nodes := make([][]int, 1+rng.IntN(ranges))
	for i := range ranges {
		at := rng.IntN(len(nodes))
		nodes[at] = append(nodes[at], i)
	}
	for _, own := range nodes {
		if len(own) > 0 {
			keeps = append(keeps, own)
		}
	}
	return keeps
}

// A snapshot stays as it is while the replica continues, and gives its memory back.
func TestSnapshotStays(t *testing.T) {
	rng := seeds.Rand(t)
	c := newChain(t, rng, evenRanges(2), 30)
	c.proved.Store(30)
	r := c.newReplica(t, 0, nil)
	c.advance(t, r, 0, 5)
	n, err := storagenode.NewNode(storagenode.NodeOptions{}, r)
	require.NoError(t, err)
	s, err := n.Snapshot(5)
	require.NoError(t, err)
	for h := int64(6); h <= 30; h++ {
		c.send(t, r, 0, h, "a validator")
		_, err := r.Advance()
		require.NoError(t, err)
	}
	require.Positive(t, s.HeldBytes())
	_, err = n.Snapshot(5)
	require.ErrorIs(t, err, transport.ErrGone, "it is not answered any more")
	v := c.at(5)
	b, err := s.Range(nil, chainKey(100), 1<<20)
	require.NoError(t, err)
	want := 0
	for l, err := range v.Leaves() {
		require.NoError(t, err)
		if string(l.Key) < string(chainKey(100)) {
			want += 1 + 1 + len(l.Key) + 1 + len(l.Value)
		}
	}
	require.Len(t, b, want)
	require.NoError(t, s.Close())
}

// What is no outline of the state is refused, and changes nothing.
func TestSnapshotRefusesLies(t *testing.T) {
	rng := seeds.Rand(t)
	ranges := evenRanges(2)
	c := newChain(t, rng, ranges, 3)
	c.proved.Store(3)
	keeps := [][]int{{0}, {1}}
	all := snapshotsOf(t, c, 3, keeps)
	other := snapshotsOf(t, c, 2, keeps)
	good := all[1].Outline()
	for i := range 200 {
		lie := slices.Clone(good)
		switch i % 3 {
		case 0:
			lie = lie[:rng.IntN(len(lie))]
		case 1:
			lie[rng.IntN(len(lie))] ^= 1 << rng.IntN(8)
		default:
			lie = append(lie, byte(i))
		}
		if err := all[0].Add(lie); err != nil { // what nothing commits to may be anything
			require.ErrorIs(t, err, storagenode.ErrOutline)
		}
	}
	if c.at(2).Root() != c.at(3).Root() {
		require.ErrorIs(t, all[0].Add(other[1].Outline()), storagenode.ErrOutline, "of another height")
	}
	complete(t, ranges, keeps, all, all[0])
	m, err := all[0].Version().TryManifest()
	require.NoError(t, err)
	require.Equal(t, c.at(3).Manifest().Encode(), m.Encode())
	for _, s := range append(all, other...) {
		require.NoError(t, s.Close())
	}
}

func TestOutlineMethod(t *testing.T) {
	outline := []byte("an outline")
	n, err := storagenode.NewNode(storagenode.NodeOptions{Outline: func(height int64) ([]byte, bool) { return outline, height == 7 }})
	require.NoError(t, err)
	mux := new(transport.Mux)
	n.Register(mux)
	ask := func(o dsm.OutlineRequest) ([]byte, error) {
		return mux.Serve(context.Background(), transport.Request{Method: transport.Method(dsm.MethodOutline), Body: o.Encode()})
	}
	got, err := ask(dsm.OutlineRequest{Height: 7, Offset: 3, Length: 4})
	require.NoError(t, err)
	require.Equal(t, outline[3:7], got)
	got, err = ask(dsm.OutlineRequest{Height: 7, Offset: 1 << 63, Length: 4})
	require.NoError(t, err)
	require.Empty(t, got)
	_, err = ask(dsm.OutlineRequest{Height: 8, Length: 4})
	require.ErrorIs(t, err, transport.ErrGone)
	_, err = ask(dsm.OutlineRequest{Height: 7})
	require.ErrorIs(t, err, transport.ErrRefused)
}
