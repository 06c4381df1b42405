package store

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	cmtprotocrypto "github.com/cometbft/cometbft/proto/tendermint/crypto"
	"github.com/stretchr/testify/require"

	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/avlstar"
)

func TestEscapeVectors(t *testing.T) {
	file, err := os.ReadFile("testdata/values.txt")
	require.NoError(t, err)
	n := 0
	for line := range strings.Lines(string(file)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		from, to, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " → ")
		require.True(t, ok, line)
		value, err := hex.DecodeString(from)
		require.NoError(t, err)
		stored, err := hex.DecodeString(to)
		require.NoError(t, err)
		require.Equal(t, stored, Escape(value), line)
		require.Equal(t, value, Unescape(stored), line)
		n++
	}
	require.Equal(t, 8, n)
}

func newEmpty(t *testing.T) *Store {
	t.Helper()
	s, err := New(Options{})
	require.NoError(t, err)
	return s
}

func TestLimits(t *testing.T) {
	s := newEmpty(t)
	key, value := bytes.Repeat([]byte{1}, MaxKeyBytes), bytes.Repeat([]byte{1}, MaxValueBytes)
	s.Set(key, value)
	s.Set([]byte("zeros"), make([]byte, MaxValueBytes-1))
	s.Commit()
	require.Equal(t, value, s.Get(key))
	require.Equal(t, make([]byte, MaxValueBytes-1), s.Get([]byte("zeros")))
	for _, refused := range []avlstar.Change{
		{Key: append(key, 1), Value: []byte{1}},
		{Key: []byte("k"), Value: append(value, 1)},
		{Key: []byte("k"), Value: make([]byte, MaxValueBytes)}, // one byte longer when stored
	} {
		require.ErrorIs(t, Check(refused.Key, refused.Value), ErrLimit)
		require.PanicsWithError(t, Check(refused.Key, refused.Value).Error(), func() { s.Set(refused.Key, refused.Value) })
	}
	long := append(key, 1)
	require.Nil(t, s.Get(long))
	require.False(t, s.Has(long))
	s.Delete(long)
	s.Commit()
}

// TestChunksVerify checks that a store's root proves its manifest, and that the manifest proves
// each chunk on its own.
func TestChunksVerify(t *testing.T) {
	s, err := New(Options{ChunkBytes: 500})
	require.NoError(t, err)
	for i := range 200 {
		s.Set([]byte{1, byte(i)}, bytes.Repeat([]byte{byte(i % 3)}, i%40))
	}
	id := s.Commit()
	v, err := s.State(id.Version)
	require.NoError(t, err)
	defer v.Release()
	m, err := avlstar.DecodeManifest(v.Manifest().Encode())
	require.NoError(t, err)
	c, err := m.Commitment()
	require.NoError(t, err)
	hash := c.AppHash()
	require.Equal(t, id.Hash, hash[:])
	require.Greater(t, v.NumChunks(), uint32(5))
	for k := range v.NumChunks() {
		chunk, err := v.Chunk(k)
		require.NoError(t, err)
		_, err = m.VerifyChunk(k, chunk)
		require.NoError(t, err)
		chunk[len(chunk)/2] ^= 1
		_, err = m.VerifyChunk(k, chunk)
		require.ErrorIs(t, err, avlstar.ErrInvalidChunk)
	}
}

func TestVerifyQuery(t *testing.T) {
	for name, present := range map[string][]string{"empty": nil, "one": {"k"}, "some": {"a", "k", "z"}} {
		t.Run(name, func(t *testing.T) {
			s := newEmpty(t)
			for _, k := range present {
				s.Set([]byte(k), []byte{}) // an empty value can only be proved in its stored form
			}
			id := s.Commit()
			info := types.CommitInfo{Version: id.Version, StoreInfos: []types.StoreInfo{
				{Name: "other", CommitId: types.CommitID{Hash: bytes.Repeat([]byte{1}, 32)}}, {Name: "s", CommitId: id},
			}}
			query := func(key string) (value []byte, ops *cmtprotocrypto.ProofOps) {
				res, err := s.Query(&types.RequestQuery{Path: "/key", Data: []byte(key), Height: id.Version, Prove: true})
				require.NoError(t, err)
				res.ProofOps.Ops = append(res.ProofOps.Ops, info.ProofOp("s"))
				return res.Value, res.ProofOps
			}
			for _, key := range []string{"k", "m"} {
				value, ops := query(key)
				require.Equal(t, s.Has([]byte(key)), value != nil)
				require.NoError(t, VerifyQuery(info.Hash(), "s", []byte(key), value, ops))
				require.ErrorIs(t, VerifyQuery(info.Hash(), "s", []byte(key), []byte("other"), ops), ErrProof)
				require.ErrorIs(t, VerifyQuery(info.Hash(), "other", []byte(key), value, ops), ErrProof)
				require.ErrorIs(t, VerifyQuery(bytes.Repeat([]byte{1}, 32), "s", []byte(key), value, ops), ErrProof)
				if len(present) == 0 {
					continue // the proof holds for all keys, which are all absent
				}
				require.ErrorIs(t, VerifyQuery(info.Hash(), "s", []byte("l"), value, ops), ErrProof)
				if value != nil {
					require.NoError(t, ProofRuntime().VerifyValue(ops, info.Hash(), "/s/state/"+key, value))
				} else {
					require.NoError(t, ProofRuntime().VerifyAbsence(ops, info.Hash(), "/s/state/"+key))
				}
			}
		})
	}
}
