package gethtrie

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Both schemes hold the accounts of a map after random changes, a proof has an account's value, and
// a damaged node is an error.
func TestSchemes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // reproducible by its seed
	byHash, byPath, want := map[Hash][]byte{}, map[string][]byte{}, map[string][]byte{}
	hashes := Read(func(_ []byte, h Hash) ([]byte, error) { return byHash[h], nil })
	paths := Read(func(p []byte, _ Hash) ([]byte, error) { return byPath[string(PathKey(p))], nil })
	root := Empty
	for range 20 {
		changes := map[string][]byte{}
		for range 100 {
			key := string(binary.BigEndian.AppendUint32(nil, rng.Uint32N(600)))
			if _, there := want[key]; there && rng.IntN(4) == 0 {
				delete(want, key)
				changes[key] = nil
				continue
			}
			value := make([]byte, 100)
			binary.BigEndian.PutUint64(value, rng.Uint64()|1)
			want[key], changes[key] = value, value
		}
		var list []Change
		for key, value := range changes {
			list = append(list, Change{[]byte(key), value})
		}
		next, nodes, err := Commit(root, hashes, list)
		require.NoError(t, err)
		same, _, witness, err := CommitWitnessed(root, paths, list)
		require.NoError(t, err)
		require.Equal(t, next, same)
		for path, blob := range witness {
			require.Equal(t, byPath[string(PathKey([]byte(path)))], blob)
		}
		for _, n := range nodes {
			if n.Blob == nil {
				delete(byPath, string(PathKey([]byte(n.Path))))
				continue
			}
			require.Equal(t, n.Hash, HashOf(n.Blob))
			byHash[n.Hash], byPath[string(PathKey([]byte(n.Path)))] = n.Blob, n.Blob
		}
		root = next
	}
	require.Less(t, len(byPath), len(byHash), "the hash scheme keeps old nodes")
	for i := range uint32(600) {
		key := binary.BigEndian.AppendUint32(nil, i)
		for _, read := range []Read{hashes, paths} {
			value, err := Get(root, read, key)
			require.NoError(t, err)
			require.Equal(t, want[string(key)], value)
			proof, err := Prove(root, read, key)
			require.NoError(t, err)
			value, err = proof.Verify(root, key)
			if want[string(key)] == nil {
				require.ErrorIs(t, err, errAbsent)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, want[string(key)], value)
			require.Greater(t, proof.Bytes, 100)
			_, err = proof.Verify(Hash{1}, key)
			require.Error(t, err)
		}
	}
	delete(byHash, root)
	_, err := Get(root, hashes, []byte("any"))
	require.ErrorContains(t, err, "missing trie node")
}
