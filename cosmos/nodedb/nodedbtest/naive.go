package nodedbtest

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
)

// Manifest returns the verified manifest of a naive state.
func Manifest(t testing.TB, f iavlsync.Format, height int64, s iavlsynctest.State) *iavlsync.Manifest {
	t.Helper()
	limit, ok := f.Leaves()
	require.True(t, ok)
	m, err := iavlsync.VerifyManifest(f, s.Manifest(height, limit), height, iavlsync.Hash(s.AppHash()))
	require.NoError(t, err)
	return m
}

// Chunks returns the verified chunks of a naive state, in the order of its manifest.
func Chunks(t testing.TB, m *iavlsync.Manifest, s iavlsynctest.State) (chunks []*iavlsync.Chunk) {
	t.Helper()
	limit, _ := m.Format.Leaves()
	for i, name := range s.Names() {
		for k, n := range s[name].Chunks(limit) {
			c, err := iavlsync.VerifyChunk(&m.Stores[i].Entries[k].Root, n.Chunk())
			require.NoError(t, err)
			chunks = append(chunks, c)
		}
	}
	return chunks
}

// WriteState writes a naive state and its commit record, as IAVL and the multi-store do.
func WriteState(t testing.TB, db nodedb.DB, height int64, s iavlsynctest.State) {
	t.Helper()
	commit := nodedb.Commit{Height: height}
	for _, name := range s.Names() {
		NewStore(name).Write(t, db, height, s[name])
		commit.Stores = append(commit.Stores, nodedb.CommitStore{Name: name, Version: height, Hash: s[name].Hash()})
	}
	WriteCommit(t, db, &commit)
}

// Store writes naive trees to a database as the versions of one IAVL store.
type Store struct {
	// Written has the keys of the written nodes: version:8 ‖ nonce:4.
	Written map[*iavlsynctest.Node][]byte
	prefix  string
	nonces  map[int64]uint32 // last nonce of each version
}

// NewStore returns a store without versions.
func NewStore(name string) *Store {
	return &Store{Written: map[*iavlsynctest.Node][]byte{}, prefix: "s/k:" + name + "/", nonces: map[int64]uint32{}}
}

// NodeKey returns the key of a node in the database.
func (s *Store) NodeKey(version int64, nonce uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64([]byte(s.prefix+"s"), uint64(version)), nonce)
}

// Write writes a version: its new nodes, and a reference if the root is that of an earlier version.
// As in IAVL, a node's nonce is less than those of the new nodes in its left subtree, which are
// less than those in its right subtree.
func (s *Store) Write(t testing.TB, db nodedb.DB, version int64, root *iavlsynctest.Node) {
	t.Helper()
	b := db.NewBatch()
	defer b.Close() //nolint:errcheck // already written
	var write func(n *iavlsynctest.Node)
	write = func(n *iavlsynctest.Node) {
		if s.Written[n] != nil {
			return
		}
		s.nonces[n.Version]++
		key := s.NodeKey(n.Version, s.nonces[n.Version])
		s.Written[n] = key[len(s.prefix)+1:]
		record := iavlsync.Node{Height: uint8(n.Height()), Size: n.Size(), Key: n.Key, Value: n.Value}
		if n.Left != nil {
			write(n.Left)
			write(n.Right)
			record.Hash, record.Key = iavlsync.Hash(n.Hash()), n.Right.Least()
			record.Left, record.Right = s.Written[n.Left], s.Written[n.Right]
		}
		require.NoError(t, b.Set(key, nodedb.AppendNode(nil, &record)))
	}
	switch {
	case root == nil:
		require.NoError(t, b.Set(s.NodeKey(version, 1), []byte{}))
	case root.Version < version:
		write(root)
		require.NoError(t, b.Set(s.NodeKey(version, 1), append([]byte("s"), s.Written[root]...)))
	default:
		write(root)
	}
	require.NoError(t, b.Write())
}

// WriteCommit writes a commit record, and makes it the latest.
func WriteCommit(t testing.TB, db nodedb.DB, c *nodedb.Commit) {
	t.Helper()
	b := db.NewBatch()
	defer b.Close() //nolint:errcheck // already written
	require.NoError(t, b.Set(fmt.Appendf(nil, "s/%d", c.Height), c.Encode()))
	require.NoError(t, b.Set([]byte("s/latest"), binary.AppendUvarint([]byte{8}, uint64(c.Height))))
	require.NoError(t, b.Write())
}
