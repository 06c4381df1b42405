package avlstar

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// TestDamagedManifests damages every byte of manifests. There is one encoding for each manifest, so
// all must be refused.
func TestDamagedManifests(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 20} {
		v := stateOf(t, 50, n)
		encoded, appHash := v.Manifest().Encode(), v.AppHash()
		_, err := VerifyManifest(encoded, appHash)
		require.NoError(t, err)
		for what, b := range damages(encoded) {
			if _, err := VerifyManifest(b, appHash); err == nil {
				t.Fatalf("%d leaves: %s: accepted", n, what)
			} else if !errors.Is(err, ErrInvalidManifest) {
				t.Fatalf("%d leaves: %s: %v", n, what, err)
			}
		}
		for what, h := range damages(appHash[:]) {
			if len(h) == len(appHash) {
				_, err := VerifyManifest(encoded, Hash(h))
				require.ErrorIs(t, err, ErrInvalidManifest, what)
			}
		}
	}
}

// TestDamagedChunks damages every byte of every chunk. The manifest has the correct length for it,
// or another length.
func TestDamagedChunks(t *testing.T) {
	v := stateOf(t, 60, 24)
	m := v.Manifest()
	require.Greater(t, len(m.Entries), 4)
	chunks := encodeChunks(t, v)
	for k, chunk := range chunks {
		for what, b := range damages(chunk) {
			_, err := m.VerifyChunk(uint32(k), b)
			require.ErrorIs(t, err, ErrInvalidChunk, "chunk %d: %s", k, what)
			// In a manifest with a false length, only the hash of the root can reveal that.
			lie := &Manifest{ChunkBytes: m.ChunkBytes, Entries: slices.Clone(m.Entries)}
			lie.Entries[k].Root.Bytes = uint64(len(b))
			_, err = lie.VerifyChunk(uint32(k), b)
			require.ErrorIs(t, err, ErrInvalidChunk, "chunk %d: %s", k, what)
		}
		for other := range chunks {
			_, err := m.VerifyChunk(uint32(other), chunk)
			require.Equal(t, other == k, err == nil, "chunk %d as chunk %d", k, other)
		}
	}
	_, err := m.VerifyChunk(uint32(len(chunks)), chunks[0])
	require.ErrorIs(t, err, ErrInvalidChunk)
	_, err = m.VerifyChunk(math.MaxUint32, nil)
	require.ErrorIs(t, err, ErrInvalidChunk)
}

func TestDamagedCommitments(t *testing.T) {
	for _, n := range []int{0, 1, 20} {
		v := stateOf(t, 50, n)
		for what, b := range damages(v.Commitment().Encode()) {
			c, err := DecodeCommitment(b)
			if err != nil {
				require.ErrorIs(t, err, ErrInvalidCommitment)
				continue
			}
			require.Equal(t, b, c.Encode(), what)
			require.NotEqual(t, v.AppHash(), c.AppHash(), what)
		}
	}
	empty := Commitment{ChunkBytes: 1, Root: emptyStub}
	_, err := DecodeCommitment(empty.Encode())
	require.NoError(t, err)
	for _, c := range []Commitment{
		{ChunkBytes: 0, Root: emptyStub},
		{ChunkBytes: MaxChunkBytes + 1, Root: emptyStub},
		{ChunkBytes: 1, Chunks: 1, Root: emptyStub},
		{ChunkBytes: 1, Root: Stub{Stat: Stat{Bytes: 5}, Hash: emptyRoot}},
		{ChunkBytes: 1, Root: Stub{Hash: Hash{1}}},
	} {
		_, err := DecodeCommitment(c.Encode())
		require.ErrorIs(t, err, ErrInvalidCommitment)
	}
}

// TestHostileManifests passes shapes to the builder that would harm a careless implementation.
func TestHostileManifests(t *testing.T) {
	header := func(m uint64) []byte {
		return binary.AppendUvarint([]byte{manifestVersion, 50}, m)
	}
	entry := func(b []byte, boundary, height byte) []byte {
		if len(b) > 8 {
			b = append(append(b, boundary), make([]byte, 32)...)
		}
		return append(append(b, height, 50), make([]byte, 32)...)
	}
	repeated := func(m int, boundary func(i int) byte) []byte {
		b := header(uint64(m))
		for i := range m {
			b = entry(b, boundary(i), 1)
		}
		return b
	}
	for name, b := range map[string][]byte{
		"claimed entries":    header(math.MaxUint32),
		"too many claimed":   header(math.MaxUint32 + 1),
		"all heights alike":  repeated(1000, func(int) byte { return 2 }),
		"descending heights": repeated(255, func(i int) byte { return byte(255 - i) }),
		"ascending heights":  repeated(255, func(i int) byte { return byte(i + 1) }),
		"wrapping heights":   repeated(10_000, func(i int) byte { return byte(i) }),
		"no heights":         repeated(10_000, func(int) byte { return 0 }),
	} {
		_, err := VerifyManifest(b, Hash{})
		require.ErrorIs(t, err, ErrInvalidManifest, name)
		// A manifest that decodes is refused everywhere else too.
		if m, err := DecodeManifest(b); err == nil {
			require.Equal(t, b, m.Encode())
			_, err = m.Commitment()
			require.ErrorIs(t, err, ErrInvalidManifest, name)
			_, err = Assemble(m, make([]*Chunk, len(m.Entries)))
			require.Error(t, err, name)
		}
	}
	allocated := testing.AllocsPerRun(10, func() { _, _ = DecodeManifest(header(math.MaxUint32)) })
	require.Less(t, allocated, 20.0)
}

