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

// Legacy writes a naive state as iavl before v1 has kept it, and the record of its commit.
func Legacy(t testing.TB, db nodedb.DB, height int64, s iavlsynctest.State) {
	t.Helper()
	b := db.NewBatch()
	defer b.Close() //nolint:errcheck // it was written
	commit := nodedb.Commit{Height: height}
	for _, name := range s.Names() {
		root := []byte{}
		if s[name] != nil {
			root = LegacyNodes(s[name], func(key, value []byte) {
				require.NoError(t, b.Set(append([]byte("s/k:"+name+"/"), key...), value))
			})
		}
		require.NoError(t, b.Set(binary.BigEndian.AppendUint64([]byte("s/k:"+name+"/r"), uint64(height)), root))
		commit.Stores = append(commit.Stores, nodedb.CommitStore{Name: name, Version: height, Hash: s[name].Hash()})
	}
	require.NoError(t, b.Write())
	WriteCommit(t, db, &commit)
}

// WriteCommit writes the record of a commit, and that it is the latest.
func WriteCommit(t testing.TB, db nodedb.DB, c *nodedb.Commit) {
	t.Helper()
	b := db.NewBatch()
	defer b.Close() //nolint:errcheck // it was written
	require.NoError(t, b.Set(fmt.Appendf(nil, "s/%d", c.Height), c.Encode()))
	require.NoError(t, b.Set([]byte("s/latest"), binary.AppendUvarint([]byte{8}, uint64(c.Height))))
	require.NoError(t, b.Write())
}

// LegacyNodes calls set with the records of a subtree. It returns the hash of its root.
func LegacyNodes(n *iavlsynctest.Node, set func(key, value []byte)) []byte {
	value := binary.AppendVarint(nil, int64(n.Height()))
	value = binary.AppendVarint(value, n.Size())
	value = binary.AppendVarint(value, n.Version)
	text := func(v []byte) { value = append(binary.AppendUvarint(value, uint64(len(v))), v...) }
	if n.Left == nil {
		text(n.Key)
		text(n.Value)
	} else {
		text(n.Right.Least())
		text(LegacyNodes(n.Left, set))
		text(LegacyNodes(n.Right, set))
	}
	set(append([]byte{'n'}, n.Hash()...), value)
	return n.Hash()
}
