package avlstar

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// The seeds of the fuzz targets are in testdata/fuzz, taken from the vectors.

func FuzzDecodeCommitment(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeCommitment(b)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidCommitment)
			return
		}
		require.Equal(t, b, c.Encode())
		c.AppHash()
	})
}

func FuzzDecodeManifest(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeManifest(b)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidManifest)
			return
		}
		require.Equal(t, b, m.Encode())
		c, err := m.Commitment()
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidManifest)
			return
		}
		got, err := VerifyManifest(b, c.AppHash())
		require.NoError(t, err)
		require.Equal(t, m, got)
		_, err = VerifyManifest(b, Hash{})
		require.ErrorIs(t, err, ErrInvalidManifest)
	})
}

// FuzzVerifyChunk gives each input the manifest that fits it best, so that the result depends only
// on the chunk itself. A naive decoder determines whether it is a chunk.
func FuzzVerifyChunk(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte, height uint8) {
		if len(data) > 1<<13 {
			return // the naive decoder is quadratic
		}
		want := Entry{Root: Stub{Stat: Stat{Height: height, Bytes: uint64(len(data))}}}
		naive := refDecodeChunk(data)
		if naive != nil {
			want.Root.Height, want.Root.Hash = uint8(naive.height()), Hash(naive.hash())
		}
		m := &Manifest{ChunkBytes: MaxChunkBytes, Entries: []Entry{want}}
		c, err := m.VerifyChunk(0, data)
		if naive == nil {
			require.ErrorIs(t, err, ErrInvalidChunk)
			return
		}
		require.NoError(t, err)
		var encoded []byte
		for l := range c.Leaves() {
			encoded = record.Append(encoded, l)
		}
		require.Equal(t, data, encoded)
		v, err := Assemble(m, []*Chunk{c})
		require.NoError(t, err)
		requireInvariants(t, v)
	})
}

// refDecodeChunk is a naive decoder of chunks; it returns nil if b is not a chunk.
func refDecodeChunk(b []byte) *refNode {
	var leaves []refLeaf
	for len(b) > 0 {
		l := refLeaf{height: int(b[0])}
		b = b[1:]
		for _, part := range []*[]byte{&l.key, &l.value} {
			n, size := binary.Uvarint(b)
			if size <= 0 || n == 0 || n > uint64(len(b)-size) || !bytes.Equal(refUvarint(int(n)), b[:size]) {
				return nil
			}
			*part, b = b[size:size+int(n)], b[size+int(n):]
		}
		if len(l.key) > 4096 || len(l.value) > 1_048_576 {
			return nil
		}
		leaves = append(leaves, l)
	}
	for i, l := range leaves {
		if i == 0 && l.height != 0 || i > 0 && bytes.Compare(leaves[i-1].key, l.key) >= 0 {
			return nil
		}
	}
	return refCartesian(leaves)
}

// refCartesian builds the tree whose inner nodes have the heights of all leaves except the first.
// It returns nil if that is not an AVL tree.
func refCartesian(leaves []refLeaf) *refNode {
	switch len(leaves) {
	case 0:
		return nil
	case 1:
		return &refNode{key: leaves[0].key, value: leaves[0].value}
	}
	top := 1
	for i := range leaves[1:] {
		if leaves[i+1].height > leaves[top].height {
			top = i + 1
		}
	}
	l, r := refCartesian(leaves[:top]), refCartesian(leaves[top:])
	if l == nil || r == nil {
		return nil
	}
	n := &refNode{left: l, right: r}
	if diff := l.height() - r.height(); diff < -1 || diff > 1 || n.height() != leaves[top].height {
		return nil
	}
	return n
}

// FuzzVerifyPage gives each input the stub that fits it best. An accepted page must decode as the
// naive decoder decodes it.
func FuzzVerifyPage(f *testing.F) {
	f.Add([]byte{0, 1, 'a', 1, 'x', 1, 1, 'b', 2, 'y', 'z', 0}, uint8(1), []byte("b"))
	f.Add([]byte{7, 1, 'a', 1, 'x'}, uint8(0), []byte{})
	f.Fuzz(func(t *testing.T, data []byte, height uint8, key []byte) {
		if len(data) > 1<<13 {
			return // the naive decoder is quadratic
		}
		plain := bytes.Clone(data)
		if len(plain) > 0 {
			plain[0] = 0
		}
		stub := Stub{Stat: Stat{Height: height, Bytes: uint64(len(data))}}
		naive := refDecodeChunk(plain)
		if naive != nil {
			stub.Height, stub.Hash = uint8(naive.height()), Hash(naive.hash())
		}
		p, err := VerifyPage(stub, data)
		if naive == nil {
			require.ErrorIs(t, err, ErrInvalidPage)
			return
		}
		require.NoError(t, err)
		require.Equal(t, stub, p.Compact().nodes().root.Stub)
		var least []byte
		for below := uint64(0); ; {
			l := p.find(key)
			if least == nil {
				least = p.records().leaf(0).Key
			}
			require.True(t, bytes.Compare(l.Key, key) <= 0 || bytes.Equal(l.Key, least))
			require.LessOrEqual(t, below, p.bytesBelow(key))
			if len(key) == 0 {
				return
			}
			key = key[:len(key)-1]
		}
	})
}
