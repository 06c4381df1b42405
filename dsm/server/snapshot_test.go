package server_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/crashfs"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/transport"
)

// snapshotsOf returns the snapshots of nodes; keeps lists the ranges of each node.
func snapshotsOf(t *testing.T, c *chain, height int64, keeps [][]int) (all []*server.Snapshot) {
	t.Helper()
	for _, own := range keeps {
		var replicas []*server.Replica
		for _, i := range own {
			r := c.newReplica(t, i, nil)
			c.advance(t, r, i, height)
			replicas = append(replicas, r)
		}
		n, err := server.NewServer(server.ServerOptions{}, replicas...)
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
func (c *chain) advance(t *testing.T, r *server.Replica, i int, height int64) {
	t.Helper()
	for h := int64(1); h <= height; h++ {
		c.send(t, r, i, h, "a validator")
		_, err := r.Advance()
		require.NoError(t, err)
	}
}

// complete adds missing outlines until the snapshot is complete.
func complete(t *testing.T, ranges []avlstar.KeyRange, keeps [][]int, all []*server.Snapshot, s *server.Snapshot) (added int) {
	t.Helper()
	for {
		key, lacks, err := s.Missing()
		require.NoError(t, err)
		if !lacks {
			return added
		}
		at := slices.IndexFunc(ranges, func(r avlstar.KeyRange) bool { return r.Contains(key) })
		of := slices.IndexFunc(keeps, func(own []int) bool { return slices.Contains(own, at) })
		require.NotSame(t, s, all[of], "its own ranges are complete: key %x", key)
		require.LessOrEqual(t, uint64(len(all[of].Outline())), s.MaxOutline())
		require.NoError(t, s.Add(all[of].Outline()))
		added++
		require.LessOrEqual(t, added, len(all), "each outline once")
	}
}

// Together, the snapshots of all nodes have each chunk of the state, wherever ranges begin. The
// manifest of each snapshot is that of the state.
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
					got[0] = 0 // height of a boundary leaf
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

// randomKeeps assigns each range to a random node.
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

// A snapshot does not change while the replica advances, and Close frees its memory.
func TestSnapshotStays(t *testing.T) {
	rng := seeds.Rand(t)
	c := newChain(t, rng, evenRanges(2), 30)
	c.proved.Store(30)
	var store *rangestore.Store
	// Without memory, all pages are read from the disk.
	r := c.newReplica(t, 0, func(o *server.Options) {
		require.NoError(t, o.Store.Close())
		var err error
		o.Store, err = rangestore.Open(rangestore.Options{
			Dir: path.Join(crashfs.Dir, "range-0"), FS: newCrashFS(t), Keys: o.Range, ChainID: "chain", Memory: rangestore.NewMemory(0),
		})
		require.NoError(t, err)
		store = o.Store
	})
	c.advance(t, r, 0, 5)
	n, err := server.NewServer(server.ServerOptions{}, r)
	require.NoError(t, err)
	s, err := n.Snapshot(5)
	require.NoError(t, err)
	for h := int64(6); h <= 30; h++ {
		c.send(t, r, 0, h, "a validator")
		_, err := r.Advance()
		require.NoError(t, err)
		require.NoError(t, store.Flush(t.Context()))
	}
	require.Positive(t, s.HeldBytes())
	_, err = n.Snapshot(5)
	require.ErrorIs(t, err, transport.ErrGone, "it is no longer served")
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

// Bytes that are not an outline of the state are refused and change nothing.
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
		if err := all[0].Add(lie); err != nil { // parts that no hash covers may have any value
			require.ErrorIs(t, err, server.ErrOutline)
		}
	}
	if c.at(2).Root() != c.at(3).Root() {
		require.ErrorIs(t, all[0].Add(other[1].Outline()), server.ErrOutline, "of another height")
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
	n, err := server.NewServer(server.ServerOptions{Outline: func(height int64) ([]byte, bool) { return outline, height == 7 }})
	require.NoError(t, err)
	mux := new(transport.Mux)
	n.Register(mux)
	ask := func(o dsm.OutlineRequest) ([]byte, error) {
		return mux.Serve(context.Background(), transport.Request{Method: dsm.MethodOutline, Body: o.Encode()})
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

// What snapshots keep on disk is the size of their records that later blocks replaced, up to the
// next snapshot. A key that is written in each block counts once.
func TestDiskBytesOfSnapshots(t *testing.T) {
	rng := seeds.Rand(t)
	const blocks, interval = 30, 5
	c := newChain(t, rng, evenRanges(2), 0)
	hot := chainKey(chainKeys - 1)
	for range blocks {
		changes := slices.DeleteFunc(randomChanges(rng), func(c avlstar.Change) bool { return bytes.Equal(c.Key, hot) })
		c.add(t, append(changes, avlstar.Change{Key: hot, Value: randomBytes(rng, 8+rng.IntN(4000))}))
	}
	r := c.newReplica(t, 1, func(o *server.Options) { o.SnapshotInterval = interval })
	n, err := server.NewServer(server.ServerOptions{}, r)
	require.NoError(t, err)
	var all []*server.Snapshot
	for height := int64(1); height <= blocks; height++ {
		c.proved.Store(height)
		c.send(t, r, 1, height, "a validator")
		_, err = r.Advance()
		require.NoError(t, err)
		// A snapshot may be made later than its height is reached.
		if at := height - height%interval; at > 0 && height == at+int64(len(all))%3 {
			s, err := n.Snapshot(at)
			require.NoError(t, err)
			all = append(all, s)
		}
	}
	for i, s := range all {
		var next *server.Snapshot
		end := int64(blocks)
		if i+1 < len(all) {
			next, end = all[i+1], all[i+1].Height
		}
		replaced := map[string]uint64{}
		for _, b := range c.blocks[s.Height:end] {
			for _, change := range b.changes {
				old, has, err := c.at(s.Height).Get(change.Key)
				require.NoError(t, err)
				if has && c.ranges[1].Contains(change.Key) {
					replaced[string(change.Key)] = record.Bytes(len(change.Key), len(old))
				}
			}
		}
		var want uint64
		for _, n := range replaced {
			want += n
		}
		got, err := s.DiskBytes(next)
		require.NoError(t, err)
		require.Equal(t, want, got, "%d to %d", s.Height, end)
		size, err := c.at(s.Height).RangeBytes(c.ranges[1].First, c.ranges[1].After)
		require.NoError(t, err)
		got, err = s.Bytes()
		require.NoError(t, err)
		require.Equal(t, size, got)
	}
	for _, s := range all {
		require.NoError(t, s.Close())
	}
}
