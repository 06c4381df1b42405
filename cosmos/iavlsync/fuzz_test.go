package iavlsync_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
)

// The seeds of the fuzz targets are the vectors, both valid and invalid. testdata/fuzz has the
// inputs found by fuzzing.

func FuzzDecodeManifest(f *testing.F) {
	v := iavlsynctest.LoadVectors(f, vectorsFile)
	for _, s := range v.States {
		f.Add(uint8(s.Format-uint32(iavlsync.Format8192)), []byte(s.Manifest))
	}
	for _, bad := range v.Invalid {
		if bad.Chunk < 0 {
			f.Add(uint8(2), []byte(bad.Bytes))
		}
	}
	f.Fuzz(func(t *testing.T, format uint8, b []byte) {
		m, err := iavlsync.DecodeManifest(iavlsync.Format8192+iavlsync.Format(format%4), b)
		if err != nil {
			require.ErrorIs(t, err, iavlsync.ErrInvalidManifest)
			return
		}
		require.Equal(t, b, m.Encode())
		first, rest, err := iavlsync.SplitManifest(m.Format, append(bytes.Clone(b), "more"...))
		require.NoError(t, err)
		require.Equal(t, b, first)
		require.Equal(t, "more", string(rest))
		app, err := m.AppHash()
		if err != nil {
			require.ErrorIs(t, err, iavlsync.ErrInvalidManifest)
			return
		}
		got, err := iavlsync.VerifyManifest(m.Format, b, m.Height, app)
		require.NoError(t, err)
		require.Equal(t, m, got)
		_, err = iavlsync.VerifyManifest(m.Format, b, m.Height, iavlsync.Hash{})
		require.ErrorIs(t, err, iavlsync.ErrInvalidManifest)
		for i, s := range m.Stores {
			if u, err := m.Upper(i); err != nil || len(u.Inner) != len(s.Entries) {
				t.Fatal(err)
			}
		}
	})
}

// FuzzVerifyChunk computes the matching root for each input, so the result depends only on the
// encoding of the chunk. It compares the result with a naive decoder.
func FuzzVerifyChunk(f *testing.F) {
	v := iavlsynctest.LoadVectors(f, vectorsFile)
	for _, s := range v.States {
		for _, store := range s.Stores {
			for i, c := range store.Chunks {
				f.Add(uint64(s.State()[store.Name].Chunks(limit(iavlsync.Format(s.Format)))[i].Version), []byte(c))
			}
		}
	}
	for _, bad := range v.Invalid {
		if bad.Chunk >= 0 {
			f.Add(uint64(2), []byte(bad.Bytes))
		}
	}
	f.Fuzz(func(t *testing.T, version uint64, b []byte) {
		if len(b) > 1<<13 || version == 0 || version >= 1<<63 {
			return // the naive decoder is quadratic
		}
		n := iavlsynctest.DecodeChunk(int64(version), b)
		if n == nil {
			root := &iavlsync.Image{Height: 2, Size: int64(min(4, 3+len(b)%2)), Version: int64(version)}
			_, err := iavlsync.VerifyChunk(root, b)
			require.ErrorIs(t, err, iavlsync.ErrInvalidChunk)
			return
		}
		require.Equal(t, n.Chunk(), b)
		requireChunk(t, imageOf(n), b, n)
		other := imageOf(n) // a chunk of a single leaf is valid with any root version
		if other.Version++; n.Height() == 0 {
			other.ValueHash[0]++
		}
		_, err := iavlsync.VerifyChunk(other, b)
		require.ErrorIs(t, err, iavlsync.ErrInvalidChunk)
	})
}

func FuzzVerifyHalves(f *testing.F) {
	for _, s := range iavlsynctest.LoadVectors(f, vectorsFile).States {
		for _, store := range s.Stores {
			if store.Halves != nil {
				f.Add(uint64(s.Height), []byte(store.Halves[1:]), []byte(store.Halves[1:]))
			}
		}
	}
	f.Fuzz(func(t *testing.T, height uint64, b, other []byte) {
		root := &iavlsync.Image{Height: 1, Size: 2, Version: 1}
		_, _, err := iavlsync.VerifyHalves(root, int64(height>>1), b)
		require.ErrorIs(t, err, iavlsync.ErrInvalidChunk)
		if len(b) < 32 || len(other) < 32 {
			return
		}
		root.Left, root.Right = iavlsync.Hash(b), iavlsync.Hash(other)
		_, _, err = iavlsync.VerifyHalves(root, int64(height>>1), b)
		require.ErrorIs(t, err, iavlsync.ErrInvalidChunk)
	})
}

func FuzzDecodeRequest(f *testing.F) {
	for _, q := range iavlsynctest.LoadVectors(f, vectorsFile).Requests {
		f.Add([]byte(q.Encoded))
		f.Add(append(bytes.Clone(q.Encoded), 1))
	}
	tree := &iavlsynctest.Tree{}
	for i := range 50 {
		tree.Set([]byte{byte(i)}, []byte{byte(i)})
	}
	tree.Save()
	r := &iavlsynctest.Reader{}
	root := r.Key(tree.Root)
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := iavlsync.DecodeRequest(b)
		if err != nil {
			require.ErrorIs(t, err, iavlsync.ErrInvalidRequest)
			return
		}
		require.Equal(t, b, q.Encode())
		if answer, err := iavlsync.Answer(&q, root, r); err == nil {
			kind, _, err := iavlsync.SplitAnswer(answer)
			require.NoError(t, err)
			require.Equal(t, iavlsync.AnswerWhole, kind)
		} else {
			require.ErrorIs(t, err, iavlsync.ErrNoSubtree)
		}
	})
}

func FuzzParts(f *testing.F) {
	f.Add([]byte("key"), []byte{0x88, 0x80, 0x80, 8, 0, 3, 'k', 'e', 'y'}, []byte{0})
	f.Fuzz(func(t *testing.T, key, first, second []byte) {
		var p iavlsync.Parts
		leaf := &iavlsync.Image{Size: 1, Version: 1, Key: key}
		for _, b := range [][]byte{first, second} {
			// Pad the input to a full part, so that it is not rejected for its length alone.
			padded := append(bytes.Clone(b), make([]byte, iavlsync.PartBytes+4-min(len(b), iavlsync.PartBytes+4))...)
			for _, b := range [][]byte{b, padded} {
				if err := p.Add(leaf, b); err != nil {
					require.ErrorIs(t, err, iavlsync.ErrInvalidChunk)
				}
			}
		}
		require.LessOrEqual(t, p.Offset(), int64(4*iavlsync.PartBytes))
		_, err := p.Verify(leaf)
		require.ErrorIs(t, err, iavlsync.ErrInvalidChunk)
	})
}
