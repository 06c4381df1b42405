package nodedb_test

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
)

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

var (
	hash = strings.Repeat("ab", 32)
	// A node of height 2 with 3 leaves and the key "m". Its children are (1, 2) and (2, 3).
	inner = "04 06 01 6d 20" + hash + "00 02 04 04 06"
)

func TestNodeRecords(t *testing.T) {
	leaf, err := nodedb.DecodeNode(7, unhex(t, "00 02 01 6b 02 7676"))
	require.NoError(t, err)
	require.Equal(t, &iavlsync.Node{Size: 1, Version: 7, Key: []byte("k"), Value: []byte("vv")}, leaf)
	n, err := nodedb.DecodeNode(7, unhex(t, inner))
	require.NoError(t, err)
	require.Equal(t, &iavlsync.Node{Height: 2, Size: 3, Version: 7, Hash: iavlsync.Hash(unhex(t, hash)), Key: []byte("m"),
		Left: unhex(t, "0000000000000001 00000002"), Right: unhex(t, "0000000000000002 00000003")}, n)
	_, err = nodedb.DecodeNode(7, unhex(t, "04 06 01 6d 20"+hash+"02 20"+hash+"04 06"))
	require.ErrorIs(t, err, nodedb.ErrOldLayout)
}

func TestDamagedRecords(t *testing.T) {
	for _, good := range []string{"00 02 01 6b 02 7676", inner} {
		b := unhex(t, good)
		for n := range b {
			_, err := nodedb.DecodeNode(7, b[:n])
			require.ErrorIs(t, err, nodedb.ErrInvalidRecord)
		}
		_, err := nodedb.DecodeNode(7, append(b, 0))
		require.ErrorIs(t, err, nodedb.ErrInvalidRecord)
	}
	for _, bad := range []string{
		"01 02 01 6b 00",                         // height −1
		"8002 02 01 6b 00",                       // height 128
		"00 00 01 6b 00",                         // no leaves
		"00 02 81 00 6b 00",                      // a length that is too long
		"00 02 ffffffffffffffffff 01",            // a key of 2^64 − 1 bytes
		inner[:len(inner)-14] + "08 02 04 04 06", // mode 4
		inner[:len(inner)-5] + "01 06",           // version −1
		inner[:len(inner)-2] + "8080808020",      // nonce 2^32
	} {
		_, err := nodedb.DecodeNode(7, unhex(t, bad))
		require.ErrorIs(t, err, nodedb.ErrInvalidRecord, bad)
	}
	_, _, err := nodedb.DecodeFast(unhex(t, "01 00")) // version −1
	require.ErrorIs(t, err, nodedb.ErrInvalidRecord)
}

func TestRoots(t *testing.T) {
	_, empty, err := nodedb.DecodeRoot(nil)
	require.NoError(t, err)
	require.True(t, empty)
	for record, want := range map[string]string{
		"73 0000000000000005 00000001": "0000000000000005 00000001",
		"73 0000000000000005 00000000": "0000000000000005 00000000", // moved by pruning
		"73 0000000000000005":          "0000000000000005 00000001",
	} {
		refers, empty, err := nodedb.DecodeRoot(unhex(t, record))
		require.NoError(t, err)
		require.False(t, empty)
		require.Equal(t, unhex(t, want), refers)
	}
	refers, empty, err := nodedb.DecodeRoot(unhex(t, inner))
	require.NoError(t, err)
	require.False(t, empty)
	require.Nil(t, refers)
	for _, bad := range []string{"73", "73 00000000000000", "73 0000000000000000", "73 8000000000000000 00000001", "73 0000000000000005 0000000100"} {
		_, _, err := nodedb.DecodeRoot(unhex(t, bad))
		require.ErrorIs(t, err, nodedb.ErrInvalidRecord, bad)
	}
}

