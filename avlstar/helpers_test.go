package avlstar

import (
	"bytes"
	"crypto/sha256"
	"iter"
	"slices"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// child returns a child of inner node n.
func (w *view) child(n ref, side int) sub { return childOf(w, n, side) }

// requireInvariants checks everything that holds for every complete version: order, heights,
// balance, sums, keys of inner nodes, hashes and the numbers of leaves and chunks.
func requireInvariants(t require.TestingT, v *Version) {
	if v.root == 0 {
		require.Equal(t, emptyStub, v.top)
		require.Zero(t, v.upper)
		require.Zero(t, v.leaves)
		return
	}
	var leaves, upper uint64
	var walk func(s sub, low, high []byte) (least ref)
	walk = func(s sub, low, high []byte) ref { // keys are in [low, high)
		if s.n.isLeaf() {
			key, value := v.leaf(s.n)
			require.True(t, bytes.Compare(low, key) <= 0, "key below its range")
			require.True(t, high == nil || bytes.Compare(key, high) < 0, "key above its range")
			require.NoError(t, checkKey(key))
			require.NoError(t, checkValue(value))
			require.Equal(t, Stat{0, uint64(len(record.Append(nil, Leaf{Key: key, Value: value})))}, s.Stat)
			require.Equal(t, hashLeaf(sha256.Sum256(key), sha256.Sum256(value)), s.Hash)
			leaves++
			return s.n
		}
		l, r, key := v.child(s.n, left), v.child(s.n, right), v.keyOf(s.n)
		least := walk(l, low, key)
		leastRight := walk(r, key, high)
		require.Equal(t, leastRight, v.image(s.n).leaf(), "leaf of an inner node")
		require.Equal(t, prefixOf(key), v.link(s.n).prefix)
		require.Equal(t, 1+max(l.Height, r.Height), s.Height)
		require.LessOrEqual(t, max(l.Height, r.Height)-min(l.Height, r.Height), uint8(1), "balance")
		require.Equal(t, l.Bytes+r.Bytes, s.Bytes)
		require.Equal(t, hashInner(l.Stub, r.Stub, sha256.Sum256(key)), s.Hash)
		if s.Bytes > v.chunkBytes {
			upper++
		}
		return least
	}
	walk(sub{v.top, v.root}, nil, nil)
	require.Equal(t, leaves, v.Len(), "number of leaves")
	require.Equal(t, upper+1, uint64(v.NumChunks()), "number of chunks")
	requireIndex(t, v)
}

func encodeChunks(t require.TestingT, v *Version) [][]byte {
	var chunks [][]byte
	for k := range v.NumChunks() {
		c, err := v.Chunk(k)
		require.NoError(t, err)
		chunks = append(chunks, c)
	}
	return chunks
}

// requireSame checks that two versions are the same state in the same shape.
func requireSame(t require.TestingT, want, got *Version) {
	requireInvariants(t, got)
	require.Equal(t, want.Commitment(), got.Commitment())
	require.Equal(t, slices.Collect(mustLeaves(t, want)), slices.Collect(mustLeaves(t, got)))
	require.Equal(t, want.Manifest(), got.Manifest())
}

// requireRoundTrip rebuilds v from its commitment, manifest and chunks, and from its leaves.
func requireRoundTrip(t require.TestingT, v *Version) {
	c, err := DecodeCommitment(v.Commitment().Encode())
	require.NoError(t, err)
	require.Equal(t, v.Commitment(), c)
	require.Equal(t, v.AppHash(), c.AppHash())

	m, err := VerifyManifest(v.Manifest().Encode(), v.AppHash())
	require.NoError(t, err)
	require.Equal(t, v.Manifest(), m)
	chunks := make([]*Chunk, len(m.Entries))
	for k, data := range encodeChunks(t, v) {
		chunks[k], err = m.VerifyChunk(uint32(k), data)
		require.NoError(t, err)
		require.Equal(t, m.Entries[k].Root, chunks[k].Root())
	}
	joined, err := Assemble(m, chunks)
	require.NoError(t, err)
	requireSame(t, v, joined)

	rebuilt, err := FromLeaves(v.ChunkBytes(), v.Leaves())
	require.NoError(t, err)
	requireSame(t, v, rebuilt)
}

func withoutError(leaves iter.Seq[Leaf]) iter.Seq2[Leaf, error] {
	return func(yield func(Leaf, error) bool) {
		for l := range leaves {
			if !yield(l, nil) {
				return
			}
		}
	}
}

// mustLeaves yields the leaves of v. It and the functions below fail the test if something cannot
// be read; they may run in any goroutine.
func mustLeaves(t require.TestingT, v *Version) iter.Seq[Leaf] {
	return func(yield func(Leaf) bool) {
		for l, err := range v.Leaves() {
			assert.NoError(t, err)
			if !yield(l) {
				return
			}
		}
	}
}

func mustAscend(t require.TestingT, v *Version, start, end []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		for kv, err := range v.Ascend(start, end) {
			assert.NoError(t, err)
			if !yield(kv.Key, kv.Value) {
				return
			}
		}
	}
}

func mustGet(t require.TestingT, v *Version, key []byte) (value []byte, ok bool) {
	var err error
	value, ok, err = v.Get(key)
	assert.NoError(t, err)
	return value, ok
}

func mustHas(t require.TestingT, v *Version, key []byte) bool {
	ok, err := v.Has(key)
	assert.NoError(t, err)
	return ok
}

func mustFloor(t require.TestingT, v *Version, key []byte) (k, value []byte, ok bool) {
	var err error
	k, value, ok, err = v.Floor(key)
	assert.NoError(t, err)
	return k, value, ok
}

func mustRangeBytes(t require.TestingT, v *Version, start, end []byte) uint64 {
	n, err := v.RangeBytes(start, end)
	assert.NoError(t, err)
	return n
}

// mustApply applies changes to a version.
func mustApply(t require.TestingT, v *Version, changes ...Change) *Version {
	next, err := v.Apply(changes)
	require.NoError(t, err)
	return next
}