func TestAssembleRefuses(t *testing.T) {
	v := stateOf(t, 60, 24)
	m := v.Manifest()
	verified := func(m *Manifest, encoded [][]byte) (chunks []*Chunk) {
		for k, b := range encoded {
			c, err := m.VerifyChunk(uint32(k), b)
			require.NoError(t, err)
			chunks = append(chunks, c)
		}
		return chunks
	}
	chunks := verified(m, encodeChunks(t, v))
	for k := range chunks {
		missing := slices.Clone(chunks)
		missing[k] = nil
		_, err := Assemble(m, missing)
		require.ErrorIs(t, err, ErrInvalidChunk)
		require.ErrorContains(t, err, fmt.Sprintf("chunk %d: it is missing", k))
		_, err = Assemble(m, slices.Delete(slices.Clone(chunks), k, k+1))
		require.ErrorIs(t, err, ErrInvalidChunk)
		if k > 0 {
			swapped := slices.Clone(chunks)
			swapped[k], swapped[k-1] = swapped[k-1], swapped[k]
			_, err = Assemble(m, swapped)
			require.ErrorIs(t, err, ErrInvalidChunk)
		}
	}

	other := mustApply(t, v, Change{[]byte("k00"), []byte("another")})
	_, err := Assemble(m, verified(other.Manifest(), encodeChunks(t, other)))
	require.ErrorIs(t, err, ErrInvalidChunk)

	// The chunks fit their manifest, but the manifest was never verified: keys that descend from
	// chunk to chunk, a wrong boundary, a hash of a first key that is not the chunk's.
	lie := &Manifest{ChunkBytes: m.ChunkBytes, Entries: slices.Clone(m.Entries)}
	lie.Entries[1].BoundaryHeight++
	_, err = Assemble(lie, chunks)
	require.ErrorIs(t, err, ErrInvalidManifest)
	lie = &Manifest{ChunkBytes: m.ChunkBytes, Entries: slices.Clone(m.Entries)}
	lie.Entries[1].FirstKeyHash[0]++
	_, err = Assemble(lie, chunks)
	require.ErrorIs(t, err, ErrInvalidChunk)
	a, b := stateOf(t, 60, 3), mustApply(t, stateOf(t, 60, 0), Change{[]byte("a"), []byte("1")})
	ca, cb := verified(a.Manifest(), encodeChunks(t, a)), verified(b.Manifest(), encodeChunks(t, b))
	descending := &Manifest{ChunkBytes: 1, Entries: []Entry{a.Manifest().Entries[0], b.Manifest().Entries[0]}}
	descending.Entries[1].FirstKeyHash = sha256.Sum256([]byte("a"))
	descending.Entries[1].BoundaryHeight = 3
	_, err = Assemble(descending, append(ca, cb...))
	require.ErrorIs(t, err, ErrInvalidManifest)
	require.ErrorContains(t, err, "does not ascend")
}

// TestChunkHeights compares the heights in a chunk with those in the whole tree: only the height of
// the first leaf differs.
func TestChunkHeights(t *testing.T) {
	v := stateOf(t, 60, 24)
	m := v.Manifest()
	heights := map[string]uint8{}
	for l := range mustLeaves(t, v) {
		heights[string(l.Key)] = l.Height
	}
	for k, data := range encodeChunks(t, v) {
		c, err := m.VerifyChunk(uint32(k), data)
		require.NoError(t, err)
		var encoded []byte
		n := uint64(0)
		for l := range c.Leaves() {
			encoded = record.Append(encoded, l)
			if n++; n > 1 {
				require.Equal(t, heights[string(l.Key)], l.Height)
			} else {
				require.Zero(t, l.Height)
			}
		}
		require.Equal(t, data, encoded)
		require.Equal(t, n, c.Len())
	}
}