func TestStorageVersions(t *testing.T) {
	for text, want := range map[string]int64{"1.1.0-12": 12, "1.0.0": 0, "1.1.0": 0, "": 0, "1.1.0-": 0, "1.1.0-0": 0, "1.1.0--5": 0, "1.1.0-5-6": 0, "9.9.9-5": 0} {
		require.Equal(t, want, nodedb.DecodeStorageVersion([]byte(text)), text)
	}
}

func TestCommits(t *testing.T) {
	c := &nodedb.Commit{Height: 300, Stores: []nodedb.CommitStore{
		{Name: "a", Version: 300, Hash: unhex(t, hash)}, {Name: "b", Version: 300, Hash: unhex(t, hash)}}}
	got, err := nodedb.DecodeCommit(c.Encode())
	require.NoError(t, err)
	require.Equal(t, c, got)
	// Stores in another order, and unknown fields.
	c.Stores[0], c.Stores[1] = c.Stores[1], c.Stores[0]
	again, err := nodedb.DecodeCommit(append(c.Encode(), 0x20, 1, 0x2a, 1, 'x'))
	require.NoError(t, err)
	require.Equal(t, got, again)
	for name, bad := range map[string][]byte{
		"empty": {}, "no height": {0x12, 3, 0x0a, 1, 'a'}, "cut": c.Encode()[:20], "fixed": append(c.Encode(), 0x21), "no name": {8, 1, 0x12, 0},
		"twice": {8, 1, 0x12, 3, 0x0a, 1, 'a', 0x12, 3, 0x0a, 1, 'a'}, "below zero": append([]byte{8}, bytes.Repeat([]byte{0xff}, 9)...),
	} {
		_, err := nodedb.DecodeCommit(bad)
		require.ErrorIs(t, err, nodedb.ErrInvalidRecord, name)
	}
	_, err = nodedb.DecodeLatest([]byte{8, 0})
	require.ErrorIs(t, err, nodedb.ErrInvalidRecord)
	h, err := nodedb.DecodeLatest([]byte{8, 0xac, 2})
	require.NoError(t, err)
	require.EqualValues(t, 300, h)
}

// Decoders never panic, and never accept a second encoding of what they return.
func FuzzNode(f *testing.F) {
	for _, s := range []string{inner, "00 02 01 6b 02 7676", "00 02 01 6b 00"} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := nodedb.DecodeNode(7, b)
		if err == nil && !bytes.Equal(b, nodedb.AppendNode(nil, n)) {
			t.Fatalf("%x is another encoding of %+v", b, n)
		}
	})
}

func FuzzFast(f *testing.F) {
	f.Add([]byte{2, 1, 'v'})
	f.Fuzz(func(t *testing.T, b []byte) {
		version, value, err := nodedb.DecodeFast(b)
		if err == nil && !bytes.Equal(b, nodedb.AppendFast(nil, version, value)) {
			t.Fatalf("%x is another encoding", b)
		}
	})
}

func FuzzRoot(f *testing.F) {
	f.Add(unhex(f, "73 0000000000000005 00000001"))
	f.Add(unhex(f, "73 0000000000000005"))
	f.Fuzz(func(t *testing.T, b []byte) {
		refers, _, err := nodedb.DecodeRoot(b)
		if err == nil && refers != nil && len(refers) != 12 {
			t.Fatalf("%x refers to %x", b, refers)
		}
		_ = nodedb.DecodeStorageVersion(b)
	})
}

func FuzzCommit(f *testing.F) {
	c := nodedb.Commit{Height: 300, Stores: []nodedb.CommitStore{{Name: "a", Version: 300, Hash: unhex(f, hash)}, {Name: "b"}}}
	f.Add(c.Encode())
	f.Add([]byte{8, 0xac, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := nodedb.DecodeCommit(b)
		if err == nil {
			again, err := nodedb.DecodeCommit(c.Encode())
			require.NoError(t, err)
			require.Equal(t, len(c.Stores), len(again.Stores))
		}
		_, _ = nodedb.DecodeLatest(b)
	})
}
