package iavlsync_test

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/internal/seeds"
)

var formats = []iavlsync.Format{iavlsync.Format8192, iavlsync.Format512, iavlsync.Format32}

func limit(f iavlsync.Format) int64 {
	n, _ := f.Leaves()
	return n
}

// requireState cuts a state and verifies it. Both must agree with the naive encoders.
func requireState(t *testing.T, f iavlsync.Format, height int64, s iavlsynctest.State) {
	t.Helper()
	r := &iavlsynctest.Reader{}
	cut, err := r.Cut(f, height, s)
	require.NoError(t, err)
	require.LessOrEqual(t, r.Reads, 4*cut.Chunks())
	b := cut.Encode()
	require.Equal(t, s.Manifest(height, limit(f)), b)

	m, err := iavlsync.VerifyManifest(f, b, height, iavlsync.Hash(s.AppHash()))
	require.NoError(t, err)
	require.Equal(t, cut, m)
	number := 0
	for i, name := range s.Names() {
		for k := range m.Stores[i].Entries {
			store, entry := m.At(number)
			require.Equal(t, [2]int{i, k}, [2]int{store, entry})
			number++
		}
		require.Equal(t, name, m.Stores[i].Name)
		chunks := s[name].Chunks(limit(f))
		require.Len(t, m.Stores[i].Entries, len(chunks))
		u, err := m.Upper(i)
		require.NoError(t, err)
		require.Equal(t, s[name].Hash(), u.Hash[:])
		if s[name] != nil {
			parts := map[*iavlsynctest.Node]int{}
			for k, c := range chunks {
				parts[c] = k
			}
			requireInner(t, s[name], parts, u.Root, u.Inner)
		}
		for k, c := range chunks {
			answer, err := iavlsync.Answer(&iavlsync.Request{Height: height, Store: name, First: u.First[k], Leaves: c.Size()}, r.Key(s[name]), r)
			require.NoError(t, err)
			require.Equal(t, append([]byte{0}, c.Chunk()...), answer)
			requireChunk(t, &m.Stores[i].Entries[k].Root, answer[1:], c)
		}
	}
	require.Equal(t, number, m.Chunks())
}

// requireChunk verifies a chunk and compares all its nodes.
func requireChunk(t *testing.T, root *iavlsync.Image, data []byte, want *iavlsynctest.Node) {
	t.Helper()
	c, err := iavlsync.VerifyChunk(root, data)
	require.NoError(t, err)
	parts := map[*iavlsynctest.Node]int{}
	want.Leaves(func(leaf *iavlsynctest.Node) {
		got := c.Leaves[len(parts)]
		require.Equal(t, leaf.Key, got.Key)
		require.Equal(t, string(leaf.Value), string(got.Value))
		require.Equal(t, leaf.Version, got.Version)
		parts[leaf] = len(parts)
	})
	require.Len(t, c.Leaves, len(parts))
	requireInner(t, want, parts, c.Root, c.Inner)
}

// requireInner compares the inner nodes above the parts.
func requireInner(t *testing.T, want *iavlsynctest.Node, parts map[*iavlsynctest.Node]int, at iavlsync.Place, inner []iavlsync.Inner) {
	t.Helper()
	require.Len(t, inner, len(parts))
	i, isInner := at.Part()
	if part, is := parts[want]; is {
		require.False(t, isInner)
		require.Equal(t, part, i)
		return
	}
	require.True(t, isInner)
	got := inner[i]
	require.Equal(t, want.Hash(), got.Hash[:])
	require.Equal(t, want.Version, got.Version)
	require.Equal(t, want.Size(), got.Size)
	require.EqualValues(t, want.Height(), got.Height)
	requireInner(t, want.Left, parts, got.Left, inner)
	requireInner(t, want.Right, parts, got.Right, inner)
}

func TestRandomStates(t *testing.T) {
	t.Parallel()
	rnd := seeds.Rand(t)
	for _, keys := range []int{3, 40, 600, 20_000} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			states := iavlsynctest.RandomStates(rnd, keys, 12)
			for h, s := range states {
				if keys > 1000 && h%4 != 3 {
					continue
				}
				for _, f := range formats {
					requireState(t, f, int64(h+1), s)
				}
			}
		})
	}
}

// A state with unchanged stores at a later height has the same trees, with versions further back.
func TestUnchangedSince(t *testing.T) {
	s := iavlsynctest.RandomState(seeds.Rand(t), 300, 5)
	for _, height := range []int64{5, 6, 1000, 1<<63 - 1} {
		requireState(t, iavlsync.Format32, height, s)
	}
}

func TestSmallStates(t *testing.T) {
	requireState(t, iavlsync.Format32, 1, iavlsynctest.State{})
	requireState(t, iavlsync.Format32, 1, iavlsynctest.State{"a": nil})
	for n := range 70 {
		tree := &iavlsynctest.Tree{}
		for i := range n {
			tree.Set([]byte{byte(i), 0, 0}[:1+i%3], nil)
			if i%7 == 0 {
				tree.Save()
			}
		}
		tree.Save()
		requireState(t, iavlsync.Format32, tree.Version, iavlsynctest.State{"a": tree.Root, "b": nil, "c": tree.Root})
	}
}

// Every subtree can be requested, and no other range of leaves.
func TestAnyLeaves(t *testing.T) {
	const leaves = 40
	tree := &iavlsynctest.Tree{}
	for i := range leaves {
		tree.Set([]byte{byte(i * 89)}, []byte{1})
		tree.Save()
	}
	r := &iavlsynctest.Reader{}
	type span struct{ first, leaves int64 }
	subtrees := map[span]*iavlsynctest.Node{}
	var walk func(n *iavlsynctest.Node, first int64)
	walk = func(n *iavlsynctest.Node, first int64) {
		subtrees[span{first, n.Size()}] = n
		if n.Height() > 0 {
			walk(n.Left, first)
			walk(n.Right, first+n.Left.Size())
		}
	}
	walk(tree.Root, 0)
	require.Len(t, subtrees, 2*leaves-1)
	for first := range int64(leaves + 2) {
		for n := range int64(leaves + 2) {
			q := &iavlsync.Request{Height: tree.Version, Store: "a", First: first, Leaves: n}
			answer, err := iavlsync.Answer(q, r.Key(tree.Root), r)
			switch want := subtrees[span{first, n}]; {
			case n == 0:
				require.ErrorIs(t, err, iavlsync.ErrInvalidRequest)
			case want == nil:
				require.ErrorIs(t, err, iavlsync.ErrNoSubtree)
			default:
				require.NoError(t, err)
				require.Equal(t, want.Chunk(), answer[1:])
				requireChunk(t, imageOf(want), answer[1:], want)
			}
		}
	}
	_, err := iavlsync.Answer(&iavlsync.Request{Height: 1, Store: "a", Leaves: 1}, nil, r)
	require.ErrorIs(t, err, iavlsync.ErrNoSubtree)
}

// imageOf returns the image of a naive node.
func imageOf(n *iavlsynctest.Node) *iavlsync.Image {
	im := &iavlsync.Image{Height: uint8(n.Height()), Size: n.Size(), Version: n.Version}
	if n.Left == nil {
		im.Key, im.ValueHash = n.Key, sha256.Sum256(n.Value)
	} else {
		im.Left, im.Right = iavlsync.Hash(n.Left.Hash()), iavlsync.Hash(n.Right.Hash())
	}
	return im
}
